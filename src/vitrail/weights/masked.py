"""``vitrail.load_masked``: load a model with its pre-training decoder, to continue pre-training or see its reconstructions."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitrail.config import read as read_as
from vitrail.errors import VitrailError
from vitrail.models.masked import Masked, masked
from vitrail.models.masking import Masking, check_masking
from vitrail.models.settings import Pair, times
from vitrail.models.vit import ViT
from vitrail.weights.convert import detect, huggingface, mae
from vitrail.weights.convert.detect import Found, Wishes
from vitrail.weights.convert.mae import Hints
from vitrail.weights.files import held, read_file
from vitrail.weights.folder import DECODER, is_model, read_facts
from vitrail.weights.load import Report, found_in, guarded, log, match, own, place, preprocessing, sound

LARGEST = 2**26  # of a position table, which is computed and so not limited by the size of the file
Whole = tuple[Found, Masking]  # the state has the names of a Masked


@torch.inference_mode(False)  # what is loaded may be trained
def load_masked(
    source: str | Path,
    grid: Pair | None = None,
    heads: int | None = None,
    gelu: Literal["tanh", "exact"] | None = None,
    decoder_heads: int | None = None,
    share: float | None = None,
    normalise: bool | None = None,
) -> Masked:
    """Load a model folder or run of ``vitrail pretrain``, a published MAE file with its decoder (.pth, .safetensors), a
    folder of Hugging Face's ViTMAE, or ``hf:owner/name``.

    ``grid``, ``heads``, ``gelu``, ``decoder_heads``, ``share`` and ``normalise`` supply what a file does not record. What was
    assumed is logged and kept in ``model.encoder.report``, next to ``model.encoder.preprocess`` and ``model.encoder.facts``.
    """
    wishes = Wishes(read_as(grid, Pair | None, "grid"), read_as(heads, int | None, "heads"), gelu)
    made = decoded(source, wishes, Hints(decoder_heads, share, normalise))
    if made is None:
        raise VitrailError(
            f"{source} is an encoder without a decoder, which vitrail.load reads; try a run or folder of `vitrail pretrain`, "
            "a full MAE file, or a folder of Hugging Face's ViTMAE"
        )
    for line in made.encoder.report.lines()[1:]:
        log.warning("%s: %s", source, line)
    return made


def decoded(source: str | Path, wishes: Wishes, hints: Hints) -> Masked | None:
    """Load a model with its decoder; return None if the source has no decoder."""
    with guarded(source):
        path = place(source)
        whole = _own(path, wishes, hints) if is_model(path) else _foreign(path, wishes, hints)
        if whole is None:
            return None
        found, masking = sound(whole[0]), whole[1]
        config = check_masking(masking, found.config)
        if masking.method == "mae" and config.patches * masking.decoder_width > LARGEST:
            raise VitrailError(f"a decoder for {times(config.grid)} patches would have an implausibly large position table")
        with torch.device("meta"):
            model = masked(ViT(config), masking)
        match(str(source), model, found.state)
        model.load_state_dict({name: held(tensor) for name, tensor in found.state.items()}, assign=True)
    encoder = model.encoder
    encoder.preprocess, encoder.facts = preprocessing(found, config), found.facts
    encoder.report = Report(found.origin, len(found.state), left=tuple(found.left), assumed=tuple(found.assumed))
    return model.eval()


def _own(path: Path, wishes: Wishes, hints: Hints) -> Whole | None:
    facts = read_facts(path)
    if "masking" not in facts:
        return None
    if not (path / DECODER).is_file():
        raise VitrailError(f"{path} lacks {DECODER}, which its vitrail.json refers to; vitrail.load reads the encoder alone")
    rest = read_file(path / DECODER).tensors
    masking = _noted(facts["masking"], hints, detect.count(rest, "decoder.blocks."))
    return _joined(own(path, wishes), rest), masking


def _foreign(path: Path, wishes: Wishes, hints: Hints) -> Whole | None:
    loose = read_file(path)
    file = huggingface.older(loose.tensors) if huggingface.matches(loose.tensors) else loose.tensors
    if mae.layout(file) is None:
        return None
    found, assumed = found_in(loose, path, wishes), list[str]()
    if "masking" in loose.note:
        masking = _noted(loose.note["masking"], hints, mae.depth(file))
        if loose.side and mae.settings(file, loose.side, hints, []) != masking:
            raise VitrailError(
                f"config.json in {path} contradicts the metadata in its weights; restore the file that `save` wrote"
            )
    else:
        masking = mae.settings(file, loose.side, hints, assumed)
    config = check_masking(masking, found.config)
    rest, left = mae.read(file, config, masking)
    config, state = mae.fixed(config, found.state)
    still = [name for name in found.left if name in left or name in loose.left]
    found = replace(found, config=config, state=state, left=still, assumed=[*found.assumed, *assumed])
    return _joined(found, rest), masking


def _noted(plain: Any, hints: Hints, depth: int) -> Masking:
    """Parse the masking config that we stored, and check it against the tensors before a decoder is built."""
    masking: Masking = read_as(plain, Masking, "masking")
    hints.check(masking)
    if masking.method == "mae" and masking.decoder_depth != depth:
        raise VitrailError(f"masking.decoder_depth must be {depth}, as many as the blocks, got {masking.decoder_depth}")
    return masking


def _joined(encoder: Found, rest: dict[str, Tensor]) -> Found:
    return replace(encoder, state={**{f"encoder.{name}": tensor for name, tensor in encoder.state.items()}, **rest})
