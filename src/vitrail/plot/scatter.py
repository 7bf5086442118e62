"""Scatter of predicted against true numbers, and a histogram, as figures."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from vitrail.plot.canvas import Dot, Figure, Line, Point, Shape, Text
from vitrail.plot.line_chart import line_chart, ticks

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 520, 400, 60, 24, 26, 40
MARGIN = 0.04  # fraction of the range that is left free around the points
NUM_BINS = 24


def agreement_scatter(title: str, points: Sequence[Point], tooltips: Sequence[str]) -> Figure:
    """Draw predicted numbers (y) against true ones (x) on equal axes, with the diagonal on which they agree."""
    numbers = [number for point in points for number in point]
    low, high = min(numbers), max(numbers)
    margin = MARGIN * (high - low) or abs(low) / 2 or 1.0
    low, high = low - margin, high + margin
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def position(x: float, y: float) -> Point:
        across, up = ((value - low) / (high - low) for value in (x, y))
        return LEFT + (right - LEFT) * across, bottom - (bottom - TOP) * up

    shapes: list[Shape] = [Text((4, 12), "predicted"), Text(((LEFT + right) / 2, HEIGHT - 4), "true", "middle")]
    for value in ticks(low, high):
        x, y = position(value, value)
        shapes += [Line([(LEFT, y), (right, y)]), Line([(x, TOP), (x, bottom)])]
        shapes += [Text((LEFT - 6, y + 4), f"{value:.4g}", "end"), Text((x, bottom + 18), f"{value:.4g}", "middle")]
    shapes.append(Line([position(low, low), position(high, high)], "soft", 1.4, dashed=True, tooltip="predicted = true"))
    radius, opacity = (3.0, 0.6) if len(points) <= 300 else (2.2, 0.4)
    shapes += [
        Dot(position(x, y), tooltip=tooltip, opacity=opacity, radius=radius)
        for (x, y), tooltip in zip(points, tooltips, strict=True)
    ]
    return Figure(title, (WIDTH, HEIGHT), tuple(shapes), fluid=True)


def histogram(title: str, x_label: str, values: Float[ndarray, " n"]) -> Figure:
    """Draw how many values are in each of a few intervals, which are equally wide and symmetric about zero."""
    reach = float(np.abs(values).max()) or 1.0
    counts, edges = np.histogram(values, NUM_BINS, (-reach, reach))
    bars = [
        ((low, high), float(count), 1.0, f"{count:,} images from {low:.3g} to {high:.3g}")
        for low, high, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
        if count
    ]
    top = float(counts.max())
    zero = {"no error": [(-reach, 0.0), (0.0, 0.0), (0.0, top), (0.0, 0.0), (reach, 0.0)]}
    x_ticks = {value: f"{value:.3g}" if abs(value) > 1e-12 * reach else "0" for value in ticks(-reach, reach)}
    return line_chart(
        title, "images", x_label, zero, bars=bars, dashed=tuple(zero), x_min=-reach,
        y_min=0.0, y_max=top, x_ticks=x_ticks, fluid=True, legend=False, height=300,
    )  # fmt: skip
