"""Section of a report on a class for every pixel: IoU of each class, confusion, best and worst images. n images, k classes."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.data.band_view import to_view
from vitrail.data.sources.dataset import IGNORED, Dataset, Subset
from vitrail.errors import VitrailError
from vitrail.inference.predict import predict
from vitrail.plot.markup import escape
from vitrail.report.contact_sheet import contact_sheet, data_uri
from vitrail.report.html import html_table, matrix_table
from vitrail.report.mask_view import error_view, html_legend, mask_view, swatch
from vitrail.report.task_section import RunReport, TaskSection
from vitrail.tasks.resampling import finite_interval
from vitrail.tasks.segmentation_metrics import (
    bootstrap_segmentation,
    class_rows,
    iou_of_counts,
    pixel_counts,
    segmentation_scores,
)

MAX_CLASSES = 300  # rows of the table
MAX_CONFUSED = 30  # classes of the confusion matrix, those with the most pixels
NUM_CONFUSED_PAIRS = 10
NUM_WORST, NUM_BEST = 6, 2  # images
IMAGE_SIDE = 208  # pixels of a drawn image


@dataclass(frozen=True)
class SavedCounts:
    """Counts of the pixels of each image, from which all scores follow."""

    confusion: Int[Tensor, "n k k"]
    boundary: Int[Tensor, "n k 3"]
    indices: Int[Tensor, " n"]


class SegmentationSection(TaskSection):
    """Mean IoU with its interval, and the evaluation of the saved counts."""

    def headline(self, report: RunReport) -> tuple[str, str]:
        split = report.result["reported_on"]
        number, saved = report.format_metric("miou", report.result[split]["miou"]), _saved_counts(report)
        caption = f"mean IoU on {split}"
        if saved is None or not len(saved.confusion):
            return number, caption
        low, high = finite_interval(bootstrap_segmentation(saved.confusion, saved.boundary)[0]["miou"])
        accuracy = float(report.result[split]["pixel_accuracy"])
        largest = saved.confusion.sum((0, 2)).max() / saved.confusion.sum()
        return number, (
            f"{caption}, 95 % interval {low:.2%} to {high:.2%}, pixel accuracy {accuracy:.2%} (always the largest class: "
            f"{largest:.2%})"
        )

    def body(self, report: RunReport) -> Iterator[str]:
        saved = _saved_counts(report) if report.result else None
        if saved is None or not len(saved.confusion):
            return
        names = [row["name"] for row in report.result["classes"]]
        yield from _classes(report.result["classes"])
        yield from _confusion(saved.confusion.sum(0), names)
        yield from _boundaries(saved)
        dataset = report.data.splits[report.result["reported_on"]]
        yield from _images(dataset, report.run.folder / "best", saved, names)

    def out_of_fold(self, report: RunReport, predictions: dict[str, Tensor], class_names: tuple[str, ...]) -> Iterator[str]:
        saved = SavedCounts(predictions["confusion"], predictions["boundary"], predictions["indices"])
        yield from _classes(class_rows(class_names, saved.confusion, saved.boundary))
        yield from _confusion(saved.confusion.sum(0), class_names)
        yield from _boundaries(saved)

    def next_steps(self, report: RunReport) -> Iterator[str]:
        folder = escape(shlex.quote(str(report.run.folder)))
        yield "<p>Its weights predict masks of new images: PNG files that can be read as a dataset, or COCO JSON.</p>"
        yield (
            f"<pre>vitrail predict {folder} IMAGES --out masks --overlay\nvitrail predict {folder} IMAGES --out masks.json\n"
            f"vitrail evaluate {folder} DATA\nvitrail export {folder} model.onnx</pre>"
        )


def _saved_counts(report: RunReport) -> SavedCounts | None:
    path = report.run.folder / "predictions.npz"
    if not path.is_file() or "classes" not in report.result:
        return None
    with np.load(path, allow_pickle=False) as file:
        return SavedCounts(*(torch.from_numpy(file[name]) for name in ("confusion", "boundary", "indices")))


def _classes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    columns = ("class", "#pixels", "#IoU", "#95 %", "#Dice", "#boundary IoU", "#precision", "#recall")
    total = max(sum(row["pixels"] for row in rows), 1)
    order = sorted(range(len(rows)), key=lambda label: -rows[label]["pixels"])
    cells = [
        (
            f"{swatch(label)}{escape(row['name'])}", f"{row['pixels'] / total:.1%}", f"<b>{_percent(row['iou'])}</b>",
            " to ".join(map(_percent, row["interval"])), _percent(row["dice"]), _percent(row["boundary_iou"]),
            _percent(row["precision"]), _percent(row["recall"]) if row["pixels"] else "&ndash;",
        )
        for label, row in ((label, rows[label]) for label in order[:MAX_CLASSES])
    ]  # fmt: skip
    yield "<h2>Classes</h2>"
    yield (
        "<p>IoU is the number of pixels that are of a class and predicted as it, divided by those that are either, over all "
        "images together. The intervals are those of the bootstrap over images.</p>"
    )
    yield html_table(columns, cells)
    if len(rows) > MAX_CLASSES:
        yield f'<p class="soft">and {len(rows) - MAX_CLASSES:,} more classes</p>'


def _percent(value: float | str) -> str:
    number = float(value)  # NaN is text in JSON
    return f"{number:.1%}" if number == number else "&ndash;"


def _confusion(confusion: Int[Tensor, "k k"], names: Sequence[str]) -> Iterator[str]:
    """Show of each class which fraction of its pixels is predicted as which."""
    pixels = confusion.sum(1)
    shown = pixels.argsort(descending=True, stable=True)[:MAX_CONFUSED]
    shown = shown[pixels[shown] > 0].sort().values
    fractions = confusion.double() / pixels.clamp(min=1)[:, None]
    part = fractions[shown][:, shown]
    yield "<h2>Confusion between classes</h2>"
    which = "" if len(shown) == len(names) else f" The {len(shown)} classes with the most pixels."
    yield f"<p>Percent of the pixels of the row's class that are predicted as the column's.{which}</p>"
    yield matrix_table((100 * part).round().long(), part, [names[label] for label in shown.tolist()])
    wrong = confusion.clone().fill_diagonal_(0)
    pairs = [
        divmod(place, len(names))
        for place in wrong.flatten().argsort(descending=True, stable=True)[:NUM_CONFUSED_PAIRS].tolist()
    ]
    errors = max(int(wrong.sum()), 1)
    rows = [
        (escape(names[true]), escape(names[other]), f"{fractions[true, other]:.1%}", f"{int(wrong[true, other]) / errors:.1%}")
        for true, other in pairs
        if wrong[true, other]
    ]
    if rows and len(names) > 2:
        yield "<h3>Most confused classes</h3>"
        yield html_table(("true class", "predicted class", "#of the class", "#of all errors"), rows)


def _boundaries(saved: SavedCounts) -> Iterator[str]:
    """Say how precise the contours are."""
    boundary = saved.boundary.sum(0)
    true, _, both = boundary.double().sum(0).tolist()
    means = [iou_of_counts(counts).nanmean().item() for counts in (boundary, pixel_counts(saved.confusion.sum(0)))]
    yield "<h2>Boundaries</h2>"
    yield (
        "<p>Boundary IoU (Cheng et al. 2021) is the IoU of the pixels within 2 % of the diagonal from the contours: it is low "
        "where contours are imprecise, however large the object. "
        f"Mean boundary IoU: {_percent(means[0])}, mean IoU: {_percent(means[1])}. "
        f"{_percent(both / max(true, 1))} of the pixels near a contour lie near the predicted contour of their class.</p>"
    )


def _images(dataset: Dataset, weights: Path, saved: SavedCounts, names: Sequence[str]) -> Iterator[str]:
    """Draw the images with the lowest and the highest mean IoU."""
    scores = segmentation_scores(saved.confusion)["miou"]
    order = scores.nan_to_num(torch.inf).argsort(stable=True)
    order = order[: int(scores.isfinite().sum())]
    worst, best = order[:NUM_WORST], order[NUM_WORST:].flip(0)[:NUM_BEST]
    sheets = []
    labels: set[int] = set()
    try:
        for title, rows in (("Lowest mean IoU", worst), ("Highest mean IoU", best)):
            if len(rows):
                sheet, drawn = _sheet(dataset, weights, saved.indices[rows], scores[rows])
                labels |= drawn
                sheets.append(f'<h3>{title}</h3><img alt="{title}: image, mask, prediction and errors" src="{sheet}">')
    except (VitrailError, OSError, RuntimeError, MemoryError):  # the weights or the images have gone
        return
    yield "<h2>Best and worst images</h2>"
    yield (
        "<p>The image, its mask, the predicted mask, and in red the pixels that are predicted wrongly. The mean IoU is that "
        "of the classes that the image has or is predicted to have.</p>"
    )
    yield html_legend(names, sorted(labels - {IGNORED}), IGNORED in labels)
    yield from sheets


def _sheet(dataset: Dataset, weights: Path, indices: Int[Tensor, " b"], scores: Float[Tensor, " b"]) -> tuple[str, set[int]]:
    """Return a sheet with a row for each image, and the classes on it."""
    images, captions, labels = [], [], set[int]()
    predictions = predict(weights, Subset(dataset, indices.numpy()), batch_size=1)
    for index, score, prediction in zip(indices.tolist(), scores.tolist(), predictions, strict=True):
        if prediction.mask is None:
            continue
        image, mask = to_view(dataset.read(index)), dataset.mask(index)
        images += [image, mask_view(image, mask), mask_view(image, prediction.mask), error_view(image, mask, prediction.mask)]
        wrong = float(((mask != prediction.mask) & (mask != IGNORED)).sum() / max((mask != IGNORED).sum(), 1))
        captions += [dataset.title(index), "mask", f"prediction, mean IoU {score:.1%}", f"{wrong:.1%} wrong"]
        labels |= set(np.unique(mask).tolist()) | set(np.unique(prediction.mask).tolist())
    return data_uri(contact_sheet(images, captions, columns=4, side=IMAGE_SIDE)), labels
