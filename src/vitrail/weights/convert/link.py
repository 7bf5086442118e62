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
from vitrail.models.settings import ViTConfig

Tensors = Mapping[str, Tensor]
Change = Callable[[list[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class Link:
    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    there: Change  # theirs to ours
    back: Change  # ours to theirs


def read(links: Iterable[Link], file: Tensors) -> tuple[dict[str, Tensor], list[str]]:
    """Convert a file's tensors to ours; also return the names that no map uses."""
    state: dict[str, Tensor] = {}
    used: set[str] = set()
    missing: list[str] = []
    for link in links:
        absent = [name for name in link.theirs if name not in file]
        missing += absent
        used |= set(link.theirs)
        if not absent:
            try:
                made = link.there([file[name] for name in link.theirs])
            except (RuntimeError, ValueError, IndexError) as error:
                shapes = ", ".join(f"{name} {list(file[name].shape)}" for name in link.theirs)
                raise VitrailError(f"{shapes} does not fit the other tensors: {str(error).splitlines()[-1]}") from None
            state |= zip(link.ours, made, strict=True)
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise VitrailError(f"the file lacks {', '.join(missing[:5])}{more}")
    return state, [name for name in file if name not in used]


def write(links: Iterable[Link], state: Tensors) -> dict[str, Tensor]:
    return {
        name: tensor.contiguous()
        for link in links
        for name, tensor in zip(link.theirs, link.back([state[ours] for ours in link.ours]), strict=True)
    }


def _each(change: Callable[[Tensor], Tensor], tensors: list[Tensor]) -> list[Tensor]:
    return [change(tensor) for tensor in tensors]


def _link(theirs: str, ours: str, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Link:
    return Link((theirs,), (ours,), partial(_each, there), partial(_each, back))


def same(theirs: str, ours: str) -> Link:
    return _link(theirs, ours, lambda x: x, lambda x: x)


def affine(theirs: str, ours: str, bias: bool = True) -> list[Link]:
    """Map a torch layer with a weight and optionally a bias."""
    return [same(f"{theirs}.{part}", f"{ours}.{part}") for part in (("weight", "bias") if bias else ("weight",))]


def moved(theirs: str, ours: str, pattern: str, **sizes: int) -> Link:
    """Map one tensor with its axes rearranged: ``moved(a, b, "d o -> o d")``."""
    there, back = pattern.split("->")
    return _link(
        theirs,
        ours,
        lambda x: rearrange(x, f"{there} -> {back}", **sizes),
        lambda x: rearrange(x, f"{back} -> {there}", **sizes),
    )


def joined(theirs: list[str], ours: str, pattern: str | None = None, **sizes: int) -> Link:
    """Map several of their tensors, each rearranged, to their concatenation."""
    there, back = pattern.split("->") if pattern else ("...", "...")
    return Link(
        tuple(theirs),
        (ours,),
        lambda parts: [torch.cat([rearrange(part, f"{there} -> {back}", **sizes) for part in parts])],
        lambda whole: [rearrange(part, f"{back} -> {there}", **sizes) for part in whole[0].chunk(len(theirs))],
    )


def positions(theirs: str, config: ViTConfig, ours: str = "positions.0") -> Link:
    """Map a position table (1, rows, d): the rows of the prefix tokens, then the grid in row-major order."""
    prefix, table = f"{ours}.prefix", f"{ours}.table.weight"
    covered, grid = config.covered, config.grid

    def there(parts: list[Tensor]) -> list[Tensor]:
        rows = parts[0].reshape(parts[0].shape[-2:])
        placed = rearrange(rows[covered:], "(h w) d -> h w d", h=grid[0], w=grid[1])
        return [rows[:covered], placed] if covered else [placed]

    def back(parts: list[Tensor]) -> list[Tensor]:
        return [torch.cat([*parts[:-1], parts[-1].flatten(0, 1)])[None]]

    return Link((theirs,), (prefix, table) if covered else (table,), there, back)
