"""Line charts as inline SVG, for curves over training steps: no plotting library, sharp at any size, light and dark."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, product

from vitrail.report.markup import text

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 520, 220, 52, 24, 26, 12  # the right margin holds half of the last tick label
COLOURS = ("var(--mark)", "var(--bad)", "var(--good)", "var(--soft)")
DASHES = ("", ' stroke-dasharray="6 4"', ' stroke-dasharray="2 3"')  # for more lines than colours
MOST = 600  # points per line; more cannot be seen

Line = Sequence[tuple[float, float]]


def curves(
    title: str,
    lines: Mapping[str, Line],
    *,
    percent: bool = False,
    powers: bool = False,
    places: int | None = None,
    between: tuple[float, float] | None = None,
    legend: bool = True,
) -> str:
    """Draw a line chart with axis, grid lines and legend. ``log_x``: x values are exponents of ten. ``columns``: x is an index
    below it, each in the middle of its own column. ``y_range``: minimum and maximum of the y axis."""
    points = [point for line in lines.values() for point in line if math.isfinite(point[1])]
    if not points:
        return ""
    first, steps = (min(x for x, _ in points) if powers else 0.0), max(x for x, _ in points) or 1.0
    first, steps = (first, steps) if places is None else (-0.5, places - 0.5)
    low, high = between or (min(y for _, y in points), max(y for _, y in points))
    low, high = (low, high) if high > low else (max(low - 0.05, 0.0), low + 0.05) if percent else (low - 0.5, high + 0.5)

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * (x - first) / ((steps - first) or 1.0)
        return across, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (y - low) / (high - low)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(title)}">', f"<title>{text(title)}</title>"]
    fine = 1 if high - low < 0.03 else 0  # decimals of a percentage, where whole ones would be equal
    for value in ticks(low, high):
        _, y = at(first, value)
        shown = f"{value:.{fine}%}" if percent else f"{value:.3g}"
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{shown}</text>')
    for value in range(places) if places else ticks(first, steps) if steps > first else ():
        if not powers and value % 1:
            continue  # steps are whole
        x, _ = at(value, low)
        shown = f"{10**value:.1g}" if powers else f"{value:,.0f}"
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{shown}</text>')
    for (dash, colour), (name, line) in zip(cycle(product(DASHES, COLOURS)), lines.items(), strict=False):
        spots = [(*at(*point), point[1]) for point in thinned(line)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in spots)
        look = f'fill="none" stroke="{colour}" stroke-width="1.6"{dash}'
        parts.append(f'<polyline points="{path}" {look}><title>{text(name)}</title></polyline>')
        for x, y, height in spots if places or len(spots) == 1 else ():  # a line of one point is invisible
            said = f"{text(name)}: {height:.1%}" if percent else f"{text(name)}: {height:.3g}"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{said}</title></circle>')
    who = f' <span class="soft">{key(lines)}</span>' if legend else ""
    return f"<figure><figcaption>{text(title)}{who}</figcaption>{''.join(parts)}</svg></figure>"


def key(names: Iterable[str]) -> str:
    """Return the legend; dashed lines have a hollow marker."""
    marks = zip(cycle(product(DASHES, COLOURS)), names, strict=False)
    return " ".join(  # a marker and its name stay on one line
        f'<span style="white-space:nowrap"><span style="color:{colour}">&#{9633 if dash else 9632};</span> {text(name)}</span>'
        for (dash, colour), name in marks
    )


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Return round tick values within the range: 1, 2 or 5 times a power of ten apart."""
    raw = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(raw))
    gap = min((unit * times for times in (1, 2, 5, 10)), key=lambda gap: abs(math.log(gap / raw)))
    first = math.ceil(low / gap - 1e-9)
    return [gap * number for number in range(first, math.floor(high / gap + 1e-9) + 1)]


def thinned(line: Line) -> Line:
    """Average neighbouring points of a long line, so that it can be read."""
    kept = [point for point in line if math.isfinite(point[1])]
    each = -(-len(kept) // MOST)
    groups = [kept[start : start + each] for start in range(0, len(kept), each)] if each > 1 else [[point] for point in kept]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]
