"""Convert Hugging Face's other Vision Transformers, such as CLIP, SigLIP, DINOv3 and BEiT, by renaming to timm's names."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.layers.position import sincos2d
from vitrail.models.config import Pair, Pool, RotaryConfig
from vitrail.weights.convert.huggingface_families import FAMILIES, GELUS, OTHER_TOWERS, RENAMES, Family
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Overrides
from vitrail.weights.convert.timm_architectures import Architecture
from vitrail.weights.convert.timm_names import fold_patches, join_heads, join_qkv, pack_gates
from vitrail.weights.convert.timm_vit import convert_vit, has_gated_mlp


def convert_tower(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    """Convert a model of one of the families; config.json names it, and holds what the tensors do not show."""
    model_type = sidecar["model_type"]
    family, fields = FAMILIES[model_type], sidecar.get("vision_config") or sidecar
    if not isinstance(fields, dict):
        raise VitrailError(f"vision_config in config.json must be an object, got {str(fields)[:40]!r}")
    assumed: list[str] = [family.note] if family.note else []
    tensors, left_out = _to_timm({name: tensor for name, tensor in file.items() if not name.startswith(family.unread)}), []
    if "head.cls_token" in tensors:
        raise VitrailError("the file has attention pooling of AIMv2's kind, which Vitrail's Vision Transformers do not have")
    left_out += [name for name in file if family.unread and name.startswith(family.unread)]
    classifies = any(name.endswith("classifier.weight") for name in file)
    if classifies:  # their classifiers read the tokens, and CLIP's the average of the patches before the last norm
        unread = [name for name in tensors if name.startswith(("attn_pool.", "pre_logits.", *family.unread_with_classifier))]
        tensors = {name: tensor for name, tensor in tensors.items() if name not in unread}
        left_out += unread
    facts, size = _facts(fields, family, tensors, classifies), _image_size(fields)
    if model_type in ("dinov3_vit", "eomt_dinov3"):
        facts = _with_rotary(facts, fields)
    if model_type == "yolos":
        _move_detection_tokens(tensors)
    if fields.get("is_native") is True:
        _add_native_positions(tensors, size)
    config, state, unused = convert_vit(tensors, facts, size, overrides, assumed)
    unknown = [name for name in unused if not OTHER_TOWERS.search(name)]
    if unknown:
        raise VitrailError(f"the file has {', '.join(unknown[:4])}, which Vitrail's Vision Transformers do not have")
    return ConvertedCheckpoint("huggingface", config, state, [*unused, *left_out], assumed)


def _facts(fields: Mapping[str, Any], family: Family, tensors: Mapping[str, Tensor], classifies: bool) -> Architecture:
    heads = fields.get("num_attention_heads")
    eps = fields.get("layer_norm_eps", fields.get("rms_norm_eps", family.norm_eps))
    if type(heads) is not int or heads < 1:
        raise VitrailError(f"num_attention_heads in config.json must be a whole number above 0, got {str(heads)[:40]!r}")
    if not isinstance(eps, int | float) or isinstance(eps, bool):
        raise VitrailError(f"layer_norm_eps in config.json must be a number, got {str(eps)[:40]!r}")
    if "pre_logits.fc.weight" in tensors and fields.get("pooler_act", "tanh") != "tanh":
        raise VitrailError(f"pooler_act in config.json must be 'tanh', got {str(fields['pooler_act'])[:40]!r}")
    return Architecture(
        heads=heads,
        gelu=_gelu(fields, family, tensors),
        norm_eps=float(eps),
        pool=_pool(fields, family, tensors, classifies),
        position_resize=family.position_resize,
    )


def _gelu(fields: Mapping[str, Any], family: Family, tensors: Mapping[str, Tensor]) -> Any:
    """Return the form of the GELU; a gate is a SiLU, which DINOv2's config.json does not say and others' must."""
    act = fields.get("hidden_act", family.act)
    if has_gated_mlp(tensors) and (act == "silu" or fields.get("use_swiglu_ffn") is True):
        return "exact"
    if has_gated_mlp(tensors):
        raise VitrailError(f"hidden_act in config.json must be silu with a gated MLP, got {str(act)[:40]!r}")
    if not isinstance(act, str) or act not in GELUS:
        raise VitrailError(f"hidden_act in config.json must be one of {', '.join(GELUS)}, got {str(act)[:40]!r}")
    return GELUS[act]


def _pool(fields: Mapping[str, Any], family: Family, tensors: Mapping[str, Tensor], classifies: bool) -> Pool:
    head = tensors.get("head.weight")
    if "reg_token" in tensors and head is not None and head.shape[-1] == 2 * tensors["reg_token"].shape[-1] and classifies:
        return family.classifier_pool or "cls+register"
    if family.reads_mean_pooling:
        return "gap" if fields.get("use_mean_pooling", True) is True else "cls"
    pool = (family.classifier_pool if classifies else None) or family.pool
    return "gap" if pool == "map" and "attn_pool.latent" not in tensors else pool


def _with_rotary(facts: Architecture, fields: Mapping[str, Any]) -> Architecture:
    parameters = fields.get("rope_parameters")
    base = fields.get("rope_theta", parameters.get("rope_theta", 100.0) if isinstance(parameters, dict) else 100.0)
    if not isinstance(base, int | float) or isinstance(base, bool):
        raise VitrailError(f"rope_theta in config.json must be a number, got {str(base)[:40]!r}")
    rotary = RotaryConfig(base=float(base), coordinates="normalised")
    return replace(facts, rotary=rotary, rotary_channels="halves")


def _image_size(fields: Mapping[str, Any]) -> Pair | None:
    size = fields.get("image_size")
    sides = [size, size] if type(size) is int else size
    if sides is None:
        return None
    if not isinstance(sides, list) or len(sides) != 2 or not all(type(side) is int and 0 < side < 2**15 for side in sides):
        raise VitrailError(f"image_size in config.json must be one or two whole numbers, got {str(size)[:40]!r}")
    return sides[0], sides[1]


def _rename(name: str) -> str:
    for theirs, ours in RENAMES:
        name = re.sub(theirs, ours, name)
    return name


def _to_timm(file: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename every tensor, join q, k and v, and give vectors and tables timm's axes."""
    file = {name: tensor for name, tensor in file.items() if tensor.numel()}
    tensors = {_rename(name): tensor for name, tensor in file.items()}
    if len(tensors) < len(file):
        raise VitrailError("the file has two tensors for one part of the model; it is ambiguous which to use")
    join_qkv(tensors)
    pack_gates(tensors)
    join_heads(tensors)
    fold_patches(tensors)
    for name in [name for name in tensors if ".mlp.fc1_x." in name]:
        tensors[name.replace(".fc1_x.", ".fc1.")] = tensors.pop(name)  # a value without a gate
    for part in ("weight", "bias"):
        joint = tensors.pop(f"attn_pool.in_proj.{part}", None)
        if joint is not None and joint.shape[0] % 3 == 0:
            third = joint.shape[0] // 3
            tensors[f"attn_pool.q.{part}"], tensors[f"attn_pool.kv.{part}"] = joint[:third], joint[third:]
    if "cls_token" in tensors and tensors["cls_token"].ndim == 1:
        tensors["cls_token"] = tensors["cls_token"][None, None]
    if "pos_embed" in tensors and tensors["pos_embed"].ndim == 2:
        tensors["pos_embed"] = tensors["pos_embed"][None]
    if "head.weight" in tensors and "head.bias" not in tensors and tensors["head.weight"].ndim == 2:
        tensors["head.bias"] = torch.zeros(tensors["head.weight"].shape[0])  # a projection
    return tensors


def _move_detection_tokens(tensors: dict[str, Tensor]) -> None:
    """Move the positions of YOLOS' detection tokens, which follow the patches, to where registers are: before them."""
    table, registers = tensors.get("pos_embed"), tensors.get("reg_token")
    if table is None or registers is None or table.ndim != 3 or registers.ndim != 3:
        raise VitrailError("the file lacks the positions or the detection tokens of YOLOS")
    count = registers.shape[1]
    tensors["pos_embed"] = torch.cat([table[:, :1], table[:, -count:], table[:, 1:-count]], dim=1)


def _add_native_positions(tensors: dict[str, Tensor], size: Pair | None) -> None:
    """Add the computed position table of AIMv2's models for images of any size, at the recorded one."""
    width, _, *patch = tensors["patch_embed.proj.weight"].shape
    if size is None or width % 4:
        raise VitrailError("image_size in config.json is missing, which the computed positions need")
    grid = (size[0] // patch[0], size[1] // patch[1])
    tensors["pos_embed"] = sincos2d(grid, width, "mae").flatten(0, 1)[None]
