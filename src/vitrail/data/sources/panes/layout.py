"""Random layout of a ``panes`` scene: a window, in it small objects and one figure, in front shards.

In every class an image and its negative are equally likely: each pane of an object, the window's glass and each lead are light
or dark about the same mid-grey, by a coin flip. So all classes have the same flat mean image, and a linear classifier of pixels
has next to nothing to learn from. Lengths are in short sides of the image.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy import ndarray

from vitrail.data.sources.panes.draw import CUTS, Lattice, hsv_to_rgb

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
OTHER_SHAPES = {"pane": ("#",), "pair": ("##",), "bar": ("###",), "elbow": ("#.", "##"), "block": ("##", "##")}
OBJECT_KINDS = (*FIGURES, *OTHER_SHAPES)
OBJECT_SHAPES = [
    np.array([[letter == "#" for letter in row] for row in shape]) for shape in (*FIGURES.values(), *OTHER_SHAPES.values())
]

MAX_LAYERS = 6  # window, figure, shards and up to three others
NUM_PARAMETERS = 13  # of each layer
CELLS = 8  # panes of a layer down and across
NUM_UNIFORMS = MAX_LAYERS * (NUM_PARAMETERS + CELLS * CELLS)
FIGURE_LAYER = 1  # among the layers' parameters
FIGURE_SIDES = (0.21, 0.265)  # smallest and largest side of a pane of a figure

Pair = tuple[float, float]
Numbers = TypeVar("Numbers", float, ndarray)


@dataclass(frozen=True)
class Glass:
    """Range from which light glass is drawn; dark glass is its negative."""

    saturation: Pair
    value: Pair


MELLOW, VIVID = Glass((0.2, 0.4), (0.54, 0.65)), Glass((0.2, 0.6), (0.95, 1.0))


def build_layers(u: ndarray, label: int, extent: Pair) -> list[tuple[int, Lattice]]:
    """Return what to paint, back to front: index into OBJECT_KINDS (-1: no object) and lattice."""
    by_layer = u.reshape(MAX_LAYERS, -1)
    parameters, tones = by_layer[:, :NUM_PARAMETERS].tolist(), by_layer[:, NUM_PARAMETERS:].reshape(MAX_LAYERS, CELLS, CELLS)
    glass = _glass_colours(by_layer[:, :NUM_PARAMETERS], tones)
    drawn = [(-1, _build_window(parameters[0], glass[0], extent))]
    for layer in range(3, 4 + int(3 * parameters[0][1])):
        kind = len(FIGURES) + int(len(OTHER_SHAPES) * parameters[layer][0])
        drawn.append((kind, _build_object(parameters[layer], glass[layer], OBJECT_SHAPES[kind], (0.08, 0.125), extent)))
    drawn.append((label, build_figure(parameters[FIGURE_LAYER], label, glass[FIGURE_LAYER], extent)))
    return [*drawn, (-1, _build_shards(parameters[2], tones[2], glass[2], extent))]


def build_figure(parameters: list[float], label: int, glass: ndarray, extent: Pair) -> Lattice:
    """Place the figure that decides the label."""
    return _build_object(parameters, glass, OBJECT_SHAPES[label], FIGURE_SIDES, extent)


def _build_window(parameters: list[float], glass: ndarray, extent: Pair) -> Lattice:
    _, _, x, y, size, turn, bow, sway, cut, bond, _, _, lead = parameters
    return Lattice(
        centre=(x * extent[0], y * extent[1]),
        side=0.11 + 0.12 * size,
        half_angle_tan=_symmetric(turn, 0.4),
        bend=(_symmetric(bow, 0.2), _symmetric(sway, 0.2)),
        present=np.ones((CELLS, CELLS), bool),
        glass=glass,
        lead_grey=0.37 if lead < 0.5 else 0.63,
        cut=CUTS[int(len(CUTS) * cut)],
        row_shift=0.0 if bond < 0.5 else 0.5,
        repeats=True,
    )


def _build_object(parameters: list[float], glass: ndarray, present: ndarray, sides: Pair, extent: Pair) -> Lattice:
    """Place an object fully inside the image, so that its whole shape is needed to recognise it."""
    _, _, x, y, size, turn, bow, sway, cut, mirror, _, _, lead = parameters
    lattice = Lattice(
        centre=(0.0, 0.0),
        side=_interpolate(size, sides),
        half_angle_tan=_symmetric(turn, 0.09),
        bend=(_symmetric(bow, 0.06), _symmetric(sway, 0.06)),
        present=present if mirror < 0.5 else present[:, ::-1],
        glass=glass[: present.shape[0], : present.shape[1]],
        lead_grey=0.08 if lead < 0.5 else 0.92,
        cut=CUTS[int(len(CUTS) * cut)],
    )
    reach = lattice.reach
    return replace(lattice, centre=(_interpolate(x, (reach, extent[0] - reach)), _interpolate(y, (reach, extent[1] - reach))))


def _build_shards(parameters: list[float], tone: ndarray, glass: ndarray, extent: Pair) -> Lattice:
    """Build a wide lattice with few panes present, and of these only the middle: glass of any colour in front of everything."""
    density, _, x, y, size, turn, bow, sway, *_, lead = parameters
    return Lattice(
        centre=(x * extent[0], y * extent[1]),
        side=0.13 + 0.05 * size,
        half_angle_tan=_symmetric(turn, 1.0),
        bend=(_symmetric(bow, 0.2), _symmetric(sway, 0.2)),
        present=tone < 0.04 + 0.1 * density,
        glass=glass,
        lead_grey=0.08 if lead < 0.5 else 0.92,
        shards=True,
        repeats=True,
    )


def _glass_colours(parameters: ndarray, tones: ndarray) -> ndarray:
    """Compute the two colours of each pane of all layers at once: of similar hue, both light or both dark by a coin flip.

    The window is mellow and has one coin; the others are vivid and have a coin per pane. Objects avoid the window's hue, shards
    have any.
    """
    window, other, apart = parameters[0, 0], parameters[:, 10, None, None], parameters[:, 11, None, None]
    digits, coins = _digits(tones, 1), _digits(tones, 2)
    hue = window + _interpolate(apart, (0.25, 0.75)) + np.zeros_like(tones)
    saturation, value = _interpolate(digits, VIVID.saturation), _interpolate(tones, VIVID.value)
    hue[0], hue[2], coins[0] = window, 8.0 * tones[2], apart[0]
    saturation[0], value[0] = _interpolate(digits[0], MELLOW.saturation), _interpolate(tones[0], MELLOW.value)
    dark = coins < 0.5
    hue += 0.5 * dark  # a negative has the hue across the circle
    hues = np.stack([hue + 0.1 * (digits - 0.5), hue + (2.0 * other - 1.0) * 0.15], axis=-1)
    colours = hsv_to_rgb(hues, saturation[..., None], value[..., None])
    return np.where(dark[..., None, None], 1.0 - colours, colours)


def _digits(tone: ndarray, position: int) -> ndarray:
    """Derive more random numbers from one: its lower digits."""
    return np.mod(tone * 1024.0**position, 1.0)


def _interpolate(u: Numbers, bounds: Pair) -> Numbers:
    return bounds[0] + (bounds[1] - bounds[0]) * u


def _symmetric(u: float, limit: float) -> float:
    """Map 0 ... 1 to -limit ... limit."""
    return (2.0 * u - 1.0) * limit
