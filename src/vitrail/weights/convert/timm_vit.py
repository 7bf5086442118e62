"""Vision Transformers in the tensor names of ``timm_names``: their config, and the map of every tensor to ours.

Files of many projects are renamed to these names first, so that each feature is inferred and mapped in one place.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.layers.position import resize_table
from vitrail.layers.relative_bias import OffsetResize
from vitrail.models.config import Pair, RelativeBiasConfig, ViTConfig, format_size
from vitrail.weights.convert import inspect
from vitrail.weights.convert.inspect import Overrides
from vitrail.weights.convert.tensor_map import TensorMap, affine, copy, import_tensors, permute, position_table
from vitrail.weights.convert.timm_architectures import Architecture, RotaryChannels
from vitrail.weights.convert.timm_convolutions import infer_stem, stem_maps, stem_root
from vitrail.weights.convert.timm_names import has_rms_norms

OFFSETS = "relative_position_bias_table"
POOL_NAMES = {"q": "q", "kv": "kv", "proj": "out", "norm": "norm", "mlp.fc1": "mlp.up", "mlp.fc2": "mlp.down"}


def convert_vit(
    tensors: Mapping[str, Tensor], facts: Architecture, size: Pair | None, overrides: Overrides, assumed: list[str]
) -> tuple[ViTConfig, dict[str, Tensor], list[str]]:
    """Return config and weights of ours, and the tensors that were not used; ``size``: the recorded image size."""
    config = infer_vit(tensors, facts, size, overrides, assumed)
    arranged = dict(tensors)
    if config.rotation and not config.rotation.mixed:
        arrange_rotary_channels(arranged, config, facts.rotary_channels)
    if config.rotation and config.rotation.mixed and facts.rotary_channels == "columns-first":
        arranged["rope.freqs"] = arranged["rope.freqs"].flip(0)
    if facts.resizes_positions and "pos_embed" in arranged:
        arranged["pos_embed"] = _resize_positions(arranged["pos_embed"], config, assumed)
    state, unused = import_tensors(vit_maps(config), arranged)
    return config, state, unused


def infer_vit(
    file: Mapping[str, Tensor], facts: Architecture, size: Pair | None, overrides: Overrides, assumed: list[str]
) -> ViTConfig:
    """Infer the config from tensors, and from what they do not show."""
    width, channels, patch_height, patch_width = inspect.require_shape(file, "patch_embed.proj.weight", 4)
    depth, mlp = inspect.count_layers(file, "blocks."), inspect.require_shape(file, "blocks.0.mlp.fc2.weight", 2)[1]
    if facts.width not in (None, width):
        raise VitrailError(f"config.json describes a model {facts.width} wide, but the weights are {width} wide")
    stem = infer_stem(file)
    class_token = "cls_token" in file
    registers = inspect.require_shape(file, "reg_token", 3)[1] if "reg_token" in file else 0
    prefix = class_token + registers
    stride = (patch_height * (stem.stride if stem else 1), patch_width * (stem.stride if stem else 1))
    grid, num_prefix = _infer_grid(file, facts, size, stride, prefix, overrides, assumed)
    norm = file.get("blocks.0.attn.q_norm.weight")
    heads_by_norm = None if norm is None else width // norm.shape[0]
    hidden = file["pre_logits.fc.weight"].shape[0] if "pre_logits.fc.weight" in file else None
    rotary_grid = facts.rotary_grid if facts.rotary and facts.rotary_grid != grid else None
    return ViTConfig(
        width=width,
        depth=depth,
        mlp=mlp,
        heads=facts.heads or inspect.infer_heads(width, depth, mlp, overrides, assumed, heads_by_norm),
        patch=(patch_height, patch_width),
        image=(grid[0] * stride[0], grid[1] * stride[1]),
        channels=file[f"{stem_root(stem)}.conv.weight"].shape[1] if stem else channels,
        classes=file["head.weight"].shape[0] if "head.weight" in file else 0,
        stem=stem,
        position="learned1d" if "pos_embed" in file else "none",
        position_prefix="none" if not num_prefix else "all" if num_prefix == prefix and registers else "cls",
        position_resize=facts.position_resize,
        position_grid=rotary_grid,
        pool=facts.pool,
        class_token=class_token if class_token != facts.pool.startswith("cls") else None,
        registers=registers,
        head="mlp" if hidden else "linear",
        head_hidden=hidden if hidden != width else None,
        norm=facts.norm,
        final_norm="pooled" if "fc_norm.weight" in file else "tokens" if "norm.weight" in file else "none",
        norm_eps=facts.norm_eps,
        gelu=facts.gelu,
        qkv_bias="blocks.0.attn.qkv.bias" in file,
        qk_norm=norm is not None,
        layer_scale=1e-5 if "blocks.0.ls1.gamma" in file else None,
        patch_bias="patch_embed.proj.bias" in file,
        embed_norm="norm_pre.weight" in file,
        mlp_kind="swiglu" if has_gated_mlp(file) else "gelu",
        rotary=facts.rotary,
        relative_bias=_infer_relative_bias(file, facts),
        norm_kind="rms" if has_rms_norms(file) else "layer",
        patch_norm=_infer_patch_norm(file),
        attention_norm="blocks.0.attn.norm.weight" in file,
        mlp_norm="blocks.0.mlp.norm.weight" in file,
        key_bias=_has_key_bias(file, width),
        out_bias="blocks.0.attn.proj.bias" in file,
        **_infer_pool_sizes(file, facts, mlp, prefix),
    )


def has_gated_mlp(file: Mapping[str, Tensor]) -> bool:
    """Return whether the first layer of the MLPs has twice as many outputs as the second has inputs: a gate and a value."""
    up, down = (inspect.require_shape(file, f"blocks.0.mlp.{layer}.weight", 2) for layer in ("fc1", "fc2"))
    return up[0] == 2 * down[1]


def vit_maps(c: ViTConfig) -> list[TensorMap]:
    """Return the map of every tensor of a Vision Transformer."""
    maps = affine("patch_embed.proj", "embed.project", c.patch_bias)
    if c.patch_norm == "both":
        maps += _norm("patch_embed.pixel_norm", "embed.pixel_norm.norm", c)
    if c.patch_norm != "none":
        maps += _norm("patch_embed.norm", "embed.norm", c)
    if c.position != "none":
        maps.append(position_table("pos_embed", c))
    if c.stem:
        maps += stem_maps(c.stem)
    if c.has_class_token:
        maps.append(permute("cls_token", "cls", "1 1 d -> d"))
    if c.registers:
        maps.append(permute("reg_token", "registers", "1 r d -> r d"))
    if c.rotation and c.rotation.mixed:
        maps.append(_frequencies(c))
    maps += _relative_bias_maps(c)
    for layer in range(c.depth):
        maps += _block_maps(f"blocks.{layer}", f"blocks.{layer}", c)
    if c.embed_norm:
        maps += _norm("norm_pre", "embed_norm", c)
    if c.final_norm != "none":
        maps += _norm("fc_norm", "pooled_norm", c) if c.final_norm == "pooled" else _norm("norm", "norm", c)
    if c.pool == "map":
        maps.append(permute("attn_pool.latent", "pool.probe", "1 1 d -> d"))
        for theirs, ours in POOL_NAMES.items():
            maps += affine(f"attn_pool.{theirs}", f"pool.{ours}", bias=theirs != "norm" or c.norm_kind == "layer")
    if c.head == "mlp":
        maps += affine("pre_logits.fc", "head.0")
    return maps + (affine("head", "head.2" if c.head == "mlp" else "head") if c.classes else [])


def block_maps(theirs: str, ours: str) -> list[TensorMap]:
    """Return the maps of a plain block, which a decoder has."""
    names = {"norm1": "norm1", "norm2": "norm2", "attn.qkv": "attention.qkv", "attn.proj": "attention.out"}
    names |= {"mlp.fc1": "mlp.up", "mlp.fc2": "mlp.down"}
    return [tensor_map for name, ours_name in names.items() for tensor_map in affine(f"{theirs}.{name}", f"{ours}.{ours_name}")]


def _block_maps(theirs: str, ours: str, c: ViTConfig) -> list[TensorMap]:
    maps = _norm(f"{theirs}.norm1", f"{ours}.norm1", c) + _norm(f"{theirs}.norm2", f"{ours}.norm2", c)
    maps += affine(f"{theirs}.attn.qkv", f"{ours}.attention.qkv", c.qkv_bias)
    maps += affine(f"{theirs}.attn.proj", f"{ours}.attention.out", c.out_bias)
    maps += affine(f"{theirs}.mlp.fc1", f"{ours}.mlp.up", c.out_bias)
    maps += affine(f"{theirs}.mlp.fc2", f"{ours}.mlp.down", c.out_bias)
    if c.qk_norm:
        maps += _norm(f"{theirs}.attn.q_norm", f"{ours}.attention.norm_q", c)
        maps += _norm(f"{theirs}.attn.k_norm", f"{ours}.attention.norm_k", c)
    if c.attention_norm:
        maps += _norm(f"{theirs}.attn.norm", f"{ours}.attention.norm", c)
    if c.mlp_norm:
        maps += _norm(f"{theirs}.mlp.norm", f"{ours}.mlp.norm", c)
    if c.layer_scale is not None:
        maps += [copy(f"{theirs}.ls{part}.gamma", f"{ours}.scale{part}.scale") for part in (1, 2)]
    return maps


def arrange_rotary_channels(
    tensors: dict[str, Tensor], config: ViTConfig, channels: RotaryChannels, inverse: bool = False
) -> None:
    """Reorder the channels of queries and keys so that those that turn together are where ours are.

    The product of a query and a key is the same in every order of the channels, so nothing else changes.
    """
    order = channel_order(config.width // config.heads, channels)
    order = order.argsort() if inverse else order
    every = torch.arange(config.width)
    turned = rearrange(rearrange(every, "(h k) -> h k", h=config.heads)[:, order], "h k -> (h k)")
    rows = {"weight": (turned, turned, every), "bias": (turned, turned, every) if config.key_bias else (turned, every)}
    for layer in range(config.depth):
        for part, blocks in rows.items():
            name = f"blocks.{layer}.attn.qkv.{part}"
            if name in tensors:
                if tensors[name].shape[0] != len(blocks) * config.width:
                    raise VitrailError(f"{name} must have {len(blocks) * config.width} rows, got {tensors[name].shape[0]}")
                tensors[name] = tensors[name][torch.cat([start * config.width + row for start, row in enumerate(blocks)])]
            for norm in (f"blocks.{layer}.attn.q_norm.{part}", f"blocks.{layer}.attn.k_norm.{part}"):
                if norm in tensors and len(tensors[norm]) == len(order):
                    tensors[norm] = tensors[norm][order]


def channel_order(width: int, channels: RotaryChannels) -> Tensor:
    """Return which channel of a head of theirs is at each place of ours."""
    order = torch.arange(width)
    match channels:
        case "columns-first":
            return order.roll(width // 2)
        case "halves":
            return rearrange(order, "(two pair) -> (pair two)", two=2)
    return order


def _norm(theirs: str, ours: str, c: ViTConfig) -> list[TensorMap]:
    return affine(theirs, ours, bias=c.norm_kind == "layer")


def _infer_grid(
    file: Mapping[str, Tensor],
    facts: Architecture,
    size: Pair | None,
    stride: Pair,
    prefix: int,
    overrides: Overrides,
    assumed: list[str],
) -> tuple[Pair, int]:
    """Return the grid of patches, and how many prefix tokens have a row in the position table."""
    recorded = None if size is None else (size[0] // stride[0], size[1] // stride[1])
    if "pos_embed" in file:
        rows = inspect.require_shape(file, "pos_embed", 3)[1]
        if facts.resizes_positions and recorded is not None:
            return recorded, 0
        prefix_counts = list(dict.fromkeys((prefix, int("cls_token" in file), 0)))
        if recorded is not None and math.prod(recorded) not in [rows - count for count in prefix_counts]:
            recorded = None  # the weights were resized after their size was recorded
        return inspect.infer_grid(rows, prefix_counts, overrides, assumed, recorded, stride)
    grid = overrides.grid or recorded or overrides.image_grid(stride)
    offsets = next((tensor for name, tensor in file.items() if name.endswith(OFFSETS) and tensor.ndim == 2), None)
    if offsets is not None:
        entries = offsets.shape[0] - 3 * ("cls_token" in file)
        if grid is None or (2 * grid[0] - 1) * (2 * grid[1] - 1) != entries:
            side = (math.isqrt(entries) + 1) // 2
            if (2 * side - 1) ** 2 != entries:
                raise VitrailError(f"{OFFSETS} has {entries} offsets, which are not those of a square grid; give grid=")
            grid = (side, side)
    if grid is None:
        side = 256 // stride[0] * stride[0]
        grid = (side // stride[0], side // stride[1])
        assumed.append(f"images of {side} (its positions fit any size; image= overrides it)")
    return grid, 0


def _infer_relative_bias(file: Mapping[str, Tensor], facts: Architecture) -> RelativeBiasConfig | None:
    shared = any(name.startswith("shared_rel_pos.") for name in file)
    root = "shared_rel_pos" if shared else "blocks.0.attn.rel_pos"
    resize: OffsetResize = "huggingface" if facts.position_resize == "huggingface" else "timm"
    if f"{root}.{OFFSETS}" in file:
        return RelativeBiasConfig("table", shared, resize=resize)
    if f"{root}.mlp.fc1.weight" in file:
        return RelativeBiasConfig("mlp", shared, inspect.require_shape(file, f"{root}.mlp.fc1.weight", 2)[0])
    return None


def _infer_patch_norm(file: Mapping[str, Tensor]) -> Any:
    if "patch_embed.norm.weight" not in file:
        return "none"
    return "both" if "patch_embed.pixel_norm.weight" in file else "output"


def _has_key_bias(file: Mapping[str, Tensor], width: int) -> bool:
    bias = file.get("blocks.0.attn.qkv.bias")
    return bias is None or tuple(bias.shape) != (2 * width,)


def _infer_pool_sizes(file: Mapping[str, Tensor], facts: Architecture, mlp: int, prefix: int) -> dict[str, Any]:
    if facts.pool != "map":
        return {}
    hidden = inspect.require_shape(file, "attn_pool.mlp.fc1.weight", 2)[0]
    heads = facts.pool_heads if facts.pool_heads != facts.heads else None
    return {"pool_heads": heads, "pool_mlp": hidden if hidden != mlp else None, "pool_prefix": facts.pool_prefix and prefix > 0}


def _resize_positions(table: Tensor, config: ViTConfig, assumed: list[str]) -> Tensor:
    """Resize the table of a model that takes images of any size to the size that it is evaluated with."""
    side = math.isqrt(table.shape[1])
    if side * side != table.shape[1]:
        raise VitrailError(f"pos_embed must have a square grid, got {table.shape[1]} rows")
    if (side, side) == config.grid:
        return table
    assumed.append(f"positions of {side}x{side} resized to {format_size(config.grid)} (its model takes images of any size)")
    square = rearrange(table[0], "(h w) d -> h w d", h=side)
    return rearrange(resize_table(square, config.grid, config.position_resize), "h w d -> 1 (h w) d")


def _frequencies(c: ViTConfig) -> TensorMap:
    """Map RoPE-ViT's learned frequencies (axis, layer, head, pair) to one tensor for each layer."""
    return TensorMap(
        ("rope.freqs",),
        tuple(f"rotary.{layer}.frequencies" for layer in range(c.depth)),
        lambda parts: list(parts[0].reshape(2, c.depth, c.heads, -1).unbind(1)),
        lambda parts: [torch.stack(parts, dim=1)],
    )


def _relative_bias_maps(c: ViTConfig) -> list[TensorMap]:
    if c.relative_bias is None:
        return []
    maps: list[TensorMap] = []
    for layer in range(1 if c.relative_bias.shared else c.depth):
        theirs, ours = f"blocks.{layer}.attn.rel_pos", f"relative_bias.{layer}"
        theirs = "shared_rel_pos" if c.relative_bias.shared else theirs
        if c.relative_bias.kind == "table":
            maps.append(_offset_table(f"{theirs}.{OFFSETS}", ours, c))
        else:
            maps += affine(f"{theirs}.mlp.fc1", f"{ours}.up") + affine(f"{theirs}.mlp.fc2", f"{ours}.down")
    return maps


def _offset_table(theirs: str, ours: str, c: ViTConfig) -> TensorMap:
    """Map a table (offsets, heads), whose last three rows are the class token's, to ours (heads, rows, columns)."""
    rows, columns = 2 * c.grid[0] - 1, 2 * c.grid[1] - 1

    def to_ours(parts: list[Tensor]) -> list[Tensor]:
        offsets, rest = parts[0][: rows * columns], parts[0][rows * columns :]
        table = rearrange(offsets, "(y x) h -> h y x", y=rows, x=columns)
        return [table, rearrange(rest, "three h -> h three", three=3)] if c.has_class_token else [table]

    def to_theirs(parts: list[Tensor]) -> list[Tensor]:
        return [torch.cat([rearrange(parts[0], "h y x -> (y x) h"), *(part.T for part in parts[1:])])]

    names = (f"{ours}.table", f"{ours}.class_token") if c.has_class_token else (f"{ours}.table",)
    return TensorMap((theirs,), names, to_ours, to_theirs)
