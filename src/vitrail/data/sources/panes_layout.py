"""Random layout of a ``panes`` scene: a window, in it small objects and one figure, in front shards.

In every class an image and its negative are equally likely: each pane of an object, the window's glass and each lead are light
or dark about the same mid-grey, by a coin flip. So all classes have the same flat mean image, and a linear classifier of pixels
has next to nothing to learn from. Lengths are in short sides of the image.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy import ndarray

from vitrail.data.sources.panes_draw import CUTS, Lattice, coloured

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
KINDS = (*FIGURES, *OTHERS)
SHAPES = [np.array([[letter == "#" for letter in row] for row in shape]) for shape in (*FIGURES.values(), *OTHERS.values())]

PARTS, PLACES, CELLS = 6, 13, 8  # window, figure, shards and up to three others; parameters of each; its panes down and across
NUMBERS = PARTS * (PLACES + CELLS * CELLS)

Pair = tuple[float, float]
Numbers = TypeVar("Numbers", float, ndarray)


@dataclass(frozen=True)
class Glass:
    """Range from which light glass is drawn; dark glass is its negative."""

    saturation: Pair
    value: Pair


MELLOW, VIVID = Glass((0.2, 0.4), (0.54, 0.65)), Glass((0.2, 0.6), (0.95, 1.0))


def layers(chance: ndarray, label: int, extent: Pair) -> list[tuple[int, Lattice]]:
    """Return what to paint, back to front: index into OBJECT_KINDS (-1: no object) and lattice."""
    parts = chance.reshape(PARTS, -1)
    places, tones = parts[:, :PLACES].tolist(), parts[:, PLACES:].reshape(PARTS, CELLS, CELLS)
    glass = _glass(parts[:, :PLACES], tones)
    found = [(-1, _window(places[0], glass[0], extent))]
    for part in range(3, 4 + int(3 * places[0][1])):
        kind = len(FIGURES) + int(len(OTHERS) * places[part][0])
        found.append((kind, _object(places[part], glass[part], SHAPES[kind], (0.08, 0.125), extent)))
    found.append((label, _object(places[1], glass[1], SHAPES[label], (0.21, 0.265), extent)))
    return [*found, (-1, _shards(places[2], tones[2], glass[2], extent))]


def _window(place: list[float], glass: ndarray, extent: Pair) -> Lattice:
    _, _, x, y, size, turn, bow, sway, cut, bond, _, _, lead = place
    return Lattice(
        centre=(x * extent[0], y * extent[1]),
        side=0.11 + 0.12 * size,
        turn=_about(turn, 0.4),
        bend=(_about(bow, 0.2), _about(sway, 0.2)),
        there=np.ones((CELLS, CELLS), bool),
        glass=glass,
        lead=0.37 if lead < 0.5 else 0.63,
        cut=CUTS[int(len(CUTS) * cut)],
        bond=0.0 if bond < 0.5 else 0.5,
        endless=True,
    )


def _object(place: list[float], glass: ndarray, there: ndarray, sides: Pair, extent: Pair) -> Lattice:
    """Place an object fully inside the image, so that its whole shape is needed to recognise it."""
    _, _, x, y, size, turn, bow, sway, cut, mirror, _, _, lead = place
    lattice = Lattice(
        centre=(0.0, 0.0),
        side=_within(size, sides),
        turn=_about(turn, 0.09),
        bend=(_about(bow, 0.06), _about(sway, 0.06)),
        there=there if mirror < 0.5 else there[:, ::-1],
        glass=glass[: there.shape[0], : there.shape[1]],
        lead=0.08 if lead < 0.5 else 0.92,
        cut=CUTS[int(len(CUTS) * cut)],
    )
    reach = lattice.reach
    return replace(lattice, centre=(_within(x, (reach, extent[0] - reach)), _within(y, (reach, extent[1] - reach))))


def _shards(place: list[float], tone: ndarray, glass: ndarray, extent: Pair) -> Lattice:
    """Build a wide lattice with few panes present, and of these only the middle: glass of any colour in front of everything."""
    many, _, x, y, size, turn, bow, sway, *_, lead = place
    return Lattice(
        centre=(x * extent[0], y * extent[1]),
        side=0.13 + 0.05 * size,
        turn=_about(turn, 1.0),
        bend=(_about(bow, 0.2), _about(sway, 0.2)),
        there=tone < 0.04 + 0.1 * many,
        glass=glass,
        lead=0.08 if lead < 0.5 else 0.92,
        shards=True,
        endless=True,
    )


def _glass(places: ndarray, tones: ndarray) -> ndarray:
    """Compute the two colours of each pane of all layers at once: of similar hue, both light or both dark by a coin flip.

    The window is mellow and has one coin; the others are vivid and have a coin per pane. Objects avoid the window's hue, shards
    have any.
    """
    window, other, apart = places[0, 0], places[:, 10, None, None], places[:, 11, None, None]
    digits, coins = _digits(tones, 1), _digits(tones, 2)
    hue = window + _within(apart, (0.25, 0.75)) + np.zeros_like(tones)
    saturation, value = _within(digits, VIVID.saturation), _within(tones, VIVID.value)
    hue[0], hue[2], coins[0] = window, 8.0 * tones[2], apart[0]
    saturation[0], value[0] = _within(digits[0], MELLOW.saturation), _within(tones[0], MELLOW.value)
    deep = coins < 0.5
    hue += 0.5 * deep  # a negative has the hue across the circle
    hues = np.stack([hue + 0.1 * (digits - 0.5), hue + (2.0 * other - 1.0) * 0.15], axis=-1)
    pieces = coloured(hues, saturation[..., None], value[..., None])
    return np.where(deep[..., None, None], 1.0 - pieces, pieces)


def _digits(tone: ndarray, place: int) -> ndarray:
    """Derive more random numbers from one: its lower digits."""
    return np.mod(tone * 1024.0**place, 1.0)


def _within(part: Numbers, ends: Pair) -> Numbers:
    return ends[0] + (ends[1] - ends[0]) * part


def _about(part: float, most: float) -> float:
    """Map 0 ... 1 to -limit ... limit."""
    return (2.0 * part - 1.0) * most
