"""Which map to trust on a model: the table with its baselines, the curves behind it, and what follows."""

from collections.abc import Sequence

from vitrail.evaluate.trust import BASELINES, Score, Trust, verdict
from vitrail.report.chart import chart
from vitrail.report.figures import Put, figure
from vitrail.report.page import table, text

TITLES = {
    "attention": "attention of the last layer",
    "rollout": "rollout",
    "gradient_rollout": "gradient rollout",
    "relevance": "relevance (Chefer)",
    "gradcam": "Grad-CAM",
    "integrated": "integrated gradients",
}


def trusted_part(rows: Sequence[Trust], put: Put) -> list[str]:
    if not rows:
        return []
    masks = rows[0].pointing is not None
    columns = ["method", "#deletion (low is good)", "#insertion (high)"]
    columns += ["#pointing (high)", "#on the object (high)"] if masks else []
    columns += ["clearly better than both baselines on"]
    cells = [
        [
            text(TITLES.get(row.method, row.method)),
            *(_score(one) for one in (row.deletion, row.insertion, row.pointing, row.overlap) if one),
            text(", ".join(row.better) or ("a baseline" if row.method in BASELINES else "nothing")),
        ]
        for row in rows
    ]
    figures = "".join(_curves(rows, which, put) for which in ("deletion", "insertion"))
    return [
        "<h2>Which map to trust on this model</h2>",
        f"<p>{text(verdict(rows))}</p>",
        table(columns, cells),
        f'<div class="figures">{figures}</div>',
    ]


def _curves(rows: Sequence[Trust], which: str, put: Put) -> str:
    lines = {}
    for row in rows:
        heights: Sequence[float] = getattr(row, f"{which}_curve")
        lines[row.method] = [(step / max(len(heights) - 1, 1), height) for step, height in enumerate(heights)]
    title = {"deletion": "While the best patches are deleted", "insertion": "While the best patches are inserted"}[which]
    drawing = chart(title, "the class's probability", "share of patches", lines, dashed=BASELINES, low=0, percent=True)
    return figure(drawing, which, put)


def _score(score: Score) -> str:
    return f"{score.mean:.3f} ± {score.error:.3f}"
