"""``vitrail.load_masked``: load a model with its pre-training decoder, to continue pre-training or see its reconstructions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.config import parse_value
from vitrail.errors import VitrailError
from vitrail.models.config import Gelu, Pair, format_size
from vitrail.models.masked_autoencoders import MaskedModel, build_masked_model
from vitrail.models.masking_config import Masking, check_masking
from vitrail.models.vit import ViT
from vitrail.weights.convert import huggingface, inspect, mae
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Overrides
from vitrail.weights.convert.mae import MAEOverrides
from vitrail.weights.load import (
    LoadReport,
    adapt_preprocess,
    check_finite_weights,
    check_shapes,
    convert_foreign,
    read_own,
    resolve_source,
    wrap_read_errors,
)
from vitrail.weights.model_folder import DECODER_FILE, is_model_folder, read_metadata
from vitrail.weights.read_file import own_copy, read_file

MAX_TABLE_NUMEL = 2**26  # of a position table, which is computed and so not limited by the size of the file
MaskedCheckpoint = tuple[ConvertedCheckpoint, Masking]  # the state has the names of a MaskedModel


@torch.inference_mode(False)  # what is loaded may be trained
def load_masked(
    source: str | Path,
    grid: Pair | None = None,
    heads: int | None = None,
    gelu: Gelu | None = None,
    decoder_heads: int | None = None,
    mask_ratio: float | None = None,
    norm_pix_target: bool | None = None,
) -> MaskedModel:
    """Load a model folder or run of ``vitrail pretrain``, a published MAE file with its decoder (.pth, .safetensors), a
    folder of Hugging Face's ViTMAE, or ``hf:owner/name`` of one.

    ``grid``, ``heads``, ``gelu``, ``decoder_heads``, ``mask_ratio`` and ``norm_pix_target`` supply what a file does not
    record. What was assumed is logged and recorded in ``model.encoder.load_report``, next to ``model.encoder.preprocess``
    and ``model.encoder.metadata``.
    """
    overrides = Overrides(parse_value(grid, Pair | None, "grid"), parse_value(heads, int | None, "heads"), gelu)
    model = load_with_decoder(source, overrides, MAEOverrides(decoder_heads, mask_ratio, norm_pix_target))
    if model is None:
        raise VitrailError(
            f"{source} is an encoder without a decoder, which vitrail.load reads; try a run or folder of `vitrail pretrain`, "
            "a full MAE file, or a folder of Hugging Face's ViTMAE"
        )
    model.encoder.load_report.log(str(source))
    return model


def load_with_decoder(source: str | Path, overrides: Overrides, mae_overrides: MAEOverrides) -> MaskedModel | None:
    """Load a model with its decoder; return None if the source has no decoder."""
    with wrap_read_errors(source):
        path = resolve_source(source)
        masked_checkpoint = (
            _read_own(path, overrides, mae_overrides)
            if is_model_folder(path)
            else _convert_foreign(path, overrides, mae_overrides)
        )
        if masked_checkpoint is None:
            return None
        checkpoint, masking = check_finite_weights(masked_checkpoint[0]), masked_checkpoint[1]
        config = check_masking(masking, checkpoint.config)
        if masking.method == "mae" and config.patches * masking.decoder_width > MAX_TABLE_NUMEL:
            raise VitrailError(
                f"a decoder for {format_size(config.grid)} patches would have an implausibly large position table"
            )
        with torch.device("meta"):
            model = build_masked_model(ViT(config), masking)
        check_shapes(str(source), model, checkpoint.state)
        model.load_state_dict({name: own_copy(tensor) for name, tensor in checkpoint.state.items()}, assign=True)
    encoder = model.encoder
    encoder.preprocess, encoder.metadata = adapt_preprocess(checkpoint, config), checkpoint.metadata
    encoder.load_report = LoadReport(
        checkpoint.origin, len(checkpoint.state), unused=tuple(checkpoint.unused), assumed=tuple(checkpoint.assumed)
    )
    return model.eval()


def _read_own(path: Path, overrides: Overrides, mae_overrides: MAEOverrides) -> MaskedCheckpoint | None:
    metadata = read_metadata(path)
    if "masking" not in metadata:
        return None
    if not (path / DECODER_FILE).is_file():
        raise VitrailError(
            f"{path} lacks {DECODER_FILE}, which its vitrail.json refers to; vitrail.load reads the encoder alone"
        )
    decoder = read_file(path / DECODER_FILE).tensors
    masking = _parse_masking(metadata["masking"], mae_overrides, inspect.count_layers(decoder, "decoder.blocks."))
    return _with_decoder(read_own(path, overrides), decoder), masking


def _convert_foreign(path: Path, overrides: Overrides, mae_overrides: MAEOverrides) -> MaskedCheckpoint | None:
    raw = read_file(path)
    tensors = huggingface.to_old_names(raw.tensors) if huggingface.matches(raw.tensors) else raw.tensors
    if mae.decoder_layout(tensors) is None:
        return None
    checkpoint, assumed = convert_foreign(raw, path, overrides), list[str]()
    if "masking" in raw.vitrail_metadata:
        masking = _parse_masking(raw.vitrail_metadata["masking"], mae_overrides, mae.decoder_depth(tensors))
        if raw.sidecar and mae.infer_masking(tensors, raw.sidecar, mae_overrides, []) != masking:
            raise VitrailError(
                f"config.json in {path} contradicts the metadata in its weights; restore the file that `save` wrote"
            )
    else:
        masking = mae.infer_masking(tensors, raw.sidecar, mae_overrides, assumed)
    config = check_masking(masking, checkpoint.config)
    decoder, unused = mae.convert_decoder(tensors, config, masking)
    config, state = mae.detect_sincos_table(config, checkpoint.state)
    still_unused = [name for name in checkpoint.unused if name in unused or name in raw.unused]
    checkpoint = replace(checkpoint, config=config, state=state, unused=still_unused, assumed=[*checkpoint.assumed, *assumed])
    return _with_decoder(checkpoint, decoder), masking


def _parse_masking(value: Any, mae_overrides: MAEOverrides, depth: int) -> Masking:
    """Parse the masking config that we stored, and check it against the tensors before a decoder is built."""
    masking: Masking = parse_value(value, Masking, "masking")
    mae_overrides.check(masking)
    if masking.method == "mae" and masking.decoder_depth != depth:
        raise VitrailError(f"masking.decoder_depth must be {depth}, as many as the blocks, got {masking.decoder_depth}")
    return masking


def _with_decoder(encoder: ConvertedCheckpoint, decoder: dict[str, Tensor]) -> ConvertedCheckpoint:
    return replace(encoder, state={**{f"encoder.{name}": tensor for name, tensor in encoder.state.items()}, **decoder})
