"""Convert MAE with its decoder (He et al. 2022): the published files, with timm's names, and Hugging Face's ViTMAE.

Both store the values of the sin-cos tables of encoder and decoder, with a row of zeros for the class token.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

from torch import Tensor

from vitrail.config import read as read_as
from vitrail.errors import VitrailError
from vitrail.layers.position import sincos2d
from vitrail.models.masked import MAE
from vitrail.models.masking import Masking
from vitrail.models.settings import ViTConfig
from vitrail.weights.convert import detect, huggingface, timm
from vitrail.weights.convert.detect import refuse
from vitrail.weights.convert.link import Link, affine, moved, positions
from vitrail.weights.convert.link import read as read_links

Layout = Literal["timm", "huggingface"]
FRONT: dict[Layout, str] = {"timm": "", "huggingface": "decoder."}
BLOCKS: dict[Layout, str] = {"timm": "decoder_blocks", "huggingface": "decoder.decoder_layers"}
UP: dict[Layout, str] = {"timm": "mlp.fc1", "huggingface": "intermediate.dense"}
AROUND = {"decoder_embed": "decoder.embed", "decoder_norm": "decoder.norm", "decoder_pred": "decoder.predict"}
PUBLISHED: dict[str, Any] = {
    "decoder_heads": 16,
    "share": 0.75,
    "normalise": True,
}  # of the released models, whose files do not record it
NAMES = {"decoder_heads": "decoder_num_attention_heads", "share": "mask_ratio", "normalise": "norm_pix_loss"}
ROUNDING = 1e-6  # between the sines of two libraries


@dataclass(frozen=True)
class Hints:
    """Settings given by the caller that the file does not record."""

    decoder_heads: int | None = None
    share: float | None = None
    normalise: bool | None = None

    def check(self, masking: Masking) -> None:
        """Refuse settings that contradict a complete masking config."""
        for name, wish in vars(self).items():
            _agree(name, wish, getattr(masking, name))


def layout(names: Mapping[str, Tensor]) -> Layout | None:
    """Return the layout of the file's decoder; None if it has none."""
    return next((which for which, front in FRONT.items() if f"{front}decoder_embed.weight" in names), None)


def depth(names: Mapping[str, Tensor]) -> int:
    which = layout(names)
    return detect.count(names, f"{BLOCKS[which]}.") if which else 0


def settings(file: Mapping[str, Tensor], side: Mapping[str, Any], hints: Hints, assumed: list[str]) -> Masking:
    """Infer the masking config from shapes and config.json, with the published models' values as defaults."""
    which = layout(file)
    assert which is not None
    width = detect.shape(file, f"{FRONT[which]}decoder_embed.weight", 2)[0]
    mlp = detect.shape(file, f"{BLOCKS[which]}.0.{UP[which]}.weight", 2)[0]
    if mlp != 4 * width:
        raise VitrailError(f"the MLP of the decoder must be 4 x {width} wide, got {mlp}; vitrail.load reads the encoder alone")
    return Masking(
        "mae",
        target="pixels",
        decoder_width=width,
        decoder_depth=depth(file),
        decoder_heads=_heads(width, side, hints, assumed),
        share=_told("share", float, side, hints, assumed),
        normalise=_told("normalise", bool, side, hints, assumed),
    )


def read(file: Mapping[str, Tensor], config: ViTConfig, masking: Masking) -> tuple[dict[str, Tensor], list[str]]:
    """Convert the decoder's tensors to our names; also return the names not used."""
    which = layout(file)
    assert which is not None
    state, left = read_links(links(config, masking, which), file)
    strange = [name for name in left if re.search(r"decoder|mask_token", name)]
    if strange:
        raise VitrailError(
            f"the decoder has {', '.join(strange[:4])}, which MAE's has not; vitrail.load reads the encoder alone"
        )
    if not _is_sincos(state.pop("decoder.positions.table.weight"), state.pop("decoder.positions.prefix")):
        raise VitrailError("the positions of the decoder are not MAE's sin-cos table; vitrail.load reads the encoder alone")
    return state, left


def links(config: ViTConfig, masking: Masking, which: Layout) -> list[Link]:
    front, block = FRONT[which], timm.block if which == "timm" else huggingface.block
    made = [moved(f"{front}mask_token", "decoder.mask", "1 1 d -> d")]
    made.append(positions(f"{front}decoder_pos_embed", _with_row(config), "decoder.positions"))
    for theirs, ours in AROUND.items():
        made += affine(f"{front}{theirs}", ours)
    for layer in range(masking.decoder_depth):
        made += block(f"{BLOCKS[which]}.{layer}", f"decoder.blocks.{layer}")
    return made


def fixed(config: ViTConfig, state: dict[str, Tensor]) -> tuple[ViTConfig, dict[str, Tensor]]:
    """Replace a learned table that has the values of MAE's sin-cos table by the fixed table."""
    table, row = state.get("positions.0.table.weight"), state.get("positions.0.prefix")
    if config.position != "learned1d" or table is None or row is None or not _is_sincos(table, row):
        return config, state
    rest = {name: tensor for name, tensor in state.items() if not name.startswith("positions.")}
    return replace(config, position="sincos2d-mae"), rest


def whole(model: MAE, config: ViTConfig, state: dict[str, Tensor]) -> tuple[ViTConfig, dict[str, Tensor]]:
    """Return config and weights for writing: encoder and decoder, both position tables as values with a class token's row."""
    rows = {} if config.covered else {"positions.0.prefix": state["cls"].new_zeros(1, config.width)}
    table = model.decoder.positions.at(config.grid).detach()
    tables = {"decoder.positions.table.weight": table.clone(), "decoder.positions.prefix": table.new_zeros(1, table.shape[-1])}
    return _with_row(config), {**state, **rows, **model.rest(), **tables}


def check(config: ViTConfig, masking: Masking, format: str) -> None:
    """Refuse a model that the format cannot represent."""
    alone = "save model.encoder alone"
    if masking.method != "mae" or format not in FRONT:
        what = f"the prediction head of {masking.method}" if masking.method != "mae" else "MAE's decoder"
        refuse(what, format, alone if masking.method != "mae" else f"{alone}, or use format='timm' or 'huggingface'")
    if not config.has_class_token or config.registers or config.norm == "post" or config.norm_at == "pooled":
        refuse("an MAE with anything but a class token and pre-norm", format, alone)
    if config.pool == "map" or config.head == "mlp":
        refuse("an MAE with attention pooling or the pre-logits layer", format, alone)
    if config.layer_scale is not None or config.qk_norm or not config.qkv_bias:
        refuse("an MAE with layer scale, qk-norm or q, k, v without bias", format, alone)
    if format == "timm" and config.gelu != "exact":
        refuse("a GELU in its tanh form (it assumes the exact one)", format, "use format='huggingface'")
    if format == "timm" and config.epsilon != 1e-6:
        refuse(f"layer norms with epsilon {config.epsilon} (it assumes 1e-6)", format, "use format='huggingface'")
    if format == "huggingface" and (config.image[0] != config.image[1] or config.patch[0] != config.patch[1]):
        refuse("an MAE for images or patches that are not square", format, "use format='timm'")


def side_file(config: ViTConfig, masking: Masking) -> dict[str, Any]:
    """Return ``config.json``, from which transformers builds the model."""
    return {
        "architectures": ["ViTMAEForPreTraining"],
        "model_type": "vit_mae",
        **huggingface.settings(config),
        "decoder_hidden_size": masking.decoder_width,
        "decoder_num_hidden_layers": masking.decoder_depth,
        "decoder_intermediate_size": 4 * masking.decoder_width,
        **{theirs: getattr(masking, ours) for ours, theirs in NAMES.items()},
    }


def _with_row(config: ViTConfig) -> ViTConfig:
    return replace(config, position_covers="cls")


def _is_sincos(table: Tensor, row: Tensor) -> bool:
    high, wide, width = table.shape
    if width % 4 or prod(table.shape) > 2**26 or row.count_nonzero():
        return False
    return bool((table.float() - sincos2d((high, wide), width, "mae")).abs().max() <= ROUNDING)


def _heads(width: int, side: Mapping[str, Any], hints: Hints, assumed: list[str]) -> int:
    usual = PUBLISHED["decoder_heads"]
    if hints.decoder_heads is None and NAMES["decoder_heads"] not in side and width % (4 * usual):
        works = max((heads for heads in range(1, usual) if width % (4 * heads) == 0), default=1)
        raise VitrailError(
            f"the file does not record the decoder's heads, and {usual}, as published, do not fit a width of {width}; "
            f"give it, for example decoder_heads={works}"
        )
    heads: int = _told("decoder_heads", int, side, hints, assumed)
    return heads


def _told(name: str, kind: type, side: Mapping[str, Any], hints: Hints, assumed: list[str]) -> Any:
    wish, theirs = getattr(hints, name), NAMES[name]
    if theirs in side:
        said = read_as(side[theirs], kind, f"{theirs} in config.json")
        _agree(name, wish, said)
        return said
    if wish is None:
        text = {
            "decoder_heads": "16 heads in the decoder",
            "share": "75 % of the patches masked",
            "normalise": "pixel targets normalised",
        }
        assumed.append(f"{text[name]} (as in the published models; {name}= overrides it)")
    return PUBLISHED[name] if wish is None else read_as(wish, kind, name)


def _agree(name: str, wish: Any, said: Any) -> None:
    if wish is not None and wish != said:
        raise VitrailError(f"the file records {name}={said}, got {name}={wish}; leave {name} out")
