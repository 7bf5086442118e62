"""``panes``: Vitrail's own picture set, drawn by a formula: stained-glass windows of any size and number.

A window of leaded glass, in it one figure of five panes, around it smaller objects of fewer panes, before it all shards. How
the figure's five panes are arranged is the label; colour, light, glass, place, size and slant say nothing about it. A figure
and its mirror image are of one class, so pictures may be flipped left to right; not upside down.

Label, mask and boxes are known exactly, and all of it is a pure function of (seed, index). How hard the set is:
``scripts/panes_hardness.py``. h high, w wide, k objects.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from vitrail.augment.chance import bits, uniforms
from vitrail.data.panes_draw import CUTS, Lattice, coloured, developed, lit, paint
from vitrail.errors import VitrailError

FIGURES = {
    "cross": (".#.", "###", ".#."),
    "saltire": ("#.#", ".#.", "#.#"),
    "tee": ("###", ".#.", ".#."),
    "anchor": (".#.", ".#.", "###"),
    "arch": (".#.", "#.#", "#.#"),
    "chalice": ("#.#", "#.#", ".#."),
    "corner": ("#..", "#..", "###"),
    "banner": ("###", "#..", "#.."),
    "stair": ("#..", "##.", ".##"),
    "zed": ("##.", ".#.", ".##"),
}
OTHERS = {"pane": ("#",), "pair": ("##",), "bar": ("###",), "elbow": ("#.", "##"), "block": ("##", "##")}

CLASSES = tuple(FIGURES)
KINDS = (*FIGURES, *OTHERS)
SMALLEST = 16
SPLITS = ("train", "validation", "test")

LABEL, LOOK = 0x70616E65, 0x70616E66  # where the set draws in the space of chance, apart from what augments its pictures
PARTS, PLACES, CELLS, GRAIN = 6, 16, 8, 20  # window, figure, three others, shards; numbers for each; panes a side; the glass


@dataclass(frozen=True)
class Glass:
    """The range that a kind of glass is drawn from."""

    saturation: tuple[float, float]
    value: tuple[float, float]


MELLOW, VIVID = Glass((0.28, 0.46), (0.56, 0.69)), Glass((0.2, 0.65), (0.95, 1.0))


@dataclass(frozen=True)
class Scene:
    """A picture and all that is true about it."""

    pixels: UInt8[ndarray, "h w 3"]
    label: int
    mask: UInt8[ndarray, "h w"]  # 1 where the figure that decides the label is seen
    instances: Int[ndarray, "h w"]  # 0 nothing, j + 1 the j-th object
    boxes: Int[ndarray, "k 4"]  # left, top, right, bottom of what is seen of each object; right and bottom just outside
    kinds: Int[ndarray, " k"]  # by KINDS; the classes come first in it


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
            raise IndexError(f"{self.origin} has the pictures 0 to {self.count - 1}, got {index}")
        return scene(self.seed, int(index), self.size)


def panes(split: str, count: int, size: tuple[int, int] = (64, 64), seed: int = 0) -> Panes:
    """A split: each has a stream of pictures of its own, which goes on as far as is asked for."""
    if split not in SPLITS:
        raise VitrailError(f"panes has the splits {', '.join(SPLITS)}, got {split!r}; try 'train'")
    own = int(bits(seed, LABEL, SPLITS.index(split), 2)[0])
    return Panes(own, count, size, f"panes {split}")


def scene(seed: int, index: int, size: tuple[int, int] = (64, 64)) -> Scene:
    """The picture of this number: the same scene at every size of the same proportions."""
    _check_size(size)
    label = int(_labels(seed, np.array([index]))[0])
    h, w = size
    short = float(min(size))
    picture = np.zeros((h, w, 3), np.float32)
    seen = np.zeros((h, w), np.int64)
    layers = _layers(uniforms(seed, LOOK, index, PARTS * (PLACES + CELLS * CELLS)), label, (w / short, h / short))
    for number, (_, lattice) in enumerate(layers):
        window, inside = paint(picture, lattice)
        np.copyto(seen[window], number, where=inside)
    chance = uniforms(seed, LOOK + 1, index, GRAIN * GRAIN + 5)
    spread = (0.14 * chance[:5]).tolist()
    lit(
        picture,
        chance[5:].reshape(GRAIN, GRAIN).astype(np.float32),
        tuple(0.06 + spread[c] for c in range(3)),
        (spread[3] - 0.07, spread[4] - 0.07),
    )
    return _told(developed(picture), label, seen, [kind for kind, _ in layers])


def _labels(seed: int, indices: ndarray) -> ndarray:
    return (bits(seed, LABEL, indices, 1)[..., 0] % np.uint64(len(CLASSES))).astype(np.int64)


def _layers(chance: ndarray, label: int, extent: tuple[float, float]) -> list[tuple[int, Lattice]]:
    """What is painted, from the back to the front: its kind (-1: no object) and where it lies."""
    parts = chance.reshape(PARTS, -1)
    places, tones = parts[:, :PLACES].tolist(), parts[:, PLACES:].reshape(PARTS, CELLS, CELLS)
    hue = places[0][0]  # of the window; nothing else has it
    layers = [(-1, _window(places[0], tones[0], hue, extent))]
    for place, tone in zip(places[3 : 4 + int(3 * places[0][2])], tones[3:], strict=False):
        kind = len(CLASSES) + int(place[11] * len(OTHERS))
        layers.append((kind, _object(place, tone, OTHERS[KINDS[kind]], (0.09, 0.14), hue, extent)))
    layers.append((label, _object(places[1], tones[1], FIGURES[CLASSES[label]], (0.2, 0.26), hue, extent)))
    return [*layers, (-1, _shards(places[2], tones[2], extent))]


def _window(place: list[float], tone: ndarray, hue: float, extent: tuple[float, float]) -> Lattice:
    return Lattice(
        centre=(extent[0] * place[12], extent[1] * place[13]),
        side=0.11 + 0.12 * place[3],
        turn=0.8 * place[4] - 0.4,
        bend=(0.4 * place[5] - 0.2, 0.4 * place[6] - 0.2),
        there=np.ones((CELLS, CELLS), bool),
        glass=_glass(tone, hue, place[7], MELLOW, np.full_like(tone, place[10])),
        lead=0.34 if place[11] < 0.5 else 0.66,
        cut=CUTS[int(place[8] * len(CUTS))],
        bond=0.5 * int(2 * place[9]),
        endless=True,
    )


def _object(
    place: list[float],
    tone: ndarray,
    shape: tuple[str, ...],
    sides: tuple[float, float],
    hue: float,
    extent: tuple[float, float],
) -> Lattice:
    """Somewhere wholly within the picture, of glass whose hue is not the window's."""
    tone = tone[: len(shape), : len(shape[0])]
    there = np.array([[letter == "#" for letter in row] for row in shape])
    lattice = Lattice(
        centre=(0.0, 0.0),
        side=sides[0] + (sides[1] - sides[0]) * place[2],
        turn=0.18 * place[4] - 0.09,
        bend=(0.12 * place[5] - 0.06, 0.12 * place[6] - 0.06),
        there=there[:, ::-1] if place[9] < 0.5 else there,
        glass=_glass(tone, hue + 0.25 + 0.5 * place[7], place[10], VIVID, _digits(tone, 2)),
        lead=0.08 if place[13] < 0.5 else 0.92,
        cut=CUTS[int(place[8] * len(CUTS))],
    )
    x, y = (lattice.reach + (length - 2 * lattice.reach) * part for length, part in zip(extent, place[:2], strict=True))
    return replace(lattice, centre=(x, y))


def _shards(place: list[float], tone: ndarray, extent: tuple[float, float]) -> Lattice:
    """A wide lattice of which few panes are there, cut small: pieces of any colour that lie before everything."""
    return Lattice(
        centre=(extent[0] * place[0], extent[1] * place[1]),
        side=0.13 + 0.05 * place[2],
        turn=2.0 * place[4] - 1.0,
        bend=(0.4 * place[5] - 0.2, 0.4 * place[6] - 0.2),
        there=tone < 0.06 + 0.14 * place[7],
        glass=_glass(tone, 8.0 * tone, place[8], VIVID, _digits(tone, 2)),
        lead=0.08 if place[9] < 0.5 else 0.92,
        shards=True,
        endless=True,
    )


def _glass(tone: ndarray, hue: ndarray | float, other: float, kind: Glass, coins: ndarray) -> ndarray:
    """The two kinds of glass of each pane, near one hue; by a coin each pane is light, or deep: the negative of a light one."""
    negative = coins[..., None] < 0.5
    digits = _digits(tone, 1)
    saturation = kind.saturation[0] + (kind.saturation[1] - kind.saturation[0]) * digits
    value = kind.value[0] + (kind.value[1] - kind.value[0]) * tone
    seen = hue + 0.5 * (coins < 0.5)  # a negative has the hue across the circle
    pieces = coloured(seen + 0.1 * (digits - 0.5), saturation, value), coloured(seen + 0.3 * (other - 0.5), saturation, value)
    return np.stack([np.where(negative, 1.0 - piece, piece) for piece in pieces], axis=2)


def _digits(tone: ndarray, place: int) -> ndarray:
    """More numbers from one: its lower digits."""
    return np.mod(tone * 1024.0**place, 1.0)


def _told(pixels: ndarray, label: int, seen: ndarray, kinds: list[int]) -> Scene:
    """What can be seen of the objects; one that is wholly hidden is none."""
    instances = np.zeros_like(seen)
    boxes, shown = [], []
    for number, kind in enumerate(kinds):
        own = seen == number
        if kind < 0 or not own.any():
            continue
        shown.append(kind)
        np.copyto(instances, len(shown), where=own)
        rows, columns = np.flatnonzero(own.any(1)), np.flatnonzero(own.any(0))
        boxes.append((columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
    mask = (seen == kinds.index(label)).astype(np.uint8)
    return Scene(pixels, label, mask, instances, np.array(boxes, np.int64).reshape(-1, 4), np.array(shown, np.int64))


def _check_size(size: tuple[int, int]) -> None:
    if min(size) < SMALLEST:
        raise VitrailError(f"size must be at least {SMALLEST} pixels a side, got {size[0]} x {size[1]}; try (64, 64)")
