"""Convert ViTDet's backbone (Li et al. 2022): transformers' VitDet by its config.json, and detectron2's by the shapes of its
relative positions, which show windows and heads. What a detector adds to it is not read."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from einops import rearrange
from torch import Tensor

from vitrail.config import parse_value
from vitrail.data.preprocess import imagenet_preprocess
from vitrail.errors import VitrailError
from vitrail.models.config import Gelu, Pair, ViTConfig, format_size
from vitrail.weights.convert import inspect
from vitrail.weights.convert.huggingface_families import GELUS
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Overrides
from vitrail.weights.convert.rename import refuse_unknown, rename
from vitrail.weights.convert.tensor_map import TensorMap, affine, copy, import_tensors

MODEL_TYPE = "vitdet"
RENAMES = [  # to detectron2's names
    (r"^(vitdet|backbone)\.", ""),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.projection\.", "patch_embed.proj."),
    (r"^encoder\.layer\.", "blocks."),
    (r"\.attention\.", ".attn."),
]
HEADS_KEY = "num_attention_heads"


def matches(names: Mapping[str, Tensor]) -> bool:
    """Return whether a file has detectron2's names; those of SAM, which has a neck besides, are not read."""
    return "blocks.0.attn.rel_pos_h" in names and not any(name.startswith("neck.") for name in names)


def convert_checkpoint(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    tensors, assumed = rename(file, RENAMES), list[str]()
    residual = [name for name in tensors if ".residual." in name]
    if residual:
        raise VitrailError(f"the file has residual blocks of convolutions ({residual[0]}), which Vitrail's models do not have")
    config = _infer(tensors, sidecar, overrides, assumed)
    table = tensors.get("pos_embed")
    if table is not None:
        rows, columns = config.table_grid or config.grid
        patches = table[0, -rows * columns :]  # without the class token of the pre-training
        tensors["pos_embed"] = rearrange(patches, "(y x) d -> y x d", y=rows)
    state, unused = import_tensors(_maps(config), tensors)
    refuse_unknown(unused)
    assumed.append("images padded to the input with the mean colour, ImageNet's mean and std (model.preprocess overrides it)")
    preprocess = replace(imagenet_preprocess(config.image), crop_pct=1.0, fit="pad").with_channels(config.channels)
    return ConvertedCheckpoint(
        "huggingface" if "model_type" in sidecar else "vitdet", config, state, unused, assumed, preprocess
    )


def _infer(tensors: Mapping[str, Tensor], fields: Mapping[str, Any], overrides: Overrides, assumed: list[str]) -> ViTConfig:
    width, channels, *patch = inspect.require_shape(tensors, "patch_embed.proj.weight", 4)
    depth, mlp = inspect.count_layers(tensors, "blocks."), inspect.require_shape(tensors, "blocks.0.mlp.fc1.weight", 2)[0]
    sides = [_offsets_grid(tensors, layer) for layer in range(depth)]
    table_grid = _table_grid(tensors, fields, patch, overrides, assumed)
    window, global_blocks = _windows(fields, sides)
    grid = _pair(fields, "image_size", patch) or max((side for side in sides if side), default=None) or table_grid
    if grid is None:
        raise VitrailError(
            "the file has no positions that show its image size, and no config.json with image_size is next to it"
        )
    for layer, side in enumerate(sides):
        expected = grid if window is None or layer + 1 in global_blocks else (window, window)
        if side not in (None, expected):
            raise VitrailError(
                f"the relative positions of block {layer} are those of {format_size(side)} patches, instead of "
                f"{format_size(expected)}"
            )
    head_width = tensors["blocks.0.attn.rel_pos_h"].shape[1] if sides[0] else None
    heads = parse_value(fields[HEADS_KEY], int, f"{HEADS_KEY} in config.json") if HEADS_KEY in fields else None
    return ViTConfig(
        width=width,
        depth=depth,
        mlp=mlp,
        heads=inspect.infer_heads(width, depth, mlp, overrides, assumed, heads or (head_width and width // head_width)),
        patch=(patch[0], patch[1]),
        image=(grid[0] * patch[0], grid[1] * patch[1]),
        channels=channels,
        classes=0,
        position="none" if table_grid is None else "learned1d",
        position_resize="huggingface",
        table_grid=None if table_grid == grid else table_grid,
        pool="gap",
        final_norm="none",
        norm_eps=parse_value(fields.get("layer_norm_eps", 1e-6), float, "layer_norm_eps in config.json"),
        gelu=overrides.gelu or _gelu(fields),
        qkv_bias="blocks.0.attn.qkv.bias" in tensors,
        window=window,
        global_blocks=global_blocks if window else None,
        relative_axes=sides[0] is not None,
    )


def _maps(config: ViTConfig) -> list[TensorMap]:
    maps = affine("patch_embed.proj", "embed.project")
    maps += [copy("pos_embed", "positions.0.table.weight")] if config.position == "learned1d" else []
    for layer in range(config.depth):
        theirs, ours = f"blocks.{layer}", f"blocks.{layer}"
        maps += affine(f"{theirs}.norm1", f"{ours}.norm1") + affine(f"{theirs}.norm2", f"{ours}.norm2")
        maps += affine(f"{theirs}.attn.qkv", f"{ours}.attention.qkv", config.qkv_bias)
        maps += affine(f"{theirs}.attn.proj", f"{ours}.attention.out")
        maps += affine(f"{theirs}.mlp.fc1", f"{ours}.mlp.up") + affine(f"{theirs}.mlp.fc2", f"{ours}.mlp.down")
        if config.relative_axes:
            maps.append(copy(f"{theirs}.attn.rel_pos_h", f"{ours}.attention.relative.rows"))
            maps.append(copy(f"{theirs}.attn.rel_pos_w", f"{ours}.attention.relative.columns"))
    return maps


def _offsets_grid(tensors: Mapping[str, Tensor], layer: int) -> Pair | None:
    """Return the grid that the relative positions of a block are made for; None without any."""
    if f"blocks.{layer}.attn.rel_pos_h" not in tensors:
        return None
    rows, columns = (inspect.require_shape(tensors, f"blocks.{layer}.attn.rel_pos_{axis}", 2)[0] for axis in "hw")
    return (rows + 1) // 2, (columns + 1) // 2


def _table_grid(
    tensors: Mapping[str, Tensor], fields: Mapping[str, Any], patch: list[int], overrides: Overrides, assumed: list[str]
) -> Pair | None:
    """Return the grid of the position table, which may have a row for a class token."""
    if "pos_embed" not in tensors:
        return None
    rows = inspect.require_shape(tensors, "pos_embed", 3)[1]
    return inspect.infer_grid(rows, [1, 0], overrides, assumed, _pair(fields, "pretrain_image_size", patch))[0]


def _windows(fields: Mapping[str, Any], sides: list[Pair | None]) -> tuple[int | None, tuple[int, ...]]:
    """Return the side of the windows and the blocks without, by config.json or by two sizes of relative positions."""
    if "window_size" in fields:
        window = parse_value(fields["window_size"], int, "window_size in config.json")
        blocks = fields.get("window_block_indices", [])
        windowed = parse_value(blocks, tuple[int, ...], "window_block_indices in config.json")
        indices = tuple(layer for layer in range(len(sides)) if layer not in windowed)
    else:
        sizes = sorted({side for side in sides if side is not None})
        if len(sizes) > 2 or (len(sizes) == 2 and sizes[0][0] != sizes[0][1]):
            raise VitrailError(
                f"relative positions are those of windows and of one grid, got {', '.join(map(format_size, sizes))}"
            )
        window = sizes[0][0] if len(sizes) == 2 else 0
        indices = tuple(layer for layer, side in enumerate(sides) if side != (window, window))
    has_windows = window > 0 and len(indices) < len(sides)
    return (window if has_windows else None), tuple(layer + 1 for layer in indices)


def _pair(fields: Mapping[str, Any], name: str, patch: list[int]) -> Pair | None:
    """Return the grid of an image size of config.json."""
    if name not in fields:
        return None
    size: Pair = parse_value(fields[name], Pair, f"{name} in config.json")
    return size[0] // patch[0], size[1] // patch[1]


def _gelu(fields: Mapping[str, Any]) -> Gelu:
    act = fields.get("hidden_act", "gelu")
    if not isinstance(act, str) or act not in GELUS:
        raise VitrailError(f"hidden_act in config.json must be one of {', '.join(GELUS)}, got {str(act)[:40]!r}")
    return GELUS[act]
