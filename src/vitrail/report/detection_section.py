"""Section of a report on boxes: average precision of each class and by size, precision-recall curves, confusion with the
background, best and worst images. n images, k classes, m of an image's boxes.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from PIL import Image

from vitrail.data.band_view import to_view
from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.objects import Objects
from vitrail.errors import VitrailError
from vitrail.plot.box_image import draw_boxes
from vitrail.plot.class_colours import class_colour
from vitrail.plot.line_chart import line_chart
from vitrail.plot.markup import escape
from vitrail.report.contact_sheet import contact_sheet, data_uri
from vitrail.report.html import html_table, matrix_table
from vitrail.report.mask_view import html_legend, swatch
from vitrail.report.task_section import RunReport, TaskSection
from vitrail.tasks.box_matching import AREA_RANGES, BACKGROUND, ImageMatches, pair_boxes
from vitrail.tasks.detected_images import DetectedImages, FoundBoxes, load_detected_images
from vitrail.tasks.detection_metrics import (
    bootstrap_detection,
    class_rows,
    detection_scores,
    image_average_precision,
    precision_recall_curves,
    score_thresholds,
)
from vitrail.tasks.resampling import finite_interval

MAX_CLASSES = 300  # rows of the table
MAX_CONFUSED = 30  # classes of the confusion matrix, those with the most objects
NUM_CURVES = 6  # classes with a precision-recall curve
NUM_WORST, NUM_BEST = 4, 2  # images
IMAGE_SIDE = 440  # pixels of a drawn image
CROWD_COLOUR = "#a0a0a0"
SIZE_TITLES = {"small": "small: up to 32 x 32 pixels", "medium": "medium", "large": "large: from 96 x 96 pixels", "all": "all"}


class DetectionSection(TaskSection):
    """Average precision with its interval, and the evaluation of the saved boxes."""

    def headline(self, report: RunReport) -> tuple[str, str]:
        split, saved = report.result["reported_on"], _saved(report)
        scores = report.result[split]
        number, caption = report.format_metric("ap", scores["ap"]), f"AP on {split}"
        if saved is None or not len(saved):
            return number, caption
        samples, _ = bootstrap_detection(saved.matches(), len(report.result["classes"]))
        ap, ap50 = (" to ".join(map(_percent, finite_interval(samples[name]))) for name in ("ap", "ap50"))
        return number, f"{caption}, 95 % interval {ap}, AP50 {report.format_metric('ap50', scores['ap50'])} ({ap50})"

    def body(self, report: RunReport) -> Iterator[str]:
        saved = _saved(report) if report.result else None
        if saved is None or not len(saved):
            return
        rows = report.result["classes"]
        yield from _evaluation(rows, saved, report.result[report.result["reported_on"]])
        dataset = report.data.splits[report.result["reported_on"]]
        yield from _images(dataset, saved, rows)

    def out_of_fold(
        self, report: RunReport, predictions: dict[str, torch.Tensor], class_names: tuple[str, ...]
    ) -> Iterator[str]:
        saved = load_detected_images(predictions)
        if saved is not None and len(saved):
            matches = saved.matches()
            yield from _evaluation(class_rows(class_names, matches), saved, detection_scores(matches, len(class_names)))

    def next_steps(self, report: RunReport) -> Iterator[str]:
        folder = escape(shlex.quote(str(report.run.folder)))
        yield "<p>Its weights find objects in new images: as COCO JSON, or drawn.</p>"
        yield (
            f"<pre>vitrail predict {folder} IMAGES --out boxes.json\nvitrail evaluate {folder} DATA\n"
            f"vitrail export {folder} model.onnx</pre>"
        )


def _saved(report: RunReport) -> DetectedImages | None:
    if "classes" not in report.result:
        return None
    return load_detected_images({name: torch.from_numpy(array) for name, array in report.run.load_predictions().items()})


def _evaluation(rows: Sequence[Mapping[str, Any]], saved: DetectedImages, scores: Mapping[str, Any]) -> Iterator[str]:
    """Show all that follows from the boxes alone."""
    matches = saved.matches()
    yield from _classes(rows)
    yield from _sizes(matches, scores)
    yield from _curves(matches, rows)
    yield from _confusion(torch.from_numpy(saved.confusion(score_thresholds(rows))), [row["name"] for row in rows])


def _classes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    columns = ("class", "#objects", "#AP", "#95 %", "#AP50", "#95 %", "#score", "#precision", "#recall", "#F1")
    order = sorted(range(len(rows)), key=lambda label: -rows[label]["objects"])
    cells = [
        (
            f"{swatch(label)}{escape(row['name'])}", f"{row['objects']:,}",
            f"<b>{_percent(row['ap'])}</b>", " to ".join(map(_percent, row["interval"]["ap"])),
            f"<b>{_percent(row['ap50'])}</b>", " to ".join(map(_percent, row["interval"]["ap50"])),
            *(_at_threshold(row) if row["threshold"] is not None else ("&ndash;",) * 4),
        )
        for label, row in ((label, rows[label]) for label in order[:MAX_CLASSES])
    ]  # fmt: skip
    yield "<h2>Classes</h2>"
    yield (
        "<p>AP50 is average precision where a detection is right if its box overlaps that of an object with an IoU of at least "
        "0.5; AP is the mean over IoUs from 0.5 to 0.95, as COCO has it. The intervals are those of the bootstrap over images. "
        "Precision, recall and F1 are those of the detections from a score on, at which F1 is largest on these images.</p>"
    )
    yield html_table(columns, cells)
    if len(rows) > MAX_CLASSES:
        yield f'<p class="soft">and {len(rows) - MAX_CLASSES:,} more classes</p>'


def _at_threshold(row: Mapping[str, Any]) -> tuple[str, ...]:
    return f"{row['threshold']:.2f}", _percent(row["precision"]), _percent(row["recall"]), _percent(row["f1"])


def _percent(value: float | str) -> str:
    number = float(value)  # NaN is text in JSON
    return f"{number:.1%}" if number == number else "&ndash;"


def _sizes(matches: Sequence[ImageMatches], scores: Mapping[str, Any]) -> Iterator[str]:
    """Show how the size of the objects matters."""
    counts = dict(zip(AREA_RANGES, sum(each.counted.sum(0) for each in matches).tolist(), strict=True))
    rows = [
        (
            title,
            f"{counts[name]:,}",
            _percent(scores["ap" if name == "all" else f"ap_{name}"]),
            _percent(scores["ar100" if name == "all" else f"ar_{name}"]),
        )
        for name, title in SIZE_TITLES.items()
    ]
    yield "<h2>Sizes</h2>"
    yield "<p>Objects by their area in pixels of the images. Recall is the mean over IoUs too, of up to 100 detections.</p>"
    yield html_table(("objects", "#number", "#AP", "#recall"), rows)


def _curves(matches: Sequence[ImageMatches], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    curves = precision_recall_curves(matches, len(rows))
    shown = [label for label in sorted(range(len(rows)), key=lambda label: -rows[label]["objects"]) if rows[label]["objects"]]
    lines, dots = {}, []
    for label in sorted(shown[:NUM_CURVES]):
        curve, name = curves[label], rows[label]["name"]
        lines[name] = list(zip(curve.recall.tolist(), curve.precision.tolist(), strict=True))
        if (best := curve.best) is not None:
            place = float(curve.recall[best]), float(curve.precision[best])
            dots.append((*place, f"{name}: score {curve.best_threshold:.2f}, recall {place[0]:.1%}, precision {place[1]:.1%}"))
    if not any(lines.values()):
        return
    recall_ticks = {fifths / 5: f"{fifths / 5:.0%}" for fifths in range(6)}
    chart = line_chart(
        "Precision over recall, at an IoU of 0.5", "", "recall", lines, dots, x_min=0, y_min=0, y_max=1, percent=True,
        x_ticks=recall_ticks, fluid=True, height=300, colours={rows[label]["name"]: class_colour(label) for label in shown},
    )  # fmt: skip
    which = "" if len(shown) <= NUM_CURVES else f" The {NUM_CURVES} classes with the most objects."
    yield "<h2>Precision and recall</h2>"
    yield f"<p>Each point is a score threshold; the dots are those of the largest F1.{which}</p>"
    yield f'<div style="max-width: 44rem">{chart.to_html()}</div>'


def _confusion(confusion: Int[torch.Tensor, "rows rows"], names: Sequence[str]) -> Iterator[str]:
    """Show of each class as what its objects are detected."""
    objects = confusion[:-1].sum(1)
    shown = objects.argsort(descending=True, stable=True)[:MAX_CONFUSED]
    shown = torch.cat([shown[objects[shown] > 0].sort().values, torch.tensor([len(names)])])  # the last is the background
    fractions = confusion.double() / confusion.sum(1).clamp(min=1)[:, None]
    which = "" if len(shown) > len(names) else f" The {len(shown) - 1} classes with the most objects."
    yield "<h2>Confusion between classes and with the background</h2>"
    yield (
        "<p>Number of objects of the row&rsquo;s class that are detected as the column&rsquo;s, from the scores of the table "
        "above on and at an IoU of 0.5. The last column counts objects that are missed, the last row detections where there "
        f"is no object.{which}</p>"
    )
    labels = [*names, BACKGROUND]
    yield matrix_table(confusion[shown][:, shown], fractions[shown][:, shown], [labels[label] for label in shown.tolist()])


def _images(dataset: Dataset, saved: DetectedImages, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Draw the images with the lowest and the highest average precision."""
    scores = np.array([image_average_precision(each) for each in saved.matches()])
    order = np.argsort(scores, kind="stable")
    order = order[: int(np.isfinite(scores).sum())]
    worst, best = order[:NUM_WORST], order[NUM_WORST:][::-1][:NUM_BEST]
    sheets = []
    labels: set[int] = set()
    try:
        for title, images in (("Lowest AP50", worst), ("Highest AP50", best)):
            if len(images):
                sheet, drawn = _sheet(dataset, saved.select(images.tolist()), scores[images], rows)
                labels |= drawn
                sheets.append(f'<h3>{title}</h3><img alt="{title}: objects and detections" src="{sheet}">')
    except (VitrailError, OSError, RuntimeError, MemoryError):  # the images have gone
        return
    if not sheets:
        return
    yield "<h2>Best and worst images</h2>"
    yield (
        "<p>Left the objects, with dashes those that are missed and in grey crowds; right the detections from the scores of "
        "the table above on, with dashes those that are wrong. AP50 is that of all detections in the image in one ranking.</p>"
    )
    yield html_legend([row["name"] for row in rows], sorted(labels))
    yield from sheets


def _sheet(
    dataset: Dataset, saved: DetectedImages, scores: Float[ndarray, " n"], rows: Sequence[Mapping[str, Any]]
) -> tuple[str, set[int]]:
    """Return a sheet with a row for each image, and the classes on it."""
    images, captions, labels = [], [], set[int]()
    for index, score, (found, objects) in zip(saved.indices.tolist(), scores.tolist(), saved, strict=True):
        image, pairs = to_view(dataset.read(index)), pair_boxes(*found, objects, score_thresholds(rows))
        paired = np.append(objects.labels, -1)[pairs.objects]
        is_right = paired == found.labels[pairs.detections]
        is_found = np.isin(np.arange(len(objects)), pairs.objects[is_right])
        shown = FoundBoxes(*(column[pairs.detections] for column in found))
        images += [_with_objects(image, objects, is_found), _with_detections(image, shown, is_right | pairs.excused)]
        missed, wrong = int((~is_found & ~objects.crowd).sum()), int((~is_right & ~pairs.excused).sum())
        captions += [
            f"{dataset.title(index)}: {missed} of {int((~objects.crowd).sum())} missed",
            f"AP50 {score:.1%}: {wrong} of {len(is_right)} wrong",
        ]
        labels |= set(objects.labels.tolist()) | set(shown.labels.tolist())
    return data_uri(contact_sheet(images, captions, columns=2, side=IMAGE_SIDE)), labels


def _with_objects(image: Image.Image, objects: Objects, is_found: Any) -> Image.Image:
    colours = np.where(objects.crowd, CROWD_COLOUR, [class_colour(label) for label in objects.labels.tolist()]).tolist()
    dashed = ~is_found & ~objects.crowd
    return draw_boxes(image, objects.boxes, objects.labels, dashed=dashed, colours=colours, scale=_scale(image))


def _with_detections(image: Image.Image, found: FoundBoxes, is_right: Any) -> Image.Image:
    return draw_boxes(image, found.boxes, found.labels, scores=found.scores, dashed=~is_right, scale=_scale(image))


def _scale(image: Image.Image) -> float:
    """Return by how much an image is enlarged or reduced to be drawn: a small one pixel by pixel."""
    scale = IMAGE_SIDE / max(image.size)
    return float(int(scale)) if scale >= 2 else scale
