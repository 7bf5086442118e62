"""Evaluation of masks at the images' own sizes: IoU, boundary IoU and others with bootstrap intervals, and panoptic quality if
the dataset tells objects apart. b images, k classes, r resamples; an image is h high and w wide.

Masks are compared as they are predicted, batch by batch: of each image only its counts are kept.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from vitrail.data.sources.dataset import Dataset, DatasetSplits
from vitrail.evaluation.label_matching import match_masks
from vitrail.evaluation.resampled import ResampledEvaluation
from vitrail.evaluation.split_runner import SplitRunner, check_outputs
from vitrail.tasks.panoptic_quality import panoptic_counts, panoptic_quality_per_class, without_unnumbered
from vitrail.tasks.resampling import bootstrap_means, finite_interval
from vitrail.tasks.segmentation import ImageComparison, SegmentationTask
from vitrail.tasks.segmentation_metrics import bootstrap_segmentation, class_rows, segmentation_scores

NUM_WORST_IMAGES = 10
MAX_CONFUSED = 100  # pairs of classes
MAX_MATRIX_CLASSES = 100  # of a confusion matrix in the details


@dataclass(frozen=True)
class SegmentationEvaluation(ResampledEvaluation):
    """Metrics with their intervals; ``outputs`` are the confusion matrices of the images, ``targets`` is None."""

    boundary: Int[Tensor, "b k 3"]  # pixels of the boundary of each class in the mask, in the prediction, and in both
    panoptic: Float[Tensor, "b k 4"] | None  # see ``panoptic_counts``; None if the masks do not tell objects apart
    class_names: tuple[str, ...]

    @property
    def confusion(self) -> Int[Tensor, "b k k"]:
        return self.outputs


@dataclass(frozen=True)
class _Compared:
    """The images of a split, compared with their masks."""

    indices: Int[ndarray, " b"]
    unreadable_images: int
    confusion: Int[Tensor, "b k k"]
    boundary: Int[Tensor, "b k 3"]
    losses: Float[Tensor, " b"]
    panoptic: Float[Tensor, "b k 4"] | None


def evaluate_segmentation(
    task: SegmentationTask, runner: SplitRunner, data: DatasetSplits, split: str, source: Dataset
) -> SegmentationEvaluation:
    """Evaluate a model on masks, whose classes are matched with its own by name."""
    source = match_masks(source, runner.predictor, data.name)
    compared = _compare_images(task, runner, data, split, source)
    confusion, boundary = compared.confusion, compared.boundary
    metrics = {**task.scores(confusion, boundary), "nll": compared.losses.mean().item()}
    samples, _ = bootstrap_segmentation(confusion, boundary)
    samples["nll"] = bootstrap_means(compared.losses[:, None].numpy())[:, 0]
    rows = class_rows(task.class_names, confusion, boundary)
    if compared.panoptic is not None:
        quality = panoptic_quality_per_class(compared.panoptic.sum(0))
        metrics |= {name: float(values.nanmean()) for name, values in quality.items()}
        samples |= _bootstrap_panoptic(compared.panoptic)
        rows = [{**row, **{name: float(quality[name][label]) for name in quality}} for label, row in enumerate(rows)]
    iou = {row["name"]: row["iou"] for row in rows}
    return SegmentationEvaluation(
        dataset=data.name,
        split=split,
        num_images=len(compared.indices),
        unreadable_images=compared.unreadable_images,
        metrics=metrics,
        notes=_absence_notes(task, confusion),
        intervals={name: finite_interval(values) for name, values in samples.items()},
        bootstrap=samples,
        outputs=confusion,
        targets=None,
        indices=torch.from_numpy(compared.indices),
        details={
            split: {"loss": metrics["nll"], **task.scores(confusion, boundary), "iou": iou},  # as a run's result has it
            "iou": iou,
            "classes": rows,
            **_confusion_details(task.class_names, confusion.sum(0)),
            "worst": worst_images(source, compared.indices, confusion),
        },
        boundary=boundary,
        panoptic=compared.panoptic,
        class_names=task.class_names,
    )


def _compare_images(task: SegmentationTask, runner: SplitRunner, data: DatasetSplits, split: str, source: Dataset) -> _Compared:
    loader, has_objects = runner.loader(source), classes_with_objects(source, task.classes)
    indices, rows, panoptic = [], list[ImageComparison](), list[Tensor]()
    for batch in runner.batches(loader, split):
        outputs = torch.from_numpy(batch.values)
        if len(batch.indices):
            check_outputs(task, outputs, torch.from_numpy(batch.indices), source, data.name)
        for index, logits in zip(batch.indices.tolist(), outputs, strict=True):
            if (mask := loader.mask(index)) is None:
                continue
            compared = task.compare(logits, mask)
            if has_objects.any():
                objects = source.instances(index)
                assert objects is not None
                found = task.objects(compared.predicted, has_objects)
                true = without_unnumbered(mask, objects, has_objects)
                panoptic.append(panoptic_counts(compared.predicted, found, true, objects, task.classes))
            indices.append(index)
            rows.append(compared.without_mask())
    check_outputs(task, torch.zeros(len(indices), 1), torch.tensor(indices), source, data.name)
    confusion, boundary, losses = task.stack_counts(rows)
    counts = torch.stack(panoptic) if panoptic else None
    return _Compared(np.array(indices), len(loader.read_errors), confusion, boundary, losses, counts)


def classes_with_objects(source: Dataset, classes: int) -> Bool[ndarray, " k"]:
    """Return which classes have objects that masks tell apart."""
    found = np.zeros(classes, bool)
    if not len(source) or source.instances(0) is None:
        return found
    for index in range(len(source)):
        objects, mask = source.instances(index), source.mask(index)
        if objects is not None:
            found[mask[(objects > 0) & (mask >= 0)]] = True
    return found


def _bootstrap_panoptic(counts: Float[Tensor, "b k 4"]) -> dict[str, Float[ndarray, " r"]]:
    means = bootstrap_means(counts.flatten(1).numpy())
    quality = panoptic_quality_per_class(torch.from_numpy(means).unflatten(1, counts.shape[1:]))
    return {name: values.nanmean(1).numpy() for name, values in quality.items()}


def worst_images(source: Dataset, indices: Int[ndarray, " b"], confusion: Int[Tensor, "b k k"]) -> list[dict[str, Any]]:
    """Return the images of lowest mean IoU; those without a counted pixel have none."""
    scores = {name: values.numpy() for name, values in segmentation_scores(confusion).items()}
    order = np.argsort(scores["miou"], kind="stable")  # NaN comes last
    return [
        {
            "file": source.describe(int(indices[row])),
            "miou": float(scores["miou"][row]),
            "pixel_accuracy": float(scores["pixel_accuracy"][row]),
        }
        for row in order[:NUM_WORST_IMAGES].tolist()
        if np.isfinite(scores["miou"][row])
    ]


def _confusion_details(class_names: tuple[str, ...], confusion: Int[Tensor, "k k"]) -> dict[str, Any]:
    """Return the confusion matrix in pixels, and the pairs of classes that are confused most."""
    wrong = confusion.clone().fill_diagonal_(0)
    order = wrong.flatten().argsort(descending=True, stable=True)[:MAX_CONFUSED].tolist()
    pairs = [(*divmod(position, len(class_names)), int(wrong.flatten()[position])) for position in order]
    return {
        "confusion": confusion.tolist() if len(class_names) <= MAX_MATRIX_CLASSES else None,
        "confused": [
            {
                "label": class_names[label],
                "predicted": class_names[predicted],
                "pixels": count,
                "fraction": count / int(confusion[label].sum()),  # of the pixels of that class
            }
            for label, predicted, count in pairs
            if count
        ],
    }


def _absence_notes(task: SegmentationTask, confusion: Int[Tensor, "b k k"]) -> tuple[str, ...]:
    """Return a note on classes that no mask has: those that are predicted all the same count with an IoU of 0."""
    total = confusion.sum(0)
    absent, predicted = total.sum(1) == 0, total.sum(0) > 0
    if not absent.any():
        return ()
    count, wrongly = int(absent.sum()), int((absent & predicted).sum())
    first = next(name for name, is_absent in zip(task.class_names, absent.tolist(), strict=True) if is_absent)
    start = f"no mask here has {count} of the model's {task.classes} classes, such as {first}"
    if not wrongly:
        return (f"{start}; none is predicted, so the means leave them out",)
    return (f"{start}; predicted all the same, and so counted in the means with an IoU of 0: {wrongly} of them",)
