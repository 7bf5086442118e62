"""Convert MAE with its decoder (He et al. 2022): the published files, with timm's names, and Hugging Face's ViTMAE.

Both store the values of the sin-cos tables of encoder and decoder, with a row of zeros for the class token.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

from torch import Tensor

from vitrail.config import parse_value
from vitrail.errors import VitrailError
from vitrail.layers.position import sincos2d
from vitrail.models.build import decoder_state
from vitrail.models.config import ViTConfig
from vitrail.models.masked_autoencoders import MAE
from vitrail.models.masking_config import Masking
from vitrail.weights.convert import huggingface, inspect, timm_vit
from vitrail.weights.convert.inspect import unsupported
from vitrail.weights.convert.tensor_map import TensorMap, affine, import_tensors, permute, position_table

DecoderLayout = Literal["timm", "huggingface"]
PREFIXES: dict[DecoderLayout, str] = {"timm": "", "huggingface": "decoder."}
BLOCK_PREFIXES: dict[DecoderLayout, str] = {"timm": "decoder_blocks", "huggingface": "decoder.decoder_layers"}
MLP_UP: dict[DecoderLayout, str] = {"timm": "mlp.fc1", "huggingface": "intermediate.dense"}
NON_BLOCK_LAYERS = {"decoder_embed": "decoder.embed", "decoder_norm": "decoder.norm", "decoder_pred": "decoder.predict"}
# Of the released models, whose files do not record it.
PUBLISHED_DEFAULTS: dict[str, Any] = {"decoder_heads": 16, "mask_ratio": 0.75, "norm_pix_target": True}
CONFIG_KEYS = {"decoder_heads": "decoder_num_attention_heads", "mask_ratio": "mask_ratio", "norm_pix_target": "norm_pix_loss"}
SINCOS_TOLERANCE = 1e-6  # between the sines of two libraries


@dataclass(frozen=True)
class MAEOverrides:
    """Settings given by the caller that the file does not record."""

    decoder_heads: int | None = None
    mask_ratio: float | None = None
    norm_pix_target: bool | None = None

    def check(self, masking: Masking) -> None:
        """Refuse settings that contradict a complete masking config."""
        for name, override in vars(self).items():
            _check_equal(name, override, getattr(masking, name))


def decoder_layout(names: Mapping[str, Tensor]) -> DecoderLayout | None:
    """Return the layout of the file's decoder; None if it has none."""
    return next((name for name, prefix in PREFIXES.items() if f"{prefix}decoder_embed.weight" in names), None)


def decoder_depth(names: Mapping[str, Tensor]) -> int:
    layout = decoder_layout(names)
    return inspect.count_layers(names, f"{BLOCK_PREFIXES[layout]}.") if layout else 0


def infer_masking(
    file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: MAEOverrides, assumed: list[str]
) -> Masking:
    """Infer the masking config from shapes and config.json, with the published models' values as defaults."""
    layout = decoder_layout(file)
    assert layout is not None
    width = inspect.require_shape(file, f"{PREFIXES[layout]}decoder_embed.weight", 2)[0]
    mlp = inspect.require_shape(file, f"{BLOCK_PREFIXES[layout]}.0.{MLP_UP[layout]}.weight", 2)[0]
    if mlp != 4 * width:
        raise VitrailError(f"the MLP of the decoder must be 4 x {width} wide, got {mlp}; vitrail.load reads the encoder alone")
    return Masking(
        "mae",
        target="pixels",
        decoder_width=width,
        decoder_depth=decoder_depth(file),
        decoder_heads=_heads(width, sidecar, overrides, assumed),
        mask_ratio=_recorded_or_default("mask_ratio", float, sidecar, overrides, assumed),
        norm_pix_target=_recorded_or_default("norm_pix_target", bool, sidecar, overrides, assumed),
    )


def convert_decoder(file: Mapping[str, Tensor], config: ViTConfig, masking: Masking) -> tuple[dict[str, Tensor], list[str]]:
    """Convert the decoder's tensors to our names; also return the names not used."""
    layout = decoder_layout(file)
    assert layout is not None
    state, unused = import_tensors(decoder_maps(config, masking, layout), file)
    unknown = [name for name in unused if re.search(r"decoder|mask_token", name)]
    if unknown:
        raise VitrailError(
            f"the decoder has {', '.join(unknown[:4])}, which MAE's has not; vitrail.load reads the encoder alone"
        )
    if not _is_sincos(state.pop("decoder.positions.table.weight"), state.pop("decoder.positions.prefix")):
        raise VitrailError("the positions of the decoder are not MAE's sin-cos table; vitrail.load reads the encoder alone")
    return state, unused


def decoder_maps(config: ViTConfig, masking: Masking, layout: DecoderLayout) -> list[TensorMap]:
    prefix, block = PREFIXES[layout], timm_vit.block_maps if layout == "timm" else huggingface.block_maps
    maps = [permute(f"{prefix}mask_token", "decoder.mask", "1 1 d -> d")]
    maps.append(position_table(f"{prefix}decoder_pos_embed", _with_prefix_row(config), "decoder.positions"))
    for theirs, ours in NON_BLOCK_LAYERS.items():
        maps += affine(f"{prefix}{theirs}", ours)
    for layer in range(masking.decoder_depth):
        maps += block(f"{BLOCK_PREFIXES[layout]}.{layer}", f"decoder.blocks.{layer}")
    return maps


def detect_sincos_table(config: ViTConfig, state: dict[str, Tensor]) -> tuple[ViTConfig, dict[str, Tensor]]:
    """Replace a learned table that has the values of MAE's sin-cos table by the fixed table."""
    table, prefix_row = state.get("positions.0.table.weight"), state.get("positions.0.prefix")
    if config.position != "learned1d" or table is None or prefix_row is None or not _is_sincos(table, prefix_row):
        return config, state
    remaining = {name: tensor for name, tensor in state.items() if not name.startswith("positions.")}
    return replace(config, position="sincos2d-mae"), remaining


def with_decoder(model: MAE, config: ViTConfig, state: dict[str, Tensor]) -> tuple[ViTConfig, dict[str, Tensor]]:
    """Return config and weights for writing: encoder and decoder, both position tables as values with a class token's row."""
    prefix_rows = {} if config.prefix_positions else {"positions.0.prefix": state["cls"].new_zeros(1, config.width)}
    table = model.decoder.positions.table_at(config.grid).detach()
    tables = {"decoder.positions.table.weight": table.clone(), "decoder.positions.prefix": table.new_zeros(1, table.shape[-1])}
    return _with_prefix_row(config), {**state, **prefix_rows, **decoder_state(model), **tables}


def check_decoder_supported(config: ViTConfig, masking: Masking, format: str) -> None:
    """Refuse a model that the format cannot represent."""
    encoder_hint = "save model.encoder alone"
    if masking.method != "mae" or format not in PREFIXES:
        unsupported_part = f"the prediction head of {masking.method}" if masking.method != "mae" else "MAE's decoder"
        unsupported(
            unsupported_part,
            format,
            encoder_hint if masking.method != "mae" else f"{encoder_hint}, or use format='timm' or 'huggingface'",
        )
    if not config.has_class_token or config.registers or config.norm == "post" or config.final_norm == "pooled":
        unsupported("an MAE with anything but a class token and pre-norm", format, encoder_hint)
    if config.pool == "map" or config.head == "mlp":
        unsupported("an MAE with attention pooling or the pre-logits layer", format, encoder_hint)
    if config.layer_scale is not None or config.qk_norm or not config.qkv_bias:
        unsupported("an MAE with layer scale, qk-norm or q, k, v without bias", format, encoder_hint)
    if config.mlp_kind != "gelu":
        unsupported("an MAE with a gated MLP", format, encoder_hint)
    if format == "timm" and config.gelu != "exact":
        unsupported("a GELU in its tanh form (it assumes the exact one)", format, "use format='huggingface'")
    if format == "timm" and config.norm_eps != 1e-6:
        unsupported(f"layer norms with epsilon {config.norm_eps} (it assumes 1e-6)", format, "use format='huggingface'")
    if format == "huggingface" and (config.image[0] != config.image[1] or config.patch[0] != config.patch[1]):
        unsupported("an MAE for images or patches that are not square", format, "use format='timm'")


def config_file(config: ViTConfig, masking: Masking) -> dict[str, Any]:
    """Return ``config.json``, from which transformers builds the model."""
    return {
        "architectures": ["ViTMAEForPreTraining"],
        "model_type": "vit_mae",
        **huggingface.config_fields(config),
        "decoder_hidden_size": masking.decoder_width,
        "decoder_num_hidden_layers": masking.decoder_depth,
        "decoder_intermediate_size": 4 * masking.decoder_width,
        **{theirs: getattr(masking, ours) for ours, theirs in CONFIG_KEYS.items()},
    }


def _with_prefix_row(config: ViTConfig) -> ViTConfig:
    return replace(config, position_prefix="cls")


def _is_sincos(table: Tensor, prefix_row: Tensor) -> bool:
    rows, columns, width = table.shape
    if width % 4 or prod(table.shape) > 2**26 or prefix_row.count_nonzero():
        return False
    return bool((table.float() - sincos2d((rows, columns), width, "mae")).abs().max() <= SINCOS_TOLERANCE)


def _heads(width: int, sidecar: Mapping[str, Any], overrides: MAEOverrides, assumed: list[str]) -> int:
    default = PUBLISHED_DEFAULTS["decoder_heads"]
    if overrides.decoder_heads is None and CONFIG_KEYS["decoder_heads"] not in sidecar and width % (4 * default):
        valid = max((heads for heads in range(1, default) if width % (4 * heads) == 0), default=1)
        raise VitrailError(
            f"the file does not record the decoder's heads, and {default}, as published, do not fit a width of {width}; "
            f"give it, for example decoder_heads={valid}"
        )
    heads: int = _recorded_or_default("decoder_heads", int, sidecar, overrides, assumed)
    return heads


def _recorded_or_default(
    name: str, value_type: type, sidecar: Mapping[str, Any], overrides: MAEOverrides, assumed: list[str]
) -> Any:
    override, theirs = getattr(overrides, name), CONFIG_KEYS[name]
    if theirs in sidecar:
        recorded = parse_value(sidecar[theirs], value_type, f"{theirs} in config.json")
        _check_equal(name, override, recorded)
        return recorded
    if override is None:
        descriptions = {
            "decoder_heads": "16 heads in the decoder",
            "mask_ratio": "75 % of the patches masked",
            "norm_pix_target": "pixel targets normalised",
        }
        assumed.append(f"{descriptions[name]} (as in the published models; {name}= overrides it)")
    return PUBLISHED_DEFAULTS[name] if override is None else parse_value(override, value_type, name)


def _check_equal(name: str, override: Any, recorded: Any) -> None:
    if override is not None and override != recorded:
        raise VitrailError(f"the file records {name}={recorded}, got {name}={override}; leave {name} out")
