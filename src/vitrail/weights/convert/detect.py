"""What a checkpoint says about its model, and what has to be assumed."""

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
    """What the caller knows better than the file."""

    grid: Pair | None = None
    heads: int | None = None
    gelu: Literal["tanh", "exact"] | None = None
    pool: Literal["cls", "gap", "map"] | None = None


@dataclass(frozen=True)
class Found:
    """A model as a file describes it, in our names."""

    origin: Origin
    config: ModelConfig
    state: dict[str, Tensor]
    left: list[str]  # names in the file that have no place in the model
    assumed: list[str] = field(default_factory=list)  # what the file does not say, and how to say otherwise
    preprocess: Preprocess | None = None
    labels: tuple[str, ...] | None = None
    facts: dict[str, Any] = field(default_factory=dict)  # what is said of its training


def count(names: Iterable[str], before: str, after: str = ".") -> int:
    """How many numbered layers follow a prefix."""
    numbers = {name[len(before) :].split(after)[0] for name in names if name.startswith(before)}
    return len({number for number in numbers if number.isdecimal()})


def heads(width: int, depth: int, mlp: int, wishes: Wishes, assumed: list[str], heads_in_file: int | None = None) -> int:
    if wishes.heads is not None:
        return wishes.heads
    if heads_in_file is not None:
        return heads_in_file
    known = [size.heads for size in SIZES.values() if (size.width, size.depth, size.mlp) == (width, depth, mlp)]
    guess = known[0] if known else max(1, width // 64)
    why = "as in the published size" if known else "64 wide each, the usual width"
    assumed.append(f"{guess} heads ({why}; heads= says otherwise)")
    return guess


def gelu(usual: Literal["tanh", "exact"], wishes: Wishes, assumed: list[str]) -> Literal["tanh", "exact"]:
    if wishes.gelu is not None:
        return wishes.gelu
    assumed.append(f"GELU in its {usual} form (the origin's; gelu= says otherwise)")
    return usual


def grid(rows: int, before: Iterable[int], wishes: Wishes, assumed: list[str], known: Pair | None = None) -> tuple[Pair, int]:
    """Rows and columns of a position table of so many rows, and how many of its rows belong to tokens in front.

    ``before`` has the possible numbers of those. What the caller or a side file says counts; only then a square is assumed.
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
            assumed.append(f"a square grid of {side}x{side} (grid= says otherwise)")
            return (side, side), covered
    raise VitrailError(
        f"the position table has {rows} rows, which is no square grid; say which it is, for example "
        f"grid={_factors(rows - options[0]).split(' or ')[0]}"
    )


def _factors(cells: int) -> str:
    sides = [high for high in range(1, math.isqrt(max(0, cells)) + 1) if cells % high == 0]
    pairs = [pair for high in reversed(sides) for pair in dict.fromkeys([(high, cells // high), (cells // high, high)])]
    return " or ".join(times(pair) for pair in pairs[:4]) or "none"


def shape(file: Mapping[str, Tensor], name: str, axes: int) -> tuple[int, ...]:
    """The shape of a tensor that must be there."""
    if name not in file:
        raise VitrailError(f"the file lacks {name}")
    if file[name].ndim != axes:
        raise VitrailError(f"{name} must have {axes} axes, got {list(file[name].shape)}")
    return tuple(file[name].shape)


def refuse(reason: str, format: str, instead: str) -> NoReturn:
    everything = "" if "vitrail" in instead or ".safetensors" in instead else ", or format='vitrail', which holds everything"
    raise VitrailError(f"the {format} format cannot hold {reason}; {instead}{everything}")
