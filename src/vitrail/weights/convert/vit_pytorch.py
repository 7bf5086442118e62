"""Convert the ViT and the SimpleViT of vit-pytorch, by renaming to timm's names.

Patches are vectors (row, column, channel) with a norm before and after their projection, in older versions without.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.models.config import Pool
from vitrail.weights.convert import inspect
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Overrides
from vitrail.weights.convert.rename import convert_renamed, refuse_unknown, rename, require
from vitrail.weights.convert.timm_architectures import Architecture

BLOCK = r"^transformer\.layers\.(\d+)\."
RENAMES = [
    (BLOCK + r"0\.norm\.", r"blocks.\1.norm1."),
    (BLOCK + r"0\.(?:fn\.)?to_qkv\.", r"blocks.\1.attn.qkv."),
    (BLOCK + r"0\.(?:fn\.)?to_out\.(?:0\.)?", r"blocks.\1.attn.proj."),
    (BLOCK + r"1\.(?:norm|net\.0)\.", r"blocks.\1.norm2."),
    (BLOCK + r"1\.(?:fn\.net\.0|net\.1)\.", r"blocks.\1.mlp.fc1."),
    (BLOCK + r"1\.(?:fn\.net\.3|net\.[34])\.", r"blocks.\1.mlp.fc2."),
    (r"^transformer\.norm\.", "norm."),
    (r"^(?:mlp|linear)_head\.0\.", "fc_norm."),  # before the classifier, in older versions
    (r"^(?:mlp|linear)_head\.(?:1\.)?", "head."),
    (r"^pos_embedding$", "pos_embed"),
    (r"^register_tokens$", "reg_token"),
]
MAY_BE_EMPTY = ("cls_token",)  # of a model that pools by the mean


def matches(names: Mapping[str, Tensor]) -> bool:
    return "to_patch_embedding.1.weight" in names


def convert_checkpoint(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    assumed: list[str] = []
    tensors = rename(file, RENAMES)
    _fold_patches(tensors, assumed)
    _add_axes(tensors)
    width = inspect.require_shape(tensors, "patch_embed.proj.weight", 4)[0]
    if "blocks.0.attn.qkv.weight" not in tensors:
        raise VitrailError(
            "the file lacks the to_qkv of the first layer; of vit-pytorch's models, ViT and SimpleViT can be read"
        )
    inner = inspect.require_shape(tensors, "blocks.0.attn.qkv.weight", 2)[0] // 3
    if inner != width:
        raise VitrailError(
            f"the file has heads of another total width than the model's, {inner} and {width}, which Vitrail's Vision "
            "Transformers do not have"
        )
    computed = "pos_embed" not in tensors
    if "cls_token" in file:  # SimpleViT has neither
        require(file, "pos_embedding")
    single = _complete_projections(tensors, file, width)
    facts = Architecture(
        heads=overrides.heads or (1 if single else None),
        gelu=inspect.infer_gelu("exact", overrides, assumed),
        norm_eps=1e-5,
        pool=_pool(tensors, file, overrides, assumed),
    )
    config, state, unknown = convert_renamed(tensors, facts, overrides, assumed)
    refuse_unknown(unknown)
    if computed:
        assumed.append("sincos2d position embeddings (SimpleViT's; the file has no table)")
        config = replace(config, position="sincos2d")
    preprocess = inspect.assume_preprocess("ViT", config, assumed)
    return ConvertedCheckpoint("vit_pytorch", config, state, [], assumed, preprocess)


def _fold_patches(tensors: dict[str, Tensor], assumed: list[str]) -> None:
    """Give the projection the axes of a convolution, and its norm of the pixels the order (channel, row, column)."""
    normed = tensors["to_patch_embedding.1.weight"].ndim == 1
    names = {"1": "pixel_norm", "2": "proj", "3": "norm"} if normed else {"1": "proj"}
    for number, name in names.items():
        for part in ("weight", "bias"):
            if f"to_patch_embedding.{number}.{part}" not in tensors:
                raise VitrailError(f"the file lacks to_patch_embedding.{number}.{part}")
            tensors[f"patch_embed.{name}.{part}"] = tensors.pop(f"to_patch_embedding.{number}.{part}")
    pixels = inspect.require_shape(tensors, "patch_embed.proj.weight", 2)[1]
    channels = 3 if pixels % 3 == 0 and math.isqrt(pixels // 3) ** 2 == pixels // 3 else 1
    side = math.isqrt(pixels // channels)
    if channels * side**2 != pixels:
        raise VitrailError(f"patches must be squares of 3 channels or of 1, got {pixels} values of each")
    assumed.append(f"patches of {side}x{side} pixels with {channels} channel{'s' if channels > 1 else ''}")
    sizes = {"p": side, "q": side, "c": channels}
    tensors["patch_embed.proj.weight"] = rearrange(tensors["patch_embed.proj.weight"], "d (p q c) -> d c p q", **sizes)
    for part in ("weight", "bias") if normed else ():
        norm = tensors[f"patch_embed.pixel_norm.{part}"]
        if norm.shape != (pixels,):
            raise VitrailError(f"to_patch_embedding.1.{part} must have {pixels} values, got {list(norm.shape)}")
        tensors[f"patch_embed.pixel_norm.{part}"] = rearrange(norm, "(p q c) -> (c p q)", **sizes)


def _add_axes(tensors: dict[str, Tensor]) -> None:
    """Give tokens and positions timm's axes; a model that pools by the mean has a class token of no rows."""
    for name in ("cls_token", "reg_token", "pos_embed"):
        if name in tensors and tensors[name].ndim == 2:
            tensors[name] = tensors[name][None]
        elif name in tensors and tensors[name].ndim != 3:
            raise VitrailError(
                f"{name} must have 2 or 3 axes, got {list(tensors[name].shape)}; another model of vit-pytorch has it"
            )
    if "cls_token" in tensors and not tensors["cls_token"].shape[1]:
        tensors.pop("cls_token")


def _complete_projections(tensors: dict[str, Tensor], file: Mapping[str, Tensor], width: int) -> bool:
    """Add what vit-pytorch leaves out, without a change of the output; return whether it is the projection of a single head."""
    single = not any(".attn.proj." in name for name in tensors)
    simple = not any(".to_out.0." in name for name in file)  # SimpleViT's projection has no bias, and its MLP has
    for layer in range(inspect.count_layers(tensors, "blocks.")):
        if single:
            tensors[f"blocks.{layer}.attn.proj.weight"] = torch.eye(width)
        if simple:
            tensors.setdefault(f"blocks.{layer}.attn.proj.bias", torch.zeros(width))
    return single


def _pool(tensors: Mapping[str, Tensor], file: Mapping[str, Tensor], overrides: Overrides, assumed: list[str]) -> Pool:
    if "cls_token" not in tensors:
        return overrides.pool or "gap"
    if overrides.pool == "gap":
        raise VitrailError("the mean of vit-pytorch includes the class token, and Vitrail's does not; try pool='cls'")
    if overrides.pool is None and file["cls_token"].ndim == 3:
        assumed.append("the pooling cls (vit-pytorch's default; older versions have the same tensors with pool='mean')")
    return overrides.pool or "cls"
