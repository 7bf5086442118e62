"""``panes``: Vitrail's own picture set, drawn by a formula: stained-glass windows of any size and number.

A window of leaded glass, in it one figure of five panes, around it smaller objects of fewer panes, before it all shards. How
the figure's five panes are arranged is the label; colour, light, glass, place, size and slant say nothing about it. A figure
and its mirror image are of one class, so pictures may be flipped left to right; not upside down.

Label, mask and boxes are known exactly, and all of it is a pure function of (seed, index). How hard the set is:
``scripts/panes_hardness.py``. h high, w wide, k objects.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from vitrail.augment.chance import bits, uniforms
from vitrail.data.sources.panes_draw import developed, lit, paint
from vitrail.data.sources.panes_layout import FIGURES, NUMBERS, layers
from vitrail.errors import VitrailError

CLASSES = tuple(FIGURES)
SPLITS = ("train", "validation", "test")
SMALLEST = 16  # pixels: a figure's pane still has three

LABEL, SPLIT, LOOK = 0x70616E65, 0x70616E66, 0x70616E67  # in place of an epoch: apart from what augments these pictures
GRAIN = 20  # values down and across that the unevenness of the glass runs through


@dataclass(frozen=True)
class Scene:
    """A picture and all that is true about it."""

    pixels: UInt8[ndarray, "h w 3"]
    label: int
    mask: UInt8[ndarray, "h w"]  # 1 where the figure that decides the label is seen
    instances: Int[ndarray, "h w"]  # 0 nothing, j + 1 the j-th object
    boxes: Int[ndarray, "k 4"]  # left, top, right, bottom of what is seen of each object; right and bottom just outside
    kinds: Int[ndarray, " k"]  # by panes_layout.KINDS, where the classes come first


@dataclass(frozen=True)
class Panes:
    """A source of pictures that are drawn when they are asked for."""

    seed: int
    count: int
    size: tuple[int, int] = (64, 64)
    origin: str = "panes"

    def __post_init__(self) -> None:
        _check_size(self.size)
        if self.count < 0:
            raise VitrailError(f"count must not be negative, got {self.count}; try count=10000")

    @property
    def names(self) -> tuple[str, ...]:
        return CLASSES

    @cached_property
    def labels(self) -> ndarray:
        return _labels(self.seed, np.arange(self.count))

    def __len__(self) -> int:
        return self.count

    def where(self, index: int) -> str:
        return f"picture {index} of {self.origin}"

    def content(self, index: int) -> ndarray:
        return self.scene(index).pixels

    def scene(self, index: int) -> Scene:
        """The picture with its mask and boxes."""
        if not 0 <= index < self.count:
            raise IndexError(f"{self.origin} has {self.count} pictures, got {index}")
        return scene(self.seed, int(index), self.size)


def panes(split: str, count: int, size: tuple[int, int] = (64, 64), seed: int = 0) -> Panes:
    """A split: each has a stream of pictures of its own, which goes on as far as is asked for."""
    if split not in SPLITS:
        raise VitrailError(f"panes has the splits {', '.join(SPLITS)}, got {split!r}; try 'train'")
    return Panes(int(bits(seed, SPLIT, SPLITS.index(split), 0)[0]), count, size, f"panes {split}")


def scene(seed: int, index: int, size: tuple[int, int] = (64, 64)) -> Scene:
    """The picture of this number: the same scene at every size of the same proportions."""
    _check_size(size)
    label = int(_labels(seed, np.array([index]))[0])
    look, grain, light = np.split(uniforms(seed, LOOK, index, NUMBERS + GRAIN**2 + 5), (NUMBERS, NUMBERS + GRAIN**2))
    picture, seen = np.zeros((*size, 3), np.float32), np.zeros(size, np.int64)
    kinds = []
    for number, (kind, lattice) in enumerate(layers(look, label, (size[1] / min(size), size[0] / min(size)))):
        window, inside = paint(picture, lattice)
        seen[window][inside] = number
        kinds.append(kind)
    lit(picture, grain.reshape(GRAIN, GRAIN).astype(np.float32), light)
    return _told(developed(picture), label, seen, kinds)


def _labels(seed: int, indices: ndarray) -> ndarray:
    return (bits(seed, LABEL, indices, 0)[:, 0] % np.uint64(len(CLASSES))).astype(np.int64)


def _told(pixels: ndarray, label: int, seen: ndarray, kinds: list[int]) -> Scene:
    """What can be seen of the objects; one that is wholly hidden is none."""
    instances = np.zeros_like(seen)
    boxes, shown = [], []
    for number, kind in enumerate(kinds):
        own = seen == number
        if kind < 0 or not own.any():
            continue
        shown.append(kind)
        instances[own] = len(shown)
        rows, columns = np.flatnonzero(own.any(1)), np.flatnonzero(own.any(0))
        boxes.append((columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
    mask = (seen == kinds.index(label)).astype(np.uint8)
    return Scene(pixels, label, mask, instances, np.array(boxes, np.int64), np.array(shown, np.int64))


def _check_size(size: tuple[int, int]) -> None:
    if min(size) < SMALLEST:
        raise VitrailError(f"size must be at least {SMALLEST} pixels a side, got {size[0]} x {size[1]}; try (64, 64)")
