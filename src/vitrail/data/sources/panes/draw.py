"""Drawing of leaded glass: lattices of panes painted over each other, each pane of coloured glass between lines of lead.

Everything in an image is such a lattice: the window behind, each object, the shards in front. A lattice is a map from a point
of the image to (row, column), so that one look-up per pixel gives its pane.

Only operations that IEEE 754 rounds exactly (no sines, no sums in a library's own order), so that images are the same bytes on
every machine. Lengths are in short sides of the image. h high, w wide; r rows and s columns of a lattice.
"""

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

HALF_LEAD_WIDTH = 0.007  # half the width of a line of lead, which runs on both sides of an edge
CUTS = ("whole", "diagonal", "roundel", "lozenge", "halves")


@dataclass(frozen=True)
class Lattice:
    """Position of a lattice of panes, which of its panes are present, and their glass."""

    centre: tuple[float, float]  # x, y
    side: float  # of a pane
    half_angle_tan: float  # tangent of half its angle
    bend: tuple[float, float]  # how its columns and rows are bowed
    present: ndarray  # r s, bool
    glass: ndarray  # r s 2 3: the colours of the two pieces of each pane, from 0 to 1
    lead_grey: float  # grey value of the lead, from 0 to 1
    cut: str = "whole"  # how a pane is cut into its two pieces
    shards: bool = False  # only the middle of each pane is present, uncut
    row_shift: float = 0.0  # by how much every other row is shifted
    repeats: bool = False  # its panes repeat beyond its rows and columns

    @property
    def reach(self) -> float:
        """Half the side of an upright square that contains the lattice."""
        cosine, sine = _cosine_and_sine(self.half_angle_tan)
        return 0.5 * self.side * max(self.present.shape) * (cosine + abs(sine)) * (1.0 + max(map(abs, self.bend)))


def paint(canvas: ndarray, lattice: Lattice) -> tuple[tuple[slice, slice], ndarray]:
    """Paint the lattice into the image (h w 3, float32); return the window it can touch and the mask of its pixels there."""
    short = float(min(canvas.shape[:2]))
    window = _touched_window(canvas.shape[0], canvas.shape[1], short, lattice)
    u, v = _lattice_coordinates(window, short, lattice)
    pane, inside = _pane_index(u, v, lattice)
    pane, u, v = pane[inside], u[inside], v[inside]
    u, v = u - np.floor(u) - 0.5, v - np.floor(v) - 0.5  # within a pane, from -0.5 to 0.5
    edge = 0.5 - np.maximum(np.abs(u), np.abs(v))
    if lattice.shards:
        edge = np.minimum(edge - 0.2, 0.2 - u - v)
        visible = edge > 0
        inside[inside] = visible
        pane, edge = pane[visible], edge[visible]
    elif lattice.cut != "whole":
        inner = _signed_distance(lattice.cut, u, v)
        pane += (inner > 0) * np.int32(lattice.present.size)
        edge = np.minimum(edge, np.abs(inner))
    opacity = np.clip((edge * lattice.side - HALF_LEAD_WIDTH) * short + 0.5, 0.0, 1.0)[:, None]  # 0 in lead, 1 in glass
    glass = lattice.glass.transpose(2, 0, 1, 3).reshape(-1, 3).take(pane, axis=0)
    canvas[window][inside] = lattice.lead_grey + (glass - lattice.lead_grey) * opacity
    return window, inside


def apply_light(canvas: ndarray, grain: ndarray, u: ndarray) -> None:
    """Add light: uneven glass (a smooth field through ``grain``, stronger in some channels), lighter towards one side.

    It is added as often as subtracted, so that an image and its negative stay equally likely.
    """
    h, w = canvas.shape[:2]
    field = _upsample(grain, h, w) - 0.5
    *strengths, right, down = (0.12 * u).tolist()
    x, y = (np.arange(length, dtype=np.float32) * (2.0 / length) + (1.0 / length - 1.0) for length in (w, h))
    daylight = x * (right - 0.06) + (y * (down - 0.06))[:, None]
    for channel, strength in enumerate(strengths):
        canvas[..., channel] += daylight + field * (0.05 + strength)


def to_uint8(canvas: ndarray) -> ndarray:
    return np.clip(canvas * 256.0, 0.0, 255.0).astype(np.uint8)


def hsv_to_rgb(hue: ndarray, saturation: ndarray, value: ndarray) -> ndarray:
    """Convert hue (0 to 1, circular), saturation and value to RGB on a new last axis."""
    angle = np.mod(hue[..., None] * 6.0 + np.array([0.0, 4.0, 2.0]), 6.0)
    pure = np.clip(np.abs(angle - 3.0) - 1.0, 0.0, 1.0)
    return (value[..., None] * (1.0 - saturation[..., None] * (1.0 - pure))).astype(np.float32)


def _touched_window(h: int, w: int, short: float, lattice: Lattice) -> tuple[slice, slice]:
    """Return the rows and columns of pixels that the lattice can touch."""
    if lattice.repeats:
        return slice(0, h), slice(0, w)

    reach = lattice.reach

    def span(centre: float, length: int) -> slice:
        first, last = int((centre - reach) * short), int((centre + reach) * short) + 2
        return slice(min(max(first, 0), length), min(max(last, 0), length))

    return span(lattice.centre[1], h), span(lattice.centre[0], w)


def _lattice_coordinates(window: tuple[slice, slice], short: float, lattice: Lattice) -> tuple[ndarray, ndarray]:
    """Return the fractional column and row of each pixel's centre."""
    rows, columns = lattice.present.shape
    y, x = (
        ((np.arange(part.start, part.stop, dtype=np.float32) + 0.5) / short - centre) / lattice.side
        for part, centre in zip(window, reversed(lattice.centre), strict=True)
    )
    cosine, sine = _cosine_and_sine(lattice.half_angle_tan)
    u, v = x * cosine + (y * sine)[:, None], (y * cosine)[:, None] - x * sine
    half = 0.5 * max(rows, columns)
    u, v = u + v * v * (lattice.bend[0] / half), v + u * u * (lattice.bend[1] / half)
    v += 0.5 * rows
    u += 0.5 * columns
    if lattice.row_shift:
        u += (np.floor(v).astype(np.int32) & 1) * np.float32(lattice.row_shift)
    return u, v


def _pane_index(u: ndarray, v: ndarray, lattice: Lattice) -> tuple[ndarray, ndarray]:
    """Return the pane index of each pixel, and whether that pane is present."""
    rows, columns = lattice.present.shape
    row, column = np.floor(v).astype(np.int32), np.floor(u).astype(np.int32)
    if lattice.repeats:
        row, column, within = row % rows, column % columns, np.True_
    else:
        within = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    pane = row * columns + column
    return pane, within & lattice.present.reshape(-1).take(pane, mode="clip")


def _cosine_and_sine(half_angle_tan: float) -> tuple[float, float]:
    """Return cosine and sine from the tangent of half the angle: exact arithmetic only."""
    return (1.0 - half_angle_tan * half_angle_tan) / (1.0 + half_angle_tan * half_angle_tan), 2.0 * half_angle_tan / (
        1.0 + half_angle_tan * half_angle_tan
    )


def _signed_distance(cut: str, u: ndarray, v: ndarray) -> ndarray:
    """Return roughly how far a point lies inside the second glass of its pane; negative in the first."""
    if cut == "diagonal":
        return (u + v) * 0.7
    if cut == "roundel":
        return 0.28 - np.sqrt(u * u + v * v)
    if cut == "lozenge":
        return (0.42 - np.abs(u) - np.abs(v)) * 0.7
    return u


def _upsample(grain: ndarray, h: int, w: int) -> ndarray:
    """Interpolate ``grain`` bilinearly to the size of the image."""
    values, rest = _interpolation(grain.shape[0], h)
    rows = grain[values] * (1.0 - rest)[:, None] + grain[values + 1] * rest[:, None]
    values, rest = _interpolation(grain.shape[1], w)
    return rows[:, values] * (1.0 - rest) + rows[:, values + 1] * rest


def _interpolation(count: int, length: int) -> tuple[ndarray, ndarray]:
    """Return for each pixel the index of the value before it, and the fraction of the way to the next."""
    position = (np.arange(length, dtype=np.float32) + 0.5) * ((count - 1) / length)
    whole = position.astype(np.intp)
    return whole, position - whole.astype(np.float32)
