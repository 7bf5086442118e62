"""Line charts as inline SVG, for curves over training steps: no plotting library, sharp at any size, light and dark."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, product

from vitrail.plot.markup import escape

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 520, 220, 52, 24, 26, 12  # the right margin holds half of the last tick label
LINE_COLOURS = ("var(--mark)", "var(--bad)", "var(--good)", "var(--soft)")
DASHES = ("", ' stroke-dasharray="6 4"', ' stroke-dasharray="2 3"')  # for more lines than colours
MAX_POINTS_PER_LINE = 600  # points per line; more cannot be seen

Points = Sequence[tuple[float, float]]


def line_chart_html(
    title: str,
    lines: Mapping[str, Points],
    *,
    percent: bool = False,
    log_x: bool = False,
    columns: int | None = None,
    y_range: tuple[float, float] | None = None,
    legend: bool = True,
) -> str:
    """Draw a line chart with axis, grid lines and legend. ``log_x``: x values are exponents of ten. ``columns``: x is an index
    below it, each in the middle of its own column. ``y_range``: minimum and maximum of the y axis."""
    points = [point for line in lines.values() for point in line if math.isfinite(point[1])]
    if not points:
        return ""
    x_min, x_max = (min(x for x, _ in points) if log_x else 0.0), max(x for x, _ in points) or 1.0
    x_min, x_max = (x_min, x_max) if columns is None else (-0.5, columns - 0.5)
    y_min, y_max = y_range or (min(y for _, y in points), max(y for _, y in points))
    y_min, y_max = (
        (y_min, y_max) if y_max > y_min else (max(y_min - 0.05, 0.0), y_min + 0.05) if percent else (y_min - 0.5, y_max + 0.5)
    )

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        pixel_x = LEFT + (WIDTH - LEFT - RIGHT) * (x - x_min) / ((x_max - x_min) or 1.0)
        return pixel_x, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (y - y_min) / (y_max - y_min)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">', f"<title>{escape(title)}</title>"]
    decimals = 1 if y_max - y_min < 0.03 else 0  # decimals of a percentage, where whole ones would be equal
    for value in ticks(y_min, y_max):
        _, y = to_pixels(x_min, value)
        label = f"{value:.{decimals}%}" if percent else f"{value:.3g}"
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for value in range(columns) if columns else ticks(x_min, x_max) if x_max > x_min else ():
        if not log_x and value % 1:
            continue  # steps are whole
        x, _ = to_pixels(value, y_min)
        label = f"{10**value:.1g}" if log_x else f"{value:,.0f}"
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{label}</text>')
    for (dash, colour), (name, line) in zip(cycle(product(DASHES, LINE_COLOURS)), lines.items(), strict=False):
        positions = [(*to_pixels(*point), point[1]) for point in downsample(line)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in positions)
        attributes = f'fill="none" stroke="{colour}" stroke-width="1.6"{dash}'
        parts.append(f'<polyline points="{path}" {attributes}><title>{escape(name)}</title></polyline>')
        for x, y, y_value in positions if columns or len(positions) == 1 else ():  # a line of one point is invisible
            tooltip = f"{escape(name)}: {y_value:.1%}" if percent else f"{escape(name)}: {y_value:.3g}"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{tooltip}</title></circle>')
    legend_part = f' <span class="soft">{legend_html(lines)}</span>' if legend else ""
    return f"<figure><figcaption>{escape(title)}{legend_part}</figcaption>{''.join(parts)}</svg></figure>"


def legend_html(names: Iterable[str]) -> str:
    """Return the legend; dashed lines have a hollow marker."""
    markers = zip(cycle(product(DASHES, LINE_COLOURS)), names, strict=False)
    return " ".join(  # a marker and its name stay on one line
        f'<span style="white-space:nowrap"><span style="color:{colour}">&#{9633 if dash else 9632};</span> '
        f"{escape(name)}</span>"
        for (dash, colour), name in markers
    )


def ticks(low: float, high: float, target_count: int = 4) -> list[float]:
    """Return round tick values within the range: 1, 2 or 5 times a power of ten apart."""
    raw = (high - low) / target_count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = min((unit * factor for factor in (1, 2, 5, 10)), key=lambda step: abs(math.log(step / raw)))
    first = math.ceil(low / step - 1e-9)
    return [step * number for number in range(first, math.floor(high / step + 1e-9) + 1)]


def downsample(line: Points) -> Points:
    """Average neighbouring points of a long line, so that it can be read."""
    finite = [point for point in line if math.isfinite(point[1])]
    group_size = -(-len(finite) // MAX_POINTS_PER_LINE)
    groups = (
        [finite[start : start + group_size] for start in range(0, len(finite), group_size)]
        if group_size > 1
        else [[point] for point in finite]
    )
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]
