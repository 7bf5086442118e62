"""Maps between the tensors of another library's files and ours, in both directions.

A format is a list of maps for a given model; reading applies them, writing inverts them, so the two cannot disagree.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from einops import rearrange
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.models.config import ViTConfig

Tensors = Mapping[str, Tensor]
Transform = Callable[[list[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class TensorMap:
    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    to_ours: Transform  # theirs to ours
    to_theirs: Transform  # ours to theirs


def import_tensors(maps: Iterable[TensorMap], file: Tensors) -> tuple[dict[str, Tensor], list[str]]:
    """Convert a file's tensors to ours; also return the names that no map uses."""
    state: dict[str, Tensor] = {}
    used: set[str] = set()
    missing: list[str] = []
    for tensor_map in maps:
        absent = [name for name in tensor_map.theirs if name not in file]
        missing += absent
        used |= set(tensor_map.theirs)
        if not absent:
            try:
                converted = tensor_map.to_ours([file[name] for name in tensor_map.theirs])
            except (RuntimeError, ValueError, IndexError) as error:
                shapes = ", ".join(f"{name} {list(file[name].shape)}" for name in tensor_map.theirs)
                raise VitrailError(f"{shapes} does not fit the other tensors: {str(error).splitlines()[-1]}") from None
            state |= zip(tensor_map.ours, converted, strict=True)
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise VitrailError(f"the file lacks {', '.join(missing[:5])}{more}")
    return state, [name for name in file if name not in used]


def export_tensors(maps: Iterable[TensorMap], state: Tensors) -> dict[str, Tensor]:
    return {
        name: tensor.contiguous()
        for tensor_map in maps
        for name, tensor in zip(tensor_map.theirs, tensor_map.to_theirs([state[ours] for ours in tensor_map.ours]), strict=True)
    }


def _apply_each(transform: Callable[[Tensor], Tensor], tensors: list[Tensor]) -> list[Tensor]:
    return [transform(tensor) for tensor in tensors]


def _single(theirs: str, ours: str, to_ours: Callable[[Tensor], Tensor], to_theirs: Callable[[Tensor], Tensor]) -> TensorMap:
    return TensorMap((theirs,), (ours,), partial(_apply_each, to_ours), partial(_apply_each, to_theirs))


def copy(theirs: str, ours: str) -> TensorMap:
    return _single(theirs, ours, lambda x: x, lambda x: x)


def affine(theirs: str, ours: str, bias: bool = True) -> list[TensorMap]:
    """Map a torch layer with a weight and optionally a bias."""
    return [copy(f"{theirs}.{part}", f"{ours}.{part}") for part in (("weight", "bias") if bias else ("weight",))]


def permute(theirs: str, ours: str, pattern: str, **sizes: int) -> TensorMap:
    """Map one tensor with its axes rearranged: ``permute(a, b, "d o -> o d")``."""
    their_axes, our_axes = pattern.split("->")
    return _single(
        theirs,
        ours,
        lambda x: rearrange(x, f"{their_axes} -> {our_axes}", **sizes),
        lambda x: rearrange(x, f"{our_axes} -> {their_axes}", **sizes),
    )


def concat(theirs: list[str], ours: str, pattern: str | None = None, **sizes: int) -> TensorMap:
    """Map several of their tensors, each rearranged, to their concatenation."""
    their_axes, our_axes = pattern.split("->") if pattern else ("...", "...")
    return TensorMap(
        tuple(theirs),
        (ours,),
        lambda parts: [torch.cat([rearrange(part, f"{their_axes} -> {our_axes}", **sizes) for part in parts])],
        lambda whole: [rearrange(part, f"{our_axes} -> {their_axes}", **sizes) for part in whole[0].chunk(len(theirs))],
    )


def position_table(theirs: str, config: ViTConfig, ours: str = "positions.0") -> TensorMap:
    """Map a position table (1, rows, d): the rows of the prefix tokens, then the grid in row-major order."""
    prefix, table = f"{ours}.prefix", f"{ours}.table.weight"
    num_prefix, grid = config.prefix_positions, config.grid

    def to_ours(parts: list[Tensor]) -> list[Tensor]:
        rows = parts[0].reshape(parts[0].shape[-2:])
        grid_rows = rearrange(rows[num_prefix:], "(h w) d -> h w d", h=grid[0], w=grid[1])
        return [rows[:num_prefix], grid_rows] if num_prefix else [grid_rows]

    def to_theirs(parts: list[Tensor]) -> list[Tensor]:
        return [torch.cat([*parts[:-1], parts[-1].flatten(0, 1)])[None]]

    return TensorMap((theirs,), (prefix, table) if num_prefix else (table,), to_ours, to_theirs)
