"""A region of a segmentation model on the explanation page: where it is, what was predicted there, and how faithful
the maps are to it."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from PIL import Image

from vitrail.evaluation.explanation_benchmark import BASELINES
from vitrail.evaluation.explanations import Explanation
from vitrail.explain.faithfulness import Faithfulness
from vitrail.plot.canvas import WriteFile, write_figure
from vitrail.plot.class_colours import class_colour, overlay
from vitrail.plot.heatmap import region_figure
from vitrail.plot.line_chart import line_chart
from vitrail.plot.markup import escape
from vitrail.report.faithfulness_section import METHOD_TITLES
from vitrail.report.html import html_table


def mask_legend(explanation: Explanation, names: Sequence[str]) -> list[str]:
    """Return the classes that are predicted in the image, in their colours; nothing of a classifier."""
    if explanation.region is None:
        return []
    classes = (
        f'<span style="color:{class_colour(label)}">&#9632;</span>&nbsp;{escape(names[label])}'
        for label in explanation.region.predicted.unique().tolist()
    )
    return [f"<p>Predicted in the image: {', '.join(classes)}.</p>"]


def region_figures(explanation: Explanation, image: Image.Image, name: str, write_file: WriteFile) -> Iterator[str]:
    """Yield the predicted mask over the image with the region outlined; nothing of a classifier."""
    region = explanation.region
    if region is None:
        return
    painted = Image.fromarray(overlay(np.asarray(image.convert("RGB")), region.predicted.numpy()))
    inside = (region.weights > 0).numpy()
    yield write_figure(region_figure(painted, inside, "predicted mask and region"), f"{name}-region", write_file)


def curves_section(explanation: Explanation, name: str, write_file: WriteFile) -> list[str]:
    """Return the deletion and insertion scores of the maps as a table, and their curves."""
    curves = explanation.curves
    if not curves:
        return []
    context = {method: each.context for method, each in curves.items() if each.context is not None}
    rows = [
        [
            escape(METHOD_TITLES.get(method, method)),
            f"{each.everywhere.deletion_auc.item():.3f}",
            f"{each.everywhere.insertion_auc.item():.3f}",
            *([f"{context[method].deletion_auc.item():.3f}"] if context else []),
        ]
        for method, each in curves.items()
    ]
    columns = ["method", "#deletion (lower is better)", "#insertion (higher is better)"]
    columns += ["#deletion of the context (lower)"] if context else []
    charts = [
        _chart("Deletion", {method: each.everywhere for method, each in curves.items()}, f"{name}-deletion", write_file),
        *([_chart("Deletion of the context", context, f"{name}-context", write_file)] if context else []),
    ]
    text = "The probability of the class over the region while patches are removed, the most salient first."
    if context:
        text += (
            " Without its own patches a region loses its class, whatever surrounds it, so a map that merely marks the region "
            "has a low deletion; with the region's patches kept, the score says whether the map finds the context that matters."
        )
    return [
        "<h3>Faithfulness of the maps to the region</h3>",
        f"<p>{text}</p>",
        html_table(columns, rows),
        f'<div class="figures">{"".join(charts)}</div>',
    ]


def _chart(title: str, curves: Mapping[str, Faithfulness], file: str, write_file: WriteFile) -> str:
    lines = {
        METHOD_TITLES.get(method, method): [(step / (len(curve) - 1), value) for step, value in enumerate(curve)]
        for method, each in curves.items()
        for curve in [each.deletion_curve[0].tolist()]
    }
    figure = line_chart(
        f"{title}: most salient patches first",
        "class probability",
        "fraction of patches",
        lines,
        dashed=BASELINES,
        y_min=0,
        percent=True,
    )
    return write_figure(figure, file, write_file)
