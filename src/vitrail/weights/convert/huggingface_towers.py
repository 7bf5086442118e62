"""Convert Hugging Face's other Vision Transformers: CLIP, SigLIP, DINOv2, I-JEPA, MSN and DeiT, by renaming to timm's names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.layers.position import PositionResize
from vitrail.models.config import Gelu, Pair, Pool
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Overrides
from vitrail.weights.convert.timm_architectures import Architecture
from vitrail.weights.convert.timm_names import join_qkv, pack_gates
from vitrail.weights.convert.timm_vit import convert_vit

GELUS: dict[Any, Gelu] = {"gelu": "exact", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "quick_gelu": "quick"}


@dataclass(frozen=True)
class Family:
    """The settings that the models of a ``model_type`` share and their config.json may leave out."""

    origin: str
    norm_eps: float
    gelu: str = "gelu"
    pool: Pool = "cls"
    classifier_pool: Pool | None = None  # None: the same
    position_resize: PositionResize = "huggingface"


CLIP = Family("CLIP", 1e-5, "quick_gelu", classifier_pool="gap")
SIGLIP = Family("SigLIP", 1e-6, "gelu_pytorch_tanh", "map", classifier_pool="gap")
FAMILIES = {
    "clip": CLIP,
    "clip_vision_model": CLIP,
    "siglip": SIGLIP,
    "siglip_vision_model": SIGLIP,
    "dinov2": Family("DINOv2", 1e-6, classifier_pool="cls+gap"),
    "dinov2_with_registers": Family("DINOv2", 1e-6, classifier_pool="cls+gap", position_resize="timm"),  # antialiased
    "ijepa": Family("I-JEPA", 1e-12, pool="gap"),
    "vit_msn": Family("MSN", 1e-6),
    "deit": Family("DeiT", 1e-12),
}
OTHER_TOWERS = re.compile(r"^(text_model|text_projection|logit_scale|logit_bias|mask_token|embeddings\.position_ids)")
MISSING_FEATURES = {
    r"distillation_classifier": "a distilled DeiT's two heads",
}
RENAMES = [
    (r"^(vit|deit|dinov2|dinov2_with_registers|ijepa|vision_model)\.", ""),
    (r"^embeddings\.(cls_token|mask_token)$", r"\1"),
    (r"^embeddings\.class_embedding$", "cls_token"),
    (r"^embeddings\.(distillation_token|register_tokens)$", "reg_token"),
    (r"^embeddings\.position_embedding(s|\.weight)$", "pos_embed"),
    (r"^embeddings\.patch_embedding(s\.projection)?\.", "patch_embed.proj."),
    (r"^(encoder\.)?layers?\.(\d+)\.", r"blocks.\2."),
    (r"\.(attention\.attention|self_attn|attention)\.(q|k|v)(uery|ey|alue|_proj)\.", r".attn.\2."),
    (r"\.(attention\.output\.dense|self_attn\.out_proj|attention\.o_proj)\.", ".attn.proj."),
    (r"\.(layernorm_before|layer_norm1)\.", ".norm1."),
    (r"\.(layernorm_after|layer_norm2)\.", ".norm2."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"(blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
    (r"\.mlp\.weights_in\.", ".mlp.fc1."),  # SwiGLU, in one matrix or two
    (r"\.mlp\.(weights_out|down_proj)\.", ".mlp.fc2."),
    (r"\.mlp\.gate_proj\.", ".mlp.fc1_g."),
    (r"\.mlp\.up_proj\.", ".mlp.fc1_x."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
    (r"^(post_)?layernorm\.", "norm."),
    (r"^pre_layrnorm\.", "norm_pre."),
    (r"^head\.probe$", "attn_pool.latent"),
    (r"^head\.attention\.out_proj\.", "attn_pool.proj."),
    (r"^head\.attention\.in_proj_", "attn_pool.in_proj."),
    (r"^head\.layernorm\.", "attn_pool.norm."),
    (r"^head\.mlp\.", "attn_pool.mlp."),
    (r"^classifier\.", "head."),
    (r"^visual_projection\.", "head."),
    (r"^pooler\.dense\.", "pre_logits.fc."),
]


def convert_tower(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    """Convert a model of one of the families; config.json names it, and holds what the tensors do not show."""
    family, fields = FAMILIES[sidecar["model_type"]], sidecar.get("vision_config") or sidecar
    if not isinstance(fields, dict):
        raise VitrailError(f"vision_config in config.json must be an object, got {str(fields)[:40]!r}")
    for pattern, feature in MISSING_FEATURES.items():
        if any(re.search(pattern, name) for name in file):
            raise VitrailError(f"the file has {feature}, which Vitrail's Vision Transformers do not have")
    assumed: list[str] = []
    tensors, left_out = _to_timm(file), list[str]()
    classifies = "classifier.weight" in file
    facts = _facts(fields, family, classifies)
    if classifies:  # their classifiers read the tokens, and CLIP's the average of the patches before the last norm
        unread = ("attn_pool.", "pre_logits.", *(("norm.",) if family is CLIP else ()))
        left_out = [name for name in tensors if name.startswith(unread)]
        tensors = {name: tensor for name, tensor in tensors.items() if name not in left_out}
    config, state, unused = convert_vit(tensors, facts, _image_size(fields), overrides, assumed)
    unknown = [name for name in unused if not OTHER_TOWERS.search(name)]
    if unknown:
        raise VitrailError(f"the file has {', '.join(unknown[:4])}, which Vitrail's Vision Transformers do not have")
    return ConvertedCheckpoint("huggingface", config, state, [*unused, *left_out], assumed)


def _facts(fields: Mapping[str, Any], family: Family, classifies: bool) -> Architecture:
    heads, eps = fields.get("num_attention_heads"), fields.get("layer_norm_eps", family.norm_eps)
    if type(heads) is not int or heads < 1:
        raise VitrailError(f"num_attention_heads in config.json must be a whole number above 0, got {str(heads)[:40]!r}")
    if not isinstance(eps, int | float) or isinstance(eps, bool):
        raise VitrailError(f"layer_norm_eps in config.json must be a number, got {str(eps)[:40]!r}")
    act = fields.get("hidden_act", family.gelu)
    if not isinstance(act, str) or act not in GELUS:
        raise VitrailError(f"hidden_act in config.json must be one of {', '.join(GELUS)}, got {str(act)[:40]!r}")
    pool = (family.classifier_pool if classifies else None) or family.pool
    return Architecture(heads=heads, gelu=GELUS[act], norm_eps=float(eps), pool=pool, position_resize=family.position_resize)


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
    tensors = {_rename(name): tensor for name, tensor in file.items()}
    if len(tensors) < len(file):
        raise VitrailError("the file has two tensors for one part of the model; it is ambiguous which to use")
    join_qkv(tensors)
    pack_gates(tensors)
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
