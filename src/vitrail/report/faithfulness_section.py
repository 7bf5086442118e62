"""Faithfulness section: deletion and insertion scores of the saliency methods against baselines, with their curves."""

from collections.abc import Sequence

from vitrail.evaluation.explanation_benchmark import BASELINES, MeanAndError, MethodScore, verdict
from vitrail.plot.canvas import WriteFile, write_figure
from vitrail.plot.line_chart import line_chart
from vitrail.plot.markup import escape
from vitrail.report.html import html_table

METHOD_TITLES = {
    "attention": "last-layer attention",
    "rollout": "rollout",
    "gradient_rollout": "gradient rollout",
    "relevance": "relevance (Chefer)",
    "gradcam": "Grad-CAM",
    "integrated_gradients": "integrated gradients",
}


def faithfulness_section(scores: Sequence[MethodScore], write_file: WriteFile) -> list[str]:
    if not scores:
        return []
    has_masks = scores[0].pointing_game is not None
    columns = ["method", "#deletion (lower is better)", "#insertion (higher is better)"]
    columns += ["#pointing game (higher)", "#mass on object (higher)"] if has_masks else []
    columns += ["significantly better than both baselines on"]
    cells = [
        [
            escape(METHOD_TITLES.get(row.method, row.method)),
            *(_format_score(score) for score in (row.deletion, row.insertion, row.pointing_game, row.mass_on_object) if score),
            escape(", ".join(row.better_on) or ("a baseline" if row.method in BASELINES else "nothing")),
        ]
        for row in scores
    ]
    figures = "".join(_curves(scores, curve, write_file) for curve in ("deletion", "insertion"))
    return [
        "<h2>Faithfulness of the saliency methods</h2>",
        f"<p>{escape(verdict(scores))}</p>",
        html_table(columns, cells),
        f'<div class="figures">{figures}</div>',
    ]


def _curves(scores: Sequence[MethodScore], curve: str, write_file: WriteFile) -> str:
    lines = {}
    for row in scores:
        values: Sequence[float] = getattr(row, f"{curve}_curve")
        lines[METHOD_TITLES.get(row.method, row.method)] = [
            (step / max(len(values) - 1, 1), y_value) for step, y_value in enumerate(values)
        ]
    title = {"deletion": "Deletion: most salient patches first", "insertion": "Insertion: most salient patches first"}[curve]
    chart_figure = line_chart(title, "class probability", "fraction of patches", lines, dashed=BASELINES, y_min=0, percent=True)
    return write_figure(chart_figure, curve, write_file)


def _format_score(score: MeanAndError) -> str:
    return f"{score.mean:.3f} ± {score.error:.3f}"
