"""Infer a model's config from the tensors of a checkpoint, and record what had to be assumed."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.settings import ModelConfig, Pair, times
from vitrail.models.variants import SIZES

Origin = Literal["vitrail", "official", "timm", "huggingface", "torchvision"]


@dataclass(frozen=True)
class Wishes:
    """Settings given by the caller that the file does not record."""

    grid: Pair | None = None
    heads: int | None = None
    gelu: Literal["tanh", "exact"] | None = None
    pool: Literal["cls", "gap", "map"] | None = None


@dataclass(frozen=True)
class Found:
    """The model of a checkpoint file, with our tensor names."""

    origin: Origin
    config: ModelConfig
    state: dict[str, Tensor]
    left: list[str]  # tensors of the file that the model does not have
    assumed: list[str] = field(default_factory=list)  # what the file does not record, and how to override it
    preprocess: Preprocess | None = None
    labels: tuple[str, ...] | None = None
    facts: dict[str, Any] = field(default_factory=dict)  # training metadata


def count(names: Iterable[str], before: str, after: str = ".") -> int:
    """Count the numbered layers after a prefix."""
    numbers = {name[len(before) :].split(after)[0] for name in names if name.startswith(before)}
    return len({number for number in numbers if number.isdecimal()})


def heads(width: int, depth: int, mlp: int, wishes: Wishes, assumed: list[str], heads_in_file: int | None = None) -> int:
    if wishes.heads is not None:
        return wishes.heads
    if heads_in_file is not None:
        return heads_in_file
    known = [size.heads for size in SIZES.values() if (size.width, size.depth, size.mlp) == (width, depth, mlp)]
    guess = known[0] if known else max(1, width // 64)
    why = "as in the published size" if known else "64 channels per head, the usual"
    assumed.append(f"{guess} heads ({why}; heads= overrides it)")
    return guess


def gelu(usual: Literal["tanh", "exact"], wishes: Wishes, assumed: list[str]) -> Literal["tanh", "exact"]:
    if wishes.gelu is not None:
        return wishes.gelu
    assumed.append(f"GELU in its {usual} form (the origin's; gelu= overrides it)")
    return usual


def grid(rows: int, before: Iterable[int], wishes: Wishes, assumed: list[str], known: Pair | None = None) -> tuple[Pair, int]:
    """Infer the grid of a position table from its number of rows, and how many of them belong to prefix tokens.

    ``before`` are the possible numbers of those. The caller's grid or config.json's comes first, else a square is assumed.
    """
    options = list(before)
    given = wishes.grid or known
    if given is not None:
        for covered in options:
            if math.prod(given) == rows - covered:
                return given, covered
        raise VitrailError(
            f"a grid of {times(given)} does not fit a position table of {rows} rows; "
            f"grids that do: {_factors(rows - options[0])}"
        )
    for covered in options:
        side = math.isqrt(max(0, rows - covered))
        if side and side * side == rows - covered:
            assumed.append(f"a square grid of {side}x{side} (grid= overrides it)")
            return (side, side), covered
    raise VitrailError(
        f"the position table has {rows} rows, which is not a square grid; give it, for example "
        f"grid={_factors(rows - options[0]).split(' or ')[0]}"
    )


def _factors(cells: int) -> str:
    sides = [high for high in range(1, math.isqrt(max(0, cells)) + 1) if cells % high == 0]
    pairs = [pair for high in reversed(sides) for pair in dict.fromkeys([(high, cells // high), (cells // high, high)])]
    return " or ".join(times(pair) for pair in pairs[:4]) or "none"


def shape(file: Mapping[str, Tensor], name: str, axes: int) -> tuple[int, ...]:
    """Return the shape of a tensor; refuse a file without it or with another number of axes."""
    if name not in file:
        raise VitrailError(f"the file lacks {name}")
    if file[name].ndim != axes:
        raise VitrailError(f"{name} must have {axes} axes, got {list(file[name].shape)}")
    return tuple(file[name].shape)


def refuse(reason: str, format: str, instead: str) -> NoReturn:
    everything = "" if "vitrail" in instead or ".safetensors" in instead else ", or format='vitrail', which can hold everything"
    raise VitrailError(f"the {format} format cannot hold {reason}; {instead}{everything}")
