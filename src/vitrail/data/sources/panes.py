"""``panes``: Vitrail's own synthetic dataset: stained-glass windows of any size and number.

A window of leaded glass, in it one figure of five panes, around it smaller objects of fewer panes, in front shards. The
arrangement of the figure's five panes is the label; colour, light, glass, position, size and slant are independent of it. A
figure and its mirror image are of one class, so images may be flipped left to right; not upside down.

Label, mask and boxes are known exactly, and everything is a pure function of (seed, index). How hard the dataset is:
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
SMALLEST = 16  # pixels: a pane of a figure still has three

LABEL, SPLIT, LOOK = 0x70616E65, 0x70616E66, 0x70616E67  # in place of an epoch, apart from augmentation
GRAIN = 20  # grid points down and across of the glass's unevenness


@dataclass(frozen=True)
class Scene:
    """An image with its ground truth."""

    pixels: UInt8[ndarray, "h w 3"]
    label: int
    mask: UInt8[ndarray, "h w"]  # 1 where the figure that decides the label is visible
    instances: Int[ndarray, "h w"]  # 0 background, j + 1 the j-th object
    boxes: Int[ndarray, "k 4"]  # left, top, right, bottom of the visible part of each object; right and bottom exclusive
    kinds: Int[ndarray, " k"]  # index into layout.OBJECT_KINDS, where the classes come first


@dataclass(frozen=True)
class Panes:
    """A dataset of images that are drawn when they are read."""

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
        return f"image {index} of {self.origin}"

    def content(self, index: int) -> ndarray:
        return self.scene(index).pixels

    def scene(self, index: int) -> Scene:
        """Return an image with its mask and boxes."""
        if not 0 <= index < self.count:
            raise IndexError(f"{self.origin} has {self.count} images, got {index}")
        return scene(self.seed, int(index), self.size)


def panes(split: str, count: int, size: tuple[int, int] = (64, 64), seed: int = 0) -> Panes:
    """Build a split: each is a random stream of its own, of any length."""
    if split not in SPLITS:
        raise VitrailError(f"panes has the splits {', '.join(SPLITS)}, got {split!r}; try 'train'")
    return Panes(int(bits(seed, SPLIT, SPLITS.index(split), 0)[0]), count, size, f"panes {split}")


def scene(seed: int, index: int, size: tuple[int, int] = (64, 64)) -> Scene:
    """Draw the image of this index: the same scene at every size of the same aspect ratio."""
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
    """Compute masks and boxes of the visible parts; a fully occluded object is left out."""
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
        raise VitrailError(f"size must be at least {SMALLEST} pixels per side, got {size[0]} x {size[1]}; try (64, 64)")
