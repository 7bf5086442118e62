"""Convert the Vision Transformers of OpenMMLab (mmpretrain's ViT, DeiT, DeiT III, DINOv2, MAE and BEiT, mmsegmentation's ViT),
by renaming to timm's names."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.models.config import Pool
from vitrail.weights.convert import inspect
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Overrides
from vitrail.weights.convert.rename import convert_renamed, refuse_unknown, rename, require
from vitrail.weights.convert.timm_architectures import Architecture
from vitrail.weights.convert.timm_bare import bare_origin
from vitrail.weights.convert.timm_names import to_timm_names

RENAMES = [
    (r"^patch_embed\.projection\.", "patch_embed.proj."),
    (r"^layers\.(\d+)\.", r"blocks.\1."),
    (r"^blocks\.(\d+)\.(?:ln|norm)([12])\.", r"blocks.\1.norm\2."),
    (r"^(?:ln|norm)1\.", "norm."),
    (r"^(?:ln|norm)2\.", "fc_norm."),  # of the mean of the patches
    (r"\.attn\.attn\.in_proj_", ".attn.qkv."),  # mmsegmentation's
    (r"\.attn\.attn\.out_proj\.", ".attn.proj."),
    (r"\.attn\.gamma1\.weight$", ".ls1.gamma"),
    (r"\.ffn\.gamma2\.weight$", ".ls2.gamma"),
    (r"\.ffn\.layers\.0\.0\.", ".mlp.fc1."),
    (r"\.ffn\.layers\.1\.", ".mlp.fc2."),
    (r"\.ffn\.(w12|w3)\.", r".mlp.\1."),
    (r"^head\.layers\.pre_logits\.", "pre_logits.fc."),
    (r"^head\.layers\.(head|head_dist)\.", r"\1."),
    (r"^head\.fc\.", "head."),
]
TASK_PARTS = re.compile(r"(head|neck)\.|mask_token$")  # heads of other tasks and of pre-training


def matches(names: Mapping[str, Tensor]) -> bool:
    return "patch_embed.projection.weight" in names and any(name.startswith("layers.0.") for name in names)


def convert_checkpoint(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    _check_file(file)
    assumed: list[str] = []
    segmentation = any(".attn.attn." in name for name in file)
    tensors = to_timm_names(rename(file, RENAMES))
    facts = Architecture(
        heads=overrides.heads or _unusual_heads(tensors, assumed),
        gelu=inspect.infer_gelu("exact", overrides, assumed),
        pool=overrides.pool or _infer_pool(tensors, segmentation, assumed),
        position_resize="huggingface",  # bicubic without antialiasing
    )
    config, state, unused = convert_renamed(tensors, facts, overrides, assumed)
    refuse_unknown(name for name in unused if not TASK_PARTS.match(name))
    preprocess = inspect.assume_preprocess(_origin(tensors, segmentation, sidecar), config, assumed)
    return ConvertedCheckpoint("mmpretrain", config, state, unused, assumed, preprocess)


def _check_file(file: Mapping[str, Tensor]) -> None:
    """Refuse models with these names whose computation the tensors do not show."""
    if any(name.startswith("pre_norm.") for name in file):
        raise VitrailError(
            "the file has CLIP's norm before the blocks in mmpretrain's names, which do not show its GELU and epsilon; try the "
            "same weights from open_clip or timm"
        )
    if any(name.startswith("patch_embed.norm.") for name in file):
        raise VitrailError("the file has a norm of the embedded patches in mmpretrain's names, and does not show its epsilon")
    norms = [part for part in (1, 2) if {f"ln{part}.weight", f"norm{part}.weight"} & set(file)]
    if norms == [1, 2]:
        raise VitrailError("the file has a norm of every token and one of their mean, and Vitrail's models have one last norm")
    if "cls_token" not in file and norms != [2]:
        raise VitrailError(
            "the file has no class token in mmpretrain's names, as ViTPose and Sapiens have none, whose images are padded by a "
            "number of pixels that no tensor shows"
        )
    require(file, "patch_embed.projection.bias")
    if not any(name.endswith("relative_position_bias_table") for name in file):
        require(file, "pos_embed")
    for head in ("head.layers.head", "head.fc"):
        if any(name.startswith(f"{head}.") for name in file):
            require(file, f"{head}.weight", f"{head}.bias")


def _unusual_heads(tensors: Mapping[str, Tensor], assumed: list[str]) -> int | None:
    """Return the number of heads of the sizes whose heads are not 64 wide and that no other project has."""
    width = inspect.require_shape(tensors, "patch_embed.proj.weight", 4)[0]
    depth, mlp = inspect.count_layers(tensors, "blocks."), inspect.require_shape(tensors, "blocks.0.mlp.fc2.weight", 2)[1]
    if (width, depth, mlp) == (768, 8, 2304):
        assumed.append("8 heads (mmpretrain's small ViT; heads= overrides it)")
        return 8
    if width == 384 and bare_origin(tensors, tensors, {}) == "MoCo-v3":
        assumed.append("12 heads (MoCo-v3's small model; heads= overrides it)")
        return 12
    return None


def _infer_pool(tensors: Mapping[str, Tensor], segmentation: bool, assumed: list[str]) -> Pool:
    """Infer the pooling from the last norm or the tokens."""
    if "fc_norm.weight" in tensors or "cls_token" not in tensors:
        return "gap"
    if "reg_token" in tensors:
        return "cls+register"
    pool: Pool = "gap" if segmentation else "cls"
    reason = "mmsegmentation reads the patches" if segmentation else "mmpretrain's default"
    assumed.append(f"the pooling {pool} ({reason}; pool= overrides it)")
    return pool


def _origin(tensors: Mapping[str, Tensor], segmentation: bool, sidecar: Mapping[str, Any]) -> str:
    """Return the project whose preprocessing the weights were trained with, of which mmpretrain has several."""
    if "blocks.0.ls1.gamma" in tensors:
        return "DeiT III"
    is_plain = "norm.weight" in tensors and "reg_token" not in tensors and not segmentation
    return "ViT" if is_plain and "deit" not in str(sidecar.get("file_name")) else "DeiT"
