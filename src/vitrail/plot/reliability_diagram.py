"""Reliability diagram (Guo et al. 2017) as inline SVG: accuracy by confidence."""

from vitrail.evaluation.calibration import Reliability
from vitrail.plot.markup import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 520, 300, 52, 40, 12, 20


def reliability_diagram(title: str, reliability: Reliability) -> str:
    """Draw one bar per confidence bin, as high as its accuracy, fainter for few images; the diagonal is perfect calibration."""
    bins, max_count = len(reliability.counts), max(int(reliability.counts.max()), 1)
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM - TOP

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        return LEFT + width * x, HEIGHT - BOTTOM - height * y

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">', f"<title>{escape(title)}</title>"]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        (x, _), (_, y) = to_pixels(tick, 0), to_pixels(0, tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:.0%}</text>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:.0%}</text>')
    rows = zip(reliability.counts.tolist(), reliability.confidence.tolist(), reliability.accuracy.tolist(), strict=True)
    for number, (count, confidence, accuracy) in enumerate(rows):
        if count:
            x, y = to_pixels(number / bins, accuracy)
            opacity, bar_height = 0.25 + 0.75 * (count / max_count) ** 0.5, max(HEIGHT - BOTTOM - y, 1.0)
            tooltip = f"{count:,} images, confidence {confidence:.1%}, accuracy {accuracy:.1%}"
            parts.append(
                f'<rect x="{x + 1:.1f}" y="{HEIGHT - BOTTOM - bar_height:.1f}" width="{width / bins - 2:.1f}" '
                f'height="{bar_height:.1f}" fill="var(--bar)" fill-opacity="{opacity:.2f}"><title>{tooltip}</title></rect>'
            )
            x, y = to_pixels(confidence, accuracy)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="var(--mark)"/>')
    (x, y), (x2, y2) = to_pixels(0, 0), to_pixels(1, 1)
    parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="var(--bad)" stroke-dasharray="4 3"/>')
    parts.append(f'<text x="{LEFT + width / 2}" y="{HEIGHT - 6}" text-anchor="middle">confidence</text></svg>')
    legend = '<span class="soft">accuracy by confidence</span>'
    return f"<figure><figcaption>{escape(title)} {legend}</figcaption>{''.join(parts)}</figure>"
