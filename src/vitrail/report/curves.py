"""Lines over steps as SVG, drawn by hand: nothing to install, sharp at any size, readable in light and dark."""

import math
from collections.abc import Mapping, Sequence

from vitrail.report.page import text

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 520, 220, 52, 26, 12
COLOURS = ("var(--mark)", "var(--bad)", "var(--good)", "var(--soft)")
MOST = 600  # points of a line; more cannot be seen

Line = Sequence[tuple[float, float]]


def curves(title: str, lines: Mapping[str, Line], *, percent: bool = False, powers: bool = False) -> str:
    """A figure with an axis, gentle grid lines and a legend. ``powers``: what is across are powers of ten."""
    points = [point for line in lines.values() for point in line if math.isfinite(point[1])]
    if not points:
        return ""
    first, steps = (min(x for x, _ in points) if powers else 0.0), max(x for x, _ in points) or 1.0
    low, high = min(y for _, y in points), max(y for _, y in points)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - 8) * (x - first) / ((steps - first) or 1.0)
        return across, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (y - low) / (high - low)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(title)}">', f"<title>{text(title)}</title>"]
    for value in ticks(low, high):
        _, y = at(first, value)
        shown = f"{value:.0%}" if percent else f"{value:.3g}"
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{shown}</text>')
    for value in ticks(first, steps) if steps > first else ():
        x, _ = at(value, low)
        shown = f"{10**value:.1g}" if powers else f"{value:,.0f}"
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{shown}</text>')
    for colour, (name, line) in zip(COLOURS, lines.items(), strict=False):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in thinned(line)))
        look = f'fill="none" stroke="{colour}" stroke-width="1.6"'
        parts.append(f'<polyline points="{path}" {look}><title>{text(name)}</title></polyline>')
    legend = " ".join(
        f'<span style="color:{colour}">&#9632;</span> {text(name)}' for colour, name in zip(COLOURS, lines, strict=False)
    )
    return f'<figure><figcaption>{text(title)} <span class="soft">{legend}</span></figcaption>{"".join(parts)}</svg></figure>'


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers within the range: 1, 2 or 5 times a power of ten apart."""
    raw = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(raw))
    gap = min((unit * times for times in (1, 2, 5, 10)), key=lambda gap: abs(math.log(gap / raw)))
    first = math.ceil(low / gap - 1e-9)
    return [gap * number for number in range(first, math.floor(high / gap + 1e-9) + 1)]


def thinned(line: Line) -> Line:
    """Means of neighbours, so that a long noisy line is one that can be read."""
    kept = [point for point in line if math.isfinite(point[1])]
    each = -(-len(kept) // MOST)
    groups = [kept[start : start + each] for start in range(0, len(kept), each)] if each > 1 else [[point] for point in kept]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]
