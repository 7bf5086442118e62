"""Line charts, scatter plots and bars, as figures."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, product

from vitrail.evaluation.calibration import Reliability
from vitrail.plot.canvas import Bar, Dot, Figure, LegendEntry, Line, Point, Shape, Text

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 520, 260, 48, 16, 26, 36
FLUID_HEIGHT, FLUID_LEFT, FLUID_RIGHT, FLUID_BOTTOM = 220, 60, 24, 40  # a phone has larger text
LABEL_HEIGHT = 14
LEGEND_WIDTH, MAX_NAME_LETTERS = 164, 20  # its width in pixels, and the most letters of a name in it
LINE_COLOURS = ("mark", "bad", "good", "#8a5fb5", "#b07d1a", "#2f8f8f")
BASELINE_COLOURS = ("soft", "ink")  # colours of baselines
MAX_POINTS_PER_LINE = 600  # more cannot be seen

Points = Sequence[Point]
Interval = tuple[float, float]


@dataclass(frozen=True)
class _Axes:
    """Maps values to pixels."""

    x: Interval
    y: Interval
    left: float
    right: float
    top: float
    bottom: float
    percent: bool

    def position(self, x: float, y: float) -> Point:
        x_fraction, y_fraction = (x - self.x[0]) / (self.x[1] - self.x[0]), (y - self.y[0]) / (self.y[1] - self.y[0])
        return self.left + (self.right - self.left) * x_fraction, self.bottom - (self.bottom - self.top) * y_fraction

    def format(self, y: float) -> str:
        return f"{100 * y:.3g}%" if self.percent else f"{y:.3g}"


def line_chart(
    title: str,
    y_label: str,
    x_label: str,
    lines: Mapping[str, Points] | None = None,
    dots: Sequence[tuple[float, float, str]] = (),
    bars: Sequence[tuple[Interval, float, float, str]] = (),
    dashed: Sequence[str] = (),
    columns: int | None = None,
    x_min: float | None = None,
    y_min: float | None = None,
    y_max: float | None = None,
    percent: bool = False,
    captions: Mapping[str, Sequence[tuple[str, str] | None]] | None = None,
    x_ticks: Mapping[float, str] | None = None,
    fluid: bool = False,
    legend: bool = True,
    height: int | None = None,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """Draw lines, dots and bars.

    ``dots``: x, y and hover text. ``bars``: ends in x, y, opacity and hover text. ``dashed``: names of baselines. ``columns``:
    x is an index below it, each in the middle of its own column. ``x_min``, ``y_min``, ``y_max``: ends of the axes.
    ``captions``: per point of a line its label and hover text, or None for no dot. ``x_ticks``: tick labels by x value, instead
    of round numbers. ``fluid``: in a page as wide as its column, with the legend next to the title. ``colours``: of lines that
    have their own.
    """
    finite_lines = {name: downsample(line) for name, line in (lines or {}).items()}
    dots = [dot for dot in dots if math.isfinite(dot[1])]
    points = [point for line in finite_lines.values() for point in line] + [(x, y) for x, y, _ in dots]
    inside = legend and not fluid and len(finite_lines) > 1
    left, right, bottom = (FLUID_LEFT, FLUID_RIGHT, FLUID_BOTTOM) if fluid else (LEFT, RIGHT, BOTTOM)
    height = height or (FLUID_HEIGHT if fluid else HEIGHT)
    axes = _Axes(
        (-0.5, columns - 0.5) if columns else _x_range(points, x_min),
        _y_range(points, y_min, y_max, percent),
        left,
        WIDTH - (LEGEND_WIDTH if inside else right),
        TOP - (0 if y_label else LABEL_HEIGHT),
        height - bottom + (0 if x_label else LABEL_HEIGHT),
        percent,
    )
    shapes: list[Shape] = [Text((4, 12), y_label)] if y_label else []
    shapes += [Text(((axes.left + axes.right) / 2, height - 4), x_label, "middle")] if x_label else []
    ticks_by_x = x_ticks or {x: _format_x(x) for x in _x_ticks(axes, points, columns)}
    shapes += [*_grid(axes, ticks_by_x, 18 if fluid else 15), *(_bar(axes, *bar) for bar in bars)]
    entries = line_styles(finite_lines, dashed)
    entries = [LegendEntry(each.name, (colours or {}).get(each.name, each.colour), each.dashed) for each in entries]
    for row, (entry, line) in enumerate(zip(entries, finite_lines.values(), strict=True)):
        shapes += _line(axes, entry, line, columns is not None, entry.name if fluid else "")
        shapes += _captions(axes, entry, line, (captions or {}).get(entry.name, ()), len(finite_lines))
        shapes += _legend_row(axes, entry, row) if inside else ()
    shapes += [Dot(axes.position(x, y), tooltip=tooltip) for x, y, tooltip in dots]
    return Figure(title, (WIDTH, height), tuple(shapes), tuple(entries) if fluid and legend else (), fluid)


def reliability_diagram(title: str, reliability: Reliability) -> Figure:
    """Draw a reliability diagram (Guo et al. 2017): one bar per confidence bin, as high as its accuracy, fainter for few
    images; the diagonal is perfect calibration."""
    counts, bars, dots = reliability.counts.tolist(), [], []
    rows = zip(counts, reliability.confidence.tolist(), reliability.accuracy.tolist(), strict=True)
    for number, (count, confidence, accuracy) in enumerate(rows):
        if count:
            tooltip = f"{count:,} images, confidence {confidence:.1%}, accuracy {accuracy:.1%}"
            ends = number / len(counts), (number + 1) / len(counts)
            bars.append((ends, accuracy, 0.25 + 0.75 * (count / max(counts)) ** 0.5, tooltip))
            dots.append((confidence, accuracy, tooltip))
    diagonal = {"perfect calibration": [(0.0, 0.0), (1.0, 1.0)]}
    x_ticks = {fifths / 5: f"{fifths / 5:.0%}" for fifths in range(6)}
    return line_chart(
        title, "accuracy", "confidence", diagonal, dots, bars, tuple(diagonal), percent=True, x_ticks=x_ticks, fluid=True,
        height=300,
    )  # fmt: skip


def line_styles(names: Iterable[str], dashed: Sequence[str] = ()) -> list[LegendEntry]:
    """Return colour and dash of each line; if there are more lines than colours, the next ones are dashed."""
    styles, baseline_colours = cycle(product((False, True), LINE_COLOURS)), cycle(BASELINE_COLOURS)
    return [
        LegendEntry(name, next(baseline_colours), True) if name in dashed else LegendEntry(name, *next(styles)[::-1])
        for name in names
    ]


def ticks(low: float, high: float, target_count: int = 4) -> list[float]:
    """Return round tick values within the range: 1, 2 or 5 times a power of ten apart."""
    raw = (high - low) / target_count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = min((unit * factor for factor in (1, 2, 5, 10)), key=lambda step: abs(math.log(step / raw)))
    first = math.ceil(low / step - 1e-9)
    return [step * number for number in range(first, math.floor(high / step + 1e-9) + 1)]


def downsample(line: Points) -> Points:
    """Average neighbouring points of a long line, so that it can be read; points that are not finite are dropped."""
    finite = [point for point in line if math.isfinite(point[1])]
    size = -(-len(finite) // MAX_POINTS_PER_LINE)
    if size <= 1:
        return finite
    groups = [finite[start : start + size] for start in range(0, len(finite), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def _x_range(points: Points, x_min: float | None) -> Interval:
    low = min((x for x, _ in points), default=0.0) if x_min is None else x_min
    high = max((x for x, _ in points), default=1.0)
    return (low, high) if high > low else (low - 0.5, low + 0.5)  # a single point is centred


def _y_range(points: Points, y_min: float | None, y_max: float | None, percent: bool) -> Interval:
    low, high = min((y for _, y in points), default=0.0), max((y for _, y in points), default=1.0)
    low, high = low if y_min is None else y_min, high if y_max is None else y_max
    if high > low:
        return low, high
    margin = abs(low) / 2 or (0.01 if percent else 1.0)  # a flat line is centred, above a given minimum
    return (low - margin if y_min is None else low), low + margin


def _x_ticks(axes: _Axes, points: Points, columns: int | None) -> Sequence[float]:
    if columns:
        return range(0, columns, -(-columns // 16))
    whole = all(x == round(x) for x, _ in points)  # such as steps, which have no halves
    return [x for x in ticks(*axes.x) if not whole or abs(x - round(x)) < 1e-9]


def _format_x(x: float) -> str:
    return f"{x:,.0f}" if x == round(x) else f"{x:g}"


def _grid(axes: _Axes, ticks_by_x: Mapping[float, str], label_offset: int) -> Iterator[Shape]:
    for value in ticks(*axes.y):
        _, y = axes.position(axes.x[0], value)
        yield Line([(axes.left, y), (axes.right, y)])
        yield Text((axes.left - 6, y + 4), axes.format(value), "end")
    for x, label in ticks_by_x.items():
        yield Text((axes.position(x, axes.y[0])[0], axes.bottom + label_offset), label, "middle")


def _bar(axes: _Axes, x: Interval, y: float, opacity: float, tooltip: str) -> Bar:
    (left, top), (right, _) = axes.position(x[0], y), axes.position(x[1], y)
    top = min(top, axes.bottom - 1)  # that of zero is visible, too
    return Bar((left + 1, top, right - left - 2, axes.bottom - top), "bar", opacity, tooltip)


def _line(axes: _Axes, entry: LegendEntry, line: Points, has_dots: bool, tooltip: str) -> Iterator[Shape]:
    positions = [axes.position(*point) for point in line]
    yield Line(positions, entry.colour, 1.8, entry.dashed, tooltip=tooltip)
    if has_dots or len(line) == 1:  # a line of one point is invisible
        for position, (x, y) in zip(positions, line, strict=True):
            yield Dot(position, entry.colour, f"{entry.name}, {_format_x(x)}: {axes.format(y)}", 1, 2.6)


def _captions(
    axes: _Axes, entry: LegendEntry, line: Points, captions: Sequence[tuple[str, str] | None], num_lines: int
) -> Iterator[Shape]:
    for point, caption in zip(line, captions, strict=False):
        if caption:
            x, y = axes.position(*point)
            inward = x > axes.right - 2 * RIGHT and y < TOP + 18 * num_lines  # or it would overlap the legend
            label_position, anchor = ((x - 5, y - 5), "end") if inward else ((x + 5, y - 5), "start")
            yield Dot((x, y), entry.colour, caption[1], 1, 3)
            yield Text(label_position, caption[0], anchor, entry.colour)


def _legend_row(axes: _Axes, entry: LegendEntry, row: int) -> Iterator[Shape]:
    y, name = TOP + 4 + 18 * row, entry.name
    yield Line([(axes.right + 12, y), (axes.right + 32, y)], entry.colour, 1.8, entry.dashed)
    yield Text((axes.right + 38, y + 4), name if len(name) <= MAX_NAME_LETTERS else f"{name[: MAX_NAME_LETTERS - 1]}…")
