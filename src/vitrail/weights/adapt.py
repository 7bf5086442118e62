"""Adapt a model's weights to another image size, patch size, or number of channels or classes, and record each change."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.layers.position import PositionResize, resize_table
from vitrail.layers.relative_axes import resize_axis
from vitrail.layers.relative_bias import resize_offsets
from vitrail.models.config import ModelConfig, Pair, ResNetConfig, ViTConfig, check_image_size, format_size


@dataclass
class WeightChanges:
    """The changes made to the weights, by tensor."""

    resized: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)


def adapt(
    config: ModelConfig,
    state: dict[str, Tensor],
    *,
    image: Pair | None = None,
    patch: Pair | None = None,
    channels: int | None = None,
    classes: int | None = None,
    rule: PositionResize | None = None,
) -> tuple[ModelConfig, dict[str, Tensor], WeightChanges]:
    """Return config and weights adapted to these settings; without ``rule``, positions are resized as in the file's origin."""
    changes, state = WeightChanges(), dict(state)
    steps: list[tuple[Any, Callable[..., ModelConfig]]] = [
        (channels, _change_channels),
        (patch, _change_patch),
        (classes, _change_classes),
    ]
    for value, step in steps:
        if value is not None:
            config = step(config, state, value, changes)
    if isinstance(config, ResNetConfig):
        return replace(config, image=image or config.image), state, changes
    size = image or config.image
    if size != config.image or patch is not None:
        config = _resize_positions(config, state, size, rule or config.position_resize, changes)
    return config, state, changes


def _resize_positions(
    config: ViTConfig, state: dict[str, Tensor], image: Pair, rule: PositionResize, changes: WeightChanges
) -> ViTConfig:
    check_image_size(config, image)
    new = replace(config, image=image, position_grid=None)
    _resize_axes(config, state, new.grid, changes)
    if config.table_grid is not None:  # which the model resizes itself
        return new
    old_grid = _table_grid(config, state)
    if config.position == "relative" and new.grid != old_grid:
        raise VitrailError(
            f"relative positions are offsets on one fixed grid and cannot be resized; keep image={format_size(config.image)}"
        )
    if config.uses_position_grid:
        original_grid = config.position_grid or config.grid
        new = replace(new, position_grid=None if original_grid == new.grid else original_grid)
        if new.grid != config.grid or config.position_grid:
            kind = "rotary" if config.rotation else config.position
            changes.resized.append(f"positions: {kind} of {format_size(original_grid)} interpolated to {format_size(new.grid)}")
    if new.grid == old_grid:
        return new
    for name in [name for name in state if name.startswith(("positions.", "relative_bias."))]:
        table = _resize_position_tensor(name, state[name], new, rule)
        if table is not state[name]:
            changes.resized.append(f"{name}: {_format_grid(name, state[name])} to {_format_grid(name, table)} as in {rule}")
            state[name] = table
    return new


def _resize_axes(config: ViTConfig, state: dict[str, Tensor], grid: Pair, changes: WeightChanges) -> None:
    """Resize the relative positions along the axes of the global blocks; windows stay as large as they are."""
    for layer, window in enumerate(config.windows):
        for name, side in zip(("rows", "columns"), grid, strict=True):
            key = f"blocks.{layer}.attention.relative.{name}"
            if window is None and key in state and len(state[key]) != 2 * side - 1:
                changes.resized.append(f"{key}: {len(state[key])} offsets to {2 * side - 1}, linearly")
                state[key] = resize_axis(state[key], 2 * side - 1)


def _table_grid(config: ViTConfig, state: dict[str, Tensor]) -> Pair:
    """Return the grid of the learned table, which after a change of patch size is not the config's."""
    table = state.get("positions.0.table.weight")
    if table is not None:
        return (table.shape[0], table.shape[1])
    rows, columns = state.get("positions.0.table.rows"), state.get("positions.0.table.columns")
    if rows is not None and columns is not None:
        return (rows.shape[0], columns.shape[0])
    offsets = state.get("relative_bias.0.table")
    return config.grid if offsets is None else ((offsets.shape[1] + 1) // 2, (offsets.shape[2] + 1) // 2)


def _resize_position_tensor(name: str, tensor: Tensor, config: ViTConfig, rule: PositionResize) -> Tensor:
    grid = config.grid
    match name.rpartition(".")[2]:
        case "table" if config.relative_bias:
            return resize_offsets(tensor, grid, config.relative_bias.resize)
        case "weight" if name.startswith("positions."):
            return resize_table(tensor, grid, rule)
        case "rows":
            return resize_table(tensor[:, None], (grid[0], 1), rule)[:, 0] if len(tensor) != grid[0] else tensor
        case "columns":
            return resize_table(tensor[None], (1, grid[1]), rule)[0] if len(tensor) != grid[1] else tensor
    return tensor  # the rows of the prefix tokens are unchanged


def _format_grid(name: str, tensor: Tensor) -> str:
    return format_size(tuple(tensor.shape[1:] if name.startswith("relative_bias.") else tensor.shape[:-1]))


def _change_patch(config: ModelConfig, state: dict[str, Tensor], patch: Pair, changes: WeightChanges) -> ModelConfig:
    if not isinstance(config, ViTConfig) or config.stem or config.patch_norm == "both":
        raise VitrailError("the patch size can be changed only for a Vision Transformer without a stem or norm of its pixels")
    if patch == config.patch:
        return config
    if min(patch) < 1 or max(patch) > 2**12:
        raise VitrailError(f"patch must be from 1 to 4,096, got {format_size(patch)}; try patch={format_size(config.patch)}")
    grid = tuple(max(1, round(side / step)) for side, step in zip(config.image, patch, strict=True))
    name = "embed.project.weight"
    state[name] = resample_patch(state[name], patch)
    changes.resized.append(
        f"{name}: patches of {format_size(config.patch)} to {format_size(patch)} by pseudo-inverse resampling"
    )
    image = (grid[0] * patch[0], grid[1] * patch[1])
    fixed_grid = config.grid if config.uses_position_grid else None
    return replace(config, patch=patch, image=image, position_grid=config.position_grid or fixed_grid)


def resample_patch(weight: Float[Tensor, "d c p q"], patch: Pair) -> Float[Tensor, "d c r s"]:
    """Resample patch kernels by pseudo-inverse resize (FlexiViT; Beyer et al. 2023): w = pinv(B^T) w_old, with B the bilinear
    resize as a matrix, so that a resized patch has, as nearly as possible, the old embedding."""
    old = (weight.shape[2], weight.shape[3])
    unit_patches = torch.eye(old[0] * old[1], dtype=torch.float64).reshape(-1, 1, *old)
    resized = rearrange(F.interpolate(unit_patches, patch, mode="bilinear"), "old 1 r s -> old (r s)")
    inverse = torch.linalg.pinv(resized)
    flat = inverse @ rearrange(weight.double(), "d c p q -> (p q) (d c)")
    return rearrange(flat, "(r s) (d c) -> d c r s", r=patch[0], d=weight.shape[0]).to(weight.dtype).contiguous()


def _change_channels(config: ModelConfig, state: dict[str, Tensor], channels: int, changes: WeightChanges) -> ModelConfig:
    if channels == config.channels:
        return config
    if channels < 1:
        raise VitrailError(f"channels must be at least 1, got {channels}; try channels=1")
    name = next(name for name in ("conv.weight", "stem.conv.weight", "embed.project.weight") if name in state)
    if channels % config.channels == 0:
        weight = repeat(state[name], "d c p q -> d (n c) p q", n=channels // config.channels)
        how = "repeated"
    else:
        weight = repeat(reduce(state[name], "d c p q -> d p q", "mean"), "d p q -> d c p q", c=channels)
        how = "averaged"
    state[name] = (weight * (config.channels / channels)).contiguous()
    changes.resized.append(
        f"{name}: {config.channels} channels {how} to {channels} and scaled, so that an image with equal channels "
        "has the same embedding"
    )
    return replace(config, channels=channels)


def _change_classes(config: ModelConfig, state: dict[str, Tensor], classes: int, changes: WeightChanges) -> ModelConfig:
    if classes == config.classes:
        return config
    for name in [name for name in state if name.startswith("head.")]:
        del state[name]
        changes.unused.append(name)
    new = replace(config, classes=classes)
    if isinstance(new, ViTConfig):
        new = replace(new, head="linear", head_hidden=None)  # the paper drops the whole pre-training head
        width = new.feature_width
    else:
        width = new.width * 4 * 2 ** (len(new.stages) - 1)
    if classes:
        state["head.weight"], state["head.bias"] = torch.zeros(classes, width), torch.zeros(classes)
        changes.new += [f"head.weight: zeros for {classes} classes", "head.bias: zeros"]
    return new
