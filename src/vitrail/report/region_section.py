"""A region of a segmentation model, or a box of a detection model, on the explanation page: where it is, what was predicted
there, and how faithful the maps are to it."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from PIL import Image

from vitrail.evaluation.box_selection import ExplainedBox
from vitrail.evaluation.explanation_benchmark import BASELINES
from vitrail.evaluation.explanations import Explanation
from vitrail.evaluation.region_selection import Region
from vitrail.explain.faithfulness import Faithfulness
from vitrail.plot.box_image import draw_boxes
from vitrail.plot.canvas import WriteFile, write_figure
from vitrail.plot.class_colours import class_colour, overlay
from vitrail.plot.heatmap import region_figure
from vitrail.plot.line_chart import line_chart
from vitrail.plot.markup import escape
from vitrail.report.faithfulness_section import METHOD_TITLES
from vitrail.report.html import html_table

BOXES_SIDE = 448  # pixels of the image with boxes and their labels
REGION_CONTEXT = (
    "Without its own patches a region loses its class, whatever surrounds it, so a map that merely marks the region "
    "has a low deletion; with the region's patches kept, the score says whether the map finds the context that matters."
)
BOX_CONTEXT = (
    "Without the patches of its box an object is not found, whatever surrounds it, so a map that merely marks the box has a "
    "low deletion; with the box's patches kept, the score says whether the map finds the surroundings that matter."
)


def mask_legend(explanation: Explanation, names: Sequence[str]) -> list[str]:
    """Return the classes that are predicted in the image, in their colours; only of a segmentation model."""
    if not isinstance(explanation.region, Region):
        return []
    classes = (
        f'<span style="color:{class_colour(label)}">&#9632;</span>&nbsp;{escape(names[label])}'
        for label in explanation.region.predicted.unique().tolist()
    )
    return [f"<p>Predicted in the image: {', '.join(classes)}.</p>"]


def region_figures(
    explanation: Explanation, image: Image.Image, names: Sequence[str], name: str, write_file: WriteFile
) -> Iterator[str]:
    """Yield the predicted mask or boxes over the image, with what is explained outlined; nothing of a classifier."""
    region = explanation.region
    if region is None:
        return
    if isinstance(region, ExplainedBox):
        boxes, scores, labels = (values.double().numpy() for values in region.detections)
        scale = max(BOXES_SIDE / max(image.size), 1)
        painted = draw_boxes(image, boxes, labels.astype(np.int64), names, scores=scores, scale=scale)
        title = "detections, the explained one outlined"
    else:
        painted = Image.fromarray(overlay(np.asarray(image.convert("RGB")), region.predicted.numpy()))
        title = "predicted mask and region"
    side = BOXES_SIDE if isinstance(region, ExplainedBox) else 224
    yield write_figure(region_figure(painted, region.inside.numpy(), title, side), f"{name}-region", write_file)


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
    is_box = isinstance(explanation.region, ExplainedBox)
    text = (
        "The score of the box while patches are removed, the most salient first."
        if is_box
        else "The probability of the class over the region while patches are removed, the most salient first."
    )
    if context:
        text += f" {BOX_CONTEXT if is_box else REGION_CONTEXT}"
    return [
        f"<h3>Faithfulness of the maps to the {'box' if is_box else 'region'}</h3>",
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
