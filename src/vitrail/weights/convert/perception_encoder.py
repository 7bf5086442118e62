"""Convert the Perception Encoder (Bolya et al. 2025) in the names of its own code: CLIP's, with rotary positions that no tensor
shows.

Core models pool by attention and project; language and spatial models return their tokens, without a last norm.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.models.config import Pool, RotaryConfig
from vitrail.weights.convert import inspect
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Overrides
from vitrail.weights.convert.open_clip import move_projection, split_towers, to_timm
from vitrail.weights.convert.rename import convert_renamed, refuse_unknown, rename, require
from vitrail.weights.convert.timm_architectures import Architecture

RENAMES = [
    (r"^attn_pool\.probe$", "attn_pool.latent"),
    (r"^attn_pool\.attn\.", "attn_pool."),
    (r"^attn_pool\.layernorm\.", "attn_pool.norm."),
]


def matches(names: Mapping[str, Tensor]) -> bool:
    tower = {name.removeprefix("visual.") for name in names}
    is_clip = {"ln_pre.weight", "transformer.resblocks.0.ln_1.weight"} <= tower
    # CLIP has a last norm, and what follows it, in every version
    return is_clip and ("attn_pool.probe" in tower or tower.isdisjoint(("ln_post.weight", "ln_post.bias", "proj")))


def convert_checkpoint(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    tower, unused = split_towers(file)
    tensors = rename(to_timm(tower), RENAMES)
    core = "attn_pool.latent" in tensors
    if unused and not core:
        raise VitrailError(
            "the file has a text tower and an image tower without a last norm; neither CLIP nor the Perception Encoder has both"
        )
    prefix = "visual." if any(name.startswith("visual.") for name in file) else ""
    require(file, *(f"{prefix}{name}" for name in ("positional_embedding", *(("ln_post.weight",) if core else ()))))
    assumed: list[str] = []
    _split_pool(tensors)
    move_projection(tensors)
    width = inspect.require_shape(tensors, "patch_embed.proj.weight", 4)[0]
    if not core:
        assumed.append("rotary positions (as in the Perception Encoder; CLIP's tower would have ln_post)")
    facts = Architecture(
        heads=overrides.heads or _gigantic_heads(width, assumed),
        gelu=overrides.gelu or "exact",
        norm_eps=1e-5,
        pool=_pool(core, overrides, assumed),
        # the authors' code takes the index as it is at every image size; the class token is at 0
        rotary=RotaryConfig(base=10_000, coordinates="index", offset=float("cls_token" in tensors)),
        rotary_channels="columns-first",
        pool_heads=8,
        pool_prefix=True,
        position_resize="siglip2",  # bilinear
    )
    config, state, others = convert_renamed(tensors, facts, overrides, assumed)
    refuse_unknown(others)
    preprocess = inspect.assume_preprocess("PE", config, assumed)
    return ConvertedCheckpoint("perception_encoder", config, state, unused, assumed, preprocess)


def _split_pool(tensors: dict[str, Tensor]) -> None:
    """Split the joint projection of the attention pooling to that of the probe and that of the tokens."""
    for name in [name for name in tensors if re.match(r"attn_pool\.qkv\.", name)]:
        joint, part = tensors.pop(name), name.rpartition(".")[2]
        if joint.ndim == 0 or joint.shape[0] % 3:
            raise VitrailError(f"attn_pool.attn.in_proj_{part} must have rows of q, k and v, got {list(joint.shape)}")
        q, k, v = joint.chunk(3)
        tensors[f"attn_pool.q.{part}"], tensors[f"attn_pool.kv.{part}"] = q, torch.cat([k, v])


def _gigantic_heads(width: int, assumed: list[str]) -> int | None:
    if width != 1536:
        return None
    assumed.append("16 heads (of the size G; heads= overrides it)")
    return 16


def _pool(core: bool, overrides: Overrides, assumed: list[str]) -> Pool:
    if core:
        if overrides.pool not in (None, "map"):
            raise VitrailError(f"pool must be 'map' for a model with attention pooling, got {overrides.pool!r}; leave pool out")
        return "map"
    if overrides.pool is None:
        assumed.append("the pooling gap (the authors' code returns all tokens; pool= overrides it)")
    return overrides.pool or "gap"
