"""Evaluation of boxes at the images' own sizes: COCO's metrics with bootstrap intervals, per class too, and the confusion of
classes with each other and with the background. b images, d detections, g objects, k classes, r resamples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray

from vitrail.data.sources.dataset import Dataset, DatasetSplits
from vitrail.data.transforms import upright_size
from vitrail.evaluation.label_matching import match_boxes
from vitrail.evaluation.resampled import ResampledEvaluation
from vitrail.evaluation.split_runner import SplitRunner, check_outputs
from vitrail.tasks.box_matching import BACKGROUND, ImageMatches
from vitrail.tasks.detected_images import DetectedImages, stack_detected_images
from vitrail.tasks.detection import DetectionTask
from vitrail.tasks.detection_metrics import (
    bootstrap_detection,
    class_rows,
    detection_scores,
    image_average_precision,
    score_thresholds,
)
from vitrail.tasks.resampling import finite_interval

NUM_WORST_IMAGES = 10
MAX_CONFUSED = 100  # pairs of classes
MAX_MATRIX_CLASSES = 100  # of a confusion matrix in the details


@dataclass(frozen=True)
class DetectionEvaluation(ResampledEvaluation):
    """Metrics with their intervals; ``outputs`` are the average precisions of single images, ``targets`` is None."""

    detected: DetectedImages
    class_names: tuple[str, ...]


def evaluate_detection(
    task: DetectionTask, runner: SplitRunner, data: DatasetSplits, split: str, source: Dataset
) -> DetectionEvaluation:
    """Evaluate a model on boxes, whose classes are matched with its own by name."""
    source = match_boxes(source, runner.predictor, data.name)
    detected, unreadable_images = _detect(task, runner, data, split, source)
    matches = detected.matches()
    metrics = detection_scores(matches, task.classes)
    samples, per_class = bootstrap_detection(matches, task.classes)
    rows = class_rows(task.class_names, matches, per_class)
    own_precision = np.array([image_average_precision(each) for each in matches])
    return DetectionEvaluation(
        dataset=data.name,
        split=split,
        num_images=len(detected),
        unreadable_images=unreadable_images,
        metrics=metrics,
        notes=_absence_notes(task.class_names, matches),
        intervals={name: finite_interval(values) for name, values in samples.items()},
        bootstrap=samples,
        outputs=torch.from_numpy(own_precision),
        targets=None,
        indices=detected.indices,
        details={
            split: metrics,  # as a run's result has it
            "classes": rows,
            **confusion_details(task.class_names, detected.confusion(score_thresholds(rows))),
            "worst": worst_images(source, detected.indices.numpy(), own_precision, matches),
        },
        detected=detected,
        class_names=task.class_names,
    )


def _detect(
    task: DetectionTask, runner: SplitRunner, data: DatasetSplits, split: str, source: Dataset
) -> tuple[DetectedImages, int]:
    """Return what the model detects in the readable images, and how many are not."""
    loader = runner.loader(source)
    indices, detections = list[int](), []
    for batch in runner.batches(loader, split):
        outputs, numbers = torch.from_numpy(batch.values), batch.indices.tolist()
        if numbers:
            check_outputs(task, outputs, torch.from_numpy(batch.indices), source, data.name)
        indices += numbers
        sizes = [upright_size(source, index) for index in numbers]
        detections += [task.detect(*each) for each in zip(outputs, sizes, strict=True)]
    check_outputs(task, torch.zeros(len(indices), 1), torch.tensor(indices), source, data.name)
    return stack_detected_images(indices, detections, [source.objects(index) for index in indices]), len(loader.read_errors)


def worst_images(
    source: Dataset, indices: Int[ndarray, " b"], own_precision: Float[ndarray, " b"], matches: Sequence[ImageMatches]
) -> list[dict[str, Any]]:
    """Return the images of lowest average precision; those without objects have none."""
    order = np.argsort(own_precision, kind="stable")  # NaN comes last
    return [
        {
            "file": source.describe(int(indices[row])),
            "ap50": float(own_precision[row]),
            "objects": int(matches[row].counted[:, 0].sum()),
        }
        for row in order[:NUM_WORST_IMAGES].tolist()
        if np.isfinite(own_precision[row])
    ]


def confusion_details(class_names: Sequence[str], confusion: Int[ndarray, "rows rows"]) -> dict[str, Any]:
    """Return the confusion matrix, whose last row and column are the background, and the pairs that are confused most."""
    names = (*class_names, BACKGROUND)
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong.ravel(), kind="stable")[:MAX_CONFUSED].tolist()
    pairs = [(*divmod(position, len(names)), int(wrong.flat[position])) for position in order]
    return {
        "confusion": confusion.tolist() if len(class_names) <= MAX_MATRIX_CLASSES else None,
        "confused": [
            {
                "label": names[label],
                "predicted": names[predicted],
                "count": count,
                "fraction": count / int(confusion[label].sum()),  # of the objects of that class, or of all wrong detections
            }
            for label, predicted, count in pairs
            if count
        ],
    }


def _absence_notes(class_names: Sequence[str], matches: Sequence[ImageMatches]) -> tuple[str, ...]:
    """Return a note on classes without objects, which are left out of the means."""
    found = {label for each in matches for label in each.object_labels[each.counted[:, 0]].tolist()}
    absent = [name for label, name in enumerate(class_names) if label not in found]
    if not absent:
        return ()
    start = f"no image here has an object of {len(absent)} of the model's {len(class_names)} classes, such as {absent[0]}"
    return (f"{start}; they are left out of the means",)
