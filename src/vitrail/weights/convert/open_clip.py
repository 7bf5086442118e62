"""Convert the image tower of CLIP in the names of OpenAI's code, which open_clip shares, by renaming to timm's names."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.config import Gelu, Pair, ViTConfig
from vitrail.weights.convert import inspect
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Overrides
from vitrail.weights.convert.rename import convert_renamed, refuse_unknown, rename
from vitrail.weights.convert.timm_architectures import Architecture

RENAMES = [
    (r"^visual\.", ""),
    (r"^class_embedding$", "cls_token"),
    (r"^positional_embedding$", "pos_embed"),
    (r"^conv1\.", "patch_embed.proj."),
    (r"^ln_pre\.", "norm_pre."),
    (r"^ln_post\.", "norm."),
    (r"^transformer\.resblocks\.(\d+)\.", r"blocks.\1."),
    (r"\.attn\.in_proj_", ".attn.qkv."),
    (r"\.attn\.out_proj\.", ".attn.proj."),
    (r"\.ln_([12])\.", r".norm\1."),
    (r"\.ls_([12])\.gamma$", r".ls\1.gamma"),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
]
TEXT_TOWER = ("transformer.", "token_embedding.", "positional_embedding", "ln_final.", "text_projection", "text.", "logit_")
OPENAI_ENTRIES = ("input_resolution", "context_length", "vocab_size")  # numbers that only OpenAI's own files have
# Fields of vision_cfg in open_clip_config.json that are read, or do not change what the tower computes.
KNOWN_FIELDS = {"image_size", "layers", "width", "patch_size", "head_width", "mlp_ratio", "patch_dropout", "ls_init_value"}


def matches(names: Mapping[str, Tensor]) -> bool:
    return any(name.endswith("class_embedding") for name in names) and any(".resblocks.0." in name for name in names)


def convert_checkpoint(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    image_tower, unused = split_towers(file)
    assumed: list[str] = []
    config_file = sidecar.get("open_clip")
    model_cfg = config_file.get("model_cfg", {}) if isinstance(config_file, dict) else {}
    fields = _vision_fields(model_cfg)
    tensors = to_timm(image_tower)
    for name, theirs in (("norm.weight", "ln_post.weight"), ("pos_embed", "positional_embedding")):
        if name not in tensors:
            raise VitrailError(f"the file lacks {theirs}, which every CLIP tower has")
    move_projection(tensors)
    facts = Architecture(heads=_heads(fields, overrides), gelu=_gelu(file, model_cfg, overrides), norm_eps=1e-5)
    config, state, others = convert_renamed(tensors, facts, overrides, assumed, _image_size(fields))
    refuse_unknown(others)
    preprocess = _preprocess(config_file, config, assumed)
    return ConvertedCheckpoint("open_clip", config, state, unused, assumed, preprocess)


def _vision_fields(model_cfg: Any) -> Mapping[str, Any]:
    fields = model_cfg.get("vision_cfg", {}) if isinstance(model_cfg, dict) else None
    if not isinstance(fields, dict):
        raise VitrailError("vision_cfg in open_clip_config.json must be an object")
    unread = [name for name, value in fields.items() if name not in KNOWN_FIELDS and value not in (None, False)]
    if unread:
        raise VitrailError(
            f"open_clip_config.json has {unread[0][:40]}={str(fields[unread[0]])[:40]} in vision_cfg, which is not supported"
        )
    return fields


def split_towers(file: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors of the image tower, and the names of the others, which must be of the text tower."""
    whole = any(name.startswith("visual.") for name in file)
    image_tower = {name: tensor for name, tensor in file.items() if name.startswith("visual.") or not whole}
    unused = [name for name in file if name not in image_tower]
    unknown = [name for name in unused if not name.startswith(TEXT_TOWER) and name not in OPENAI_ENTRIES]
    if unknown:
        raise VitrailError(f"the file has {', '.join(unknown[:4])}, which neither tower of CLIP has")
    return image_tower, unused


def to_timm(file: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the image tower in timm's names, with its axes."""
    tensors = rename(file, RENAMES)
    for name, axes in (("cls_token", 1), ("pos_embed", 2)):
        if name in tensors and tensors[name].ndim == axes:
            tensors[name] = tensors[name].reshape(*(1,) * (3 - axes), *tensors[name].shape)
    return tensors


def move_projection(tensors: dict[str, Tensor]) -> None:
    """Make the projection to the space of both towers the head, with a bias of zeros."""
    if "proj" not in tensors:
        return
    projection = tensors.pop("proj")
    if projection.ndim != 2:
        raise VitrailError(f"proj must have 2 axes, got {list(projection.shape)}")
    tensors["head.weight"], tensors["head.bias"] = projection.T, torch.zeros(projection.shape[1])


def _heads(fields: Mapping[str, Any], overrides: Overrides) -> int | None:
    width, head_width = fields.get("width"), fields.get("head_width", 64)
    if overrides.heads is not None or width is None:
        return overrides.heads
    if type(width) is not int or type(head_width) is not int or head_width < 1 or width < 1 or width % head_width:
        raise VitrailError(f"width in open_clip_config.json must be a multiple of head_width, got {width!r} and {head_width!r}")
    return width // head_width


def _gelu(file: Mapping[str, Tensor], model_cfg: Mapping[str, Any], overrides: Overrides) -> Gelu:
    """Return the form of the GELU: OpenAI's own files have the quick one, open_clip_config.json says it."""
    if overrides.gelu is not None:
        return overrides.gelu
    if model_cfg:
        return "quick" if model_cfg.get("quick_gelu") is True else "exact"
    if any(name in file for name in OPENAI_ENTRIES):
        return "quick"
    raise VitrailError(
        "the file is a CLIP tower and does not show its GELU; give gelu='quick' (OpenAI, DFN) or gelu='exact' (LAION)"
    )


def _image_size(fields: Mapping[str, Any]) -> Pair | None:
    size = fields.get("image_size")
    sides = [size, size] if type(size) is int else size
    if not isinstance(sides, list) or len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        return None
    return sides[0], sides[1]


def _preprocess(config_file: Any, config: ViTConfig, assumed: list[str]) -> Preprocess:
    fields = config_file.get("preprocess_cfg") if isinstance(config_file, dict) else None
    if not isinstance(fields, dict) or not {"mean", "std"} <= set(fields):
        return inspect.assume_preprocess("CLIP", config, assumed)
    if fields.get("resize_mode", "shortest") not in ("shortest", "squash"):
        raise VitrailError(f"resize_mode in open_clip_config.json must be shortest or squash, got {fields['resize_mode']!r}")
    return Preprocess(
        config.image,
        fit="stretch" if fields.get("resize_mode") == "squash" else "crop",
        interpolation=fields.get("interpolation", "bicubic"),
        mean=tuple(float(value) for value in fields["mean"]),
        std=tuple(float(value) for value in fields["std"]),
    )
