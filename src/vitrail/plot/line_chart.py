"""Line charts and scatter plots as figures."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle

from vitrail.plot.canvas import Dot, Figure, Line, Point, Shape, Text
from vitrail.plot.html_line_chart import ticks

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 520, 260, 48, 16, 26, 36
LEGEND_WIDTH, MAX_NAME_LETTERS = 150, 17  # its width in pixels, and the most letters of a name in it
LINE_COLOURS = ("mark", "bad", "good", "#8a5fb5", "#b07d1a", "#2f8f8f")
BASELINE_COLOURS = ("soft", "ink")  # colours of baselines


def line_chart(
    title: str,
    y_label: str,
    x_label: str,
    lines: Mapping[str, Sequence[Point]] | None = None,
    dots: Sequence[tuple[float, float, str]] = (),
    dashed: Sequence[str] = (),
    columns: int | None = None,
    y_min: float | None = None,
    percent: bool = False,
    captions: Mapping[str, Sequence[tuple[str, str] | None]] | None = None,
    x_ticks: Mapping[float, str] | None = None,
) -> Figure:
    """Draw lines and dots. ``dots``: x, y and hover text. ``dashed``: names of baselines. ``columns``: x is an index below it,
    each in the middle of its own column. ``y_min``: start of the y axis. ``captions``: per point of a line its label and hover
    text, or None for no dot. ``x_ticks``: tick labels by x value, instead of round numbers."""
    finite_lines = {name: [point for point in line if math.isfinite(point[1])] for name, line in (lines or {}).items()}
    points = [point for line in finite_lines.values() for point in line] + [(x, y) for x, y, _ in dots if math.isfinite(y)]
    x_low, x_high = (
        (-0.5, columns - 0.5) if columns else (min((x for x, _ in points), default=0), max((x for x, _ in points), default=1))
    )
    y_low, y_high = min((y for _, y in points), default=0.0), max((y for _, y in points), default=1.0)
    y_low = y_low if y_min is None else y_min
    y_high = y_high if y_high > y_low else y_low + (0.01 if percent else 1)
    x_low, x_high = (x_low, x_high) if x_high > x_low else (x_low - 0.5, x_high + 0.5)  # a single point is centred
    right = WIDTH - (LEGEND_WIDTH if len(finite_lines) > 1 else RIGHT)

    def to_pixels(x: float, y: float) -> Point:
        fraction = (x - x_low) / (x_high - x_low)
        return LEFT + (right - LEFT) * fraction, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (y - y_low) / (y_high - y_low)

    shapes: list[Shape] = [Text((4, 12), y_label), Text(((LEFT + right) / 2, HEIGHT - 4), x_label, "middle")]
    for value in ticks(y_low, y_high):
        _, y = to_pixels(x_low, value)
        shapes += [Line([(LEFT, y), (right, y)]), Text((LEFT - 6, y + 4), _format_value(value, percent), "end")]
    stride = -(-columns // 16) if columns else 1
    tick_labels = x_ticks or {value: f"{value:g}" for value in (range(0, columns, stride) if columns else ticks(x_low, x_high))}
    for value, label in tick_labels.items():
        shapes.append(Text((to_pixels(value, y_low)[0], HEIGHT - BOTTOM + 15), label, "middle"))
    line_colours, baseline_colours = cycle(LINE_COLOURS), cycle(BASELINE_COLOURS)
    for row, (name, line) in enumerate(finite_lines.items()):
        colour = next(baseline_colours if name in dashed else line_colours)
        positions = [to_pixels(*point) for point in line]
        shapes.append(Line(positions, colour, 1.8, name in dashed))
        if columns:
            pairs = zip(positions, line, strict=True)
            shapes += [
                Dot(position, colour, f"{name}, {x:g}: {_format_value(y, percent)}", 1, 2.6) for position, (x, y) in pairs
            ]
        for (x, y), caption in zip(positions, (captions or {}).get(name, ()), strict=False):
            inward = x > right - 2 * RIGHT and y < TOP + 18 * len(finite_lines)  # or it would overlap the legend
            if caption:
                label_position, anchor = ((x - 5, y - 5), "end") if inward else ((x + 5, y - 5), "start")
                shapes += [Dot((x, y), colour, caption[1], 1, 3), Text(label_position, caption[0], anchor, colour)]
        if len(finite_lines) > 1:
            y = TOP + 4 + 18 * row
            shapes.append(Line([(right + 12, y), (right + 32, y)], colour, 1.8, name in dashed))
            shapes.append(
                Text((right + 38, y + 4), name if len(name) <= MAX_NAME_LETTERS else f"{name[: MAX_NAME_LETTERS - 1]}…")
            )
    shapes += [Dot(to_pixels(x, y), tooltip=tooltip) for x, y, tooltip in dots if math.isfinite(y)]
    return Figure(title, (WIDTH, HEIGHT), tuple(shapes))


def _format_value(value: float, percent: bool) -> str:
    return f"{100 * value:.3g}%" if percent else f"{value:.3g}"
