"""Reliability diagram (Guo et al. 2017) as inline SVG: accuracy by confidence."""

from vitrail.evaluate.calibration import Reliability
from vitrail.report.markup import text

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 520, 300, 52, 40, 12, 20


def diagram(title: str, found: Reliability) -> str:
    """Draw one bar per confidence bin, as high as its accuracy, fainter for few images; the diagonal is perfect calibration."""
    bins, most = len(found.pictures), max(int(found.pictures.max()), 1)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM - TOP

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + wide * x, HEIGHT - BOTTOM - high * y

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(title)}">', f"<title>{text(title)}</title>"]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        (x, _), (_, y) = at(tick, 0), at(0, tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:.0%}</text>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:.0%}</text>')
    rows = zip(found.pictures.tolist(), found.confidence.tolist(), found.accuracy.tolist(), strict=True)
    for number, (pictures, sure, right) in enumerate(rows):
        if pictures:
            x, y = at(number / bins, right)
            shade, tall = 0.25 + 0.75 * (pictures / most) ** 0.5, max(HEIGHT - BOTTOM - y, 1.0)
            said = f"{pictures:,} images, confidence {sure:.1%}, accuracy {right:.1%}"
            parts.append(
                f'<rect x="{x + 1:.1f}" y="{HEIGHT - BOTTOM - tall:.1f}" width="{wide / bins - 2:.1f}" height="{tall:.1f}" '
                f'fill="var(--bar)" fill-opacity="{shade:.2f}"><title>{said}</title></rect>'
            )
            x, y = at(sure, right)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="var(--mark)"/>')
    (x, y), (x2, y2) = at(0, 0), at(1, 1)
    parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="var(--bad)" stroke-dasharray="4 3"/>')
    parts.append(f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 6}" text-anchor="middle">confidence</text></svg>')
    legend = '<span class="soft">accuracy by confidence</span>'
    return f"<figure><figcaption>{text(title)} {legend}</figcaption>{''.join(parts)}</figure>"
