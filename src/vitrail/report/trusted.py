"""Faithfulness section: deletion and insertion scores of the saliency methods against baselines, with their curves."""

from collections.abc import Sequence

from vitrail.evaluate.trust import BASELINES, Score, Trust, verdict
from vitrail.report.chart import chart
from vitrail.report.figures import Put, figure
from vitrail.report.markup import text
from vitrail.report.page import table

TITLES = {
    "attention": "last-layer attention",
    "rollout": "rollout",
    "gradient_rollout": "gradient rollout",
    "relevance": "relevance (Chefer)",
    "gradcam": "Grad-CAM",
    "integrated_gradients": "integrated gradients",
}


def trusted_part(rows: Sequence[Trust], put: Put) -> list[str]:
    if not rows:
        return []
    masks = rows[0].pointing is not None
    columns = ["method", "#deletion (lower is better)", "#insertion (higher is better)"]
    columns += ["#pointing game (higher)", "#mass on object (higher)"] if masks else []
    columns += ["significantly better than both baselines on"]
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
        "<h2>Faithfulness of the saliency methods</h2>",
        f"<p>{text(verdict(rows))}</p>",
        table(columns, cells),
        f'<div class="figures">{figures}</div>',
    ]


def _curves(rows: Sequence[Trust], which: str, put: Put) -> str:
    lines = {}
    for row in rows:
        heights: Sequence[float] = getattr(row, f"{which}_curve")
        lines[row.method] = [(step / max(len(heights) - 1, 1), height) for step, height in enumerate(heights)]
    title = {"deletion": "Deletion: most salient patches first", "insertion": "Insertion: most salient patches first"}[which]
    drawing = chart(title, "class probability", "fraction of patches", lines, dashed=BASELINES, low=0, percent=True)
    return figure(drawing, which, put)


def _score(score: Score) -> str:
    return f"{score.mean:.3f} ± {score.error:.3f}"
