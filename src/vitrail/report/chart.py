"""Line charts and scatter plots as figures."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle

from vitrail.report.curves import ticks
from vitrail.report.drawing import Dot, Drawing, Line, Point, Shape, Words

WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM = 520, 260, 48, 16, 26, 36
LEGEND, LONGEST = 150, 17  # its width in pixels, and the most letters of a name in it
INKS = ("mark", "bad", "good", "#8a5fb5", "#b07d1a", "#2f8f8f")
BESIDE = ("soft", "ink")  # colours of baselines


def chart(
    title: str,
    upward: str,
    across: str,
    lines: Mapping[str, Sequence[Point]] | None = None,
    dots: Sequence[tuple[float, float, str]] = (),
    dashed: Sequence[str] = (),
    places: int | None = None,
    low: float | None = None,
    percent: bool = False,
    captions: Mapping[str, Sequence[tuple[str, str] | None]] | None = None,
    marks: Mapping[float, str] | None = None,
) -> Drawing:
    """Draw lines and dots. ``dots``: x, y and hover text. ``dashed``: names of baselines. ``columns``: x is an index below it,
    each in the middle of its own column. ``y_min``: start of the y axis. ``captions``: per point of a line its label and hover
    text, or None for no dot. ``x_ticks``: tick labels by x value, instead of round numbers."""
    drawn = {name: [point for point in line if math.isfinite(point[1])] for name, line in (lines or {}).items()}
    points = [point for line in drawn.values() for point in line] + [(x, y) for x, y, _ in dots if math.isfinite(y)]
    first, last = (
        (-0.5, places - 0.5) if places else (min((x for x, _ in points), default=0), max((x for x, _ in points), default=1))
    )
    least, most = min((y for _, y in points), default=0.0), max((y for _, y in points), default=1.0)
    least = least if low is None else low
    most = most if most > least else least + (0.01 if percent else 1)
    first, last = (first, last) if last > first else (first - 0.5, last + 0.5)  # a single point is centred
    end = WIDE - (LEGEND if len(drawn) > 1 else RIGHT)

    def at(x: float, y: float) -> Point:
        share = (x - first) / (last - first)
        return LEFT + (end - LEFT) * share, HIGH - BOTTOM - (HIGH - BOTTOM - TOP) * (y - least) / (most - least)

    shapes: list[Shape] = [Words((4, 12), upward), Words(((LEFT + end) / 2, HIGH - 4), across, "middle")]
    for value in ticks(least, most):
        _, y = at(first, value)
        shapes += [Line([(LEFT, y), (end, y)]), Words((LEFT - 6, y + 4), _number(value, percent), "end")]
    every = -(-places // 16) if places else 1
    below = marks or {value: f"{value:g}" for value in (range(0, places, every) if places else ticks(first, last))}
    for value, words in below.items():
        shapes.append(Words((at(value, least)[0], HIGH - BOTTOM + 15), words, "middle"))
    plain, others = cycle(INKS), cycle(BESIDE)
    for row, (name, line) in enumerate(drawn.items()):
        colour = next(others if name in dashed else plain)
        spots = [at(*point) for point in line]
        shapes.append(Line(spots, colour, 1.8, name in dashed))
        if places:
            pairs = zip(spots, line, strict=True)
            shapes += [Dot(spot, colour, f"{name}, {x:g}: {_number(y, percent)}", 1, 2.6) for spot, (x, y) in pairs]
        for (x, y), caption in zip(spots, (captions or {}).get(name, ()), strict=False):
            inward = x > end - 2 * RIGHT and y < TOP + 18 * len(drawn)  # or it would overlap the legend
            if caption:
                place, anchor = ((x - 5, y - 5), "end") if inward else ((x + 5, y - 5), "start")
                shapes += [Dot((x, y), colour, caption[1], 1, 3), Words(place, caption[0], anchor, colour)]
        if len(drawn) > 1:
            y = TOP + 4 + 18 * row
            shapes.append(Line([(end + 12, y), (end + 32, y)], colour, 1.8, name in dashed))
            shapes.append(Words((end + 38, y + 4), name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"))
    shapes += [Dot(at(x, y), said=said) for x, y, said in dots if math.isfinite(y)]
    return Drawing(title, (WIDE, HIGH), tuple(shapes))


def _number(value: float, percent: bool) -> str:
    return f"{100 * value:.3g}%" if percent else f"{value:.3g}"
