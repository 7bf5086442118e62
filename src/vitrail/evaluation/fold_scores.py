"""Scores of a cross-validation: the mean over the folds with its interval, and the metrics of all predictions together.

The interval is that of Student's t over the folds. The folds share training images, so that their scores are not independent;
no estimate of the variance is free of bias then (Bengio and Grandvalet 2004), and the interval is approximate. b images.
"""

import math
from collections.abc import Mapping, Sequence
from functools import singledispatch

from torch import Tensor

from vitrail.evaluation.bootstrap import bias_corrected_interval, bootstrap_scores, score_intervals
from vitrail.evaluation.multi_label import bootstrap_label_metrics
from vitrail.tasks.classification import ClassificationTask
from vitrail.tasks.detected_images import load_detected_images
from vitrail.tasks.detection import DetectionTask
from vitrail.tasks.detection_metrics import bootstrap_detection, detection_scores
from vitrail.tasks.multi_label import MultiLabelTask
from vitrail.tasks.resampling import CONFIDENCE_LEVEL, finite_interval
from vitrail.tasks.segmentation import SegmentationTask
from vitrail.tasks.segmentation_metrics import bootstrap_segmentation
from vitrail.tasks.task import Task

Interval = tuple[float, float]


def mean_interval(values: Sequence[float]) -> tuple[float, Interval]:
    """Return the mean of two or more values, and its interval by Student's t."""
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = t_quantile(CONFIDENCE_LEVEL, len(values) - 1) * math.sqrt(variance / len(values))
    return mean, (mean - half, mean + half)


def t_quantile(probability: float, degrees: int) -> float:
    """Return the value that the absolute value of Student's t does not exceed with this probability."""
    low, high = 0.0, math.pi / 2
    for _ in range(100):  # by bisection of the angle whose tangent is t / sqrt(degrees)
        angle = (low + high) / 2
        low, high = (angle, high) if _t_probability(angle, degrees) < probability else (low, angle)
    return math.tan(low) * math.sqrt(degrees)


def _t_probability(angle: float, degrees: int) -> float:
    """Return the probability that Student's t is within an angle: Abramowitz and Stegun 26.7.3 and 26.7.4."""
    sine, cosine, is_odd = math.sin(angle), math.cos(angle), degrees % 2
    total, term = 0.0, cosine if is_odd else 1.0
    for power in range(is_odd, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total


@singledispatch
def pooled_scores(task: Task, saved: Mapping[str, Tensor]) -> tuple[dict[str, float], dict[str, Interval]]:
    """Return the metrics of predictions for images that the models were not trained on, and intervals of some of them.

    ``saved``: what the runs have saved of their predictions.
    """
    try:
        return task.metrics(saved[task.output_name], saved[task.target_name]), {}
    except NotImplementedError:  # a task that evaluates in its own way
        return {}, {}


@pooled_scores.register
def _(task: ClassificationTask, saved: Mapping[str, Tensor]) -> tuple[dict[str, float], dict[str, Interval]]:
    outputs, targets = saved[task.output_name], saved[task.target_name]
    metrics = task.metrics(outputs, targets)
    intervals = score_intervals(outputs, targets, bootstrap_scores(outputs, targets, loss=task.config.loss))
    return metrics, {name: intervals[name] for name in ("top1", "top5") if name in intervals and name in metrics}


@pooled_scores.register
def _(task: MultiLabelTask, saved: Mapping[str, Tensor]) -> tuple[dict[str, float], dict[str, Interval]]:
    """Leave out what depends on thresholds: each fold has chosen its own."""
    outputs, targets = saved[task.output_name], saved[task.target_name]
    metrics, samples = task.metrics(outputs, targets), bootstrap_label_metrics(task, outputs, targets.bool())
    names = ("map", "map_micro", "map_weighted", "coverage")
    by_threshold = ("f1_macro", "f1_micro", "hamming", "subset_accuracy")
    return (
        {name: value for name, value in metrics.items() if name not in by_threshold},
        {name: bias_corrected_interval(samples[name], metrics[name]) for name in names},
    )


@pooled_scores.register
def _(task: SegmentationTask, saved: Mapping[str, Tensor]) -> tuple[dict[str, float], dict[str, Interval]]:
    samples, _ = bootstrap_segmentation(saved["confusion"], saved["boundary"])
    intervals = {name: finite_interval(values) for name, values in samples.items()}
    return task.scores(saved["confusion"], saved["boundary"]), intervals


@pooled_scores.register
def _(task: DetectionTask, saved: Mapping[str, Tensor]) -> tuple[dict[str, float], dict[str, Interval]]:
    """Rank the detections of all folds together, although the scores are those of different models."""
    detected = load_detected_images(saved)
    assert detected is not None
    matches = detected.matches()
    samples, _ = bootstrap_detection(matches, task.classes)
    return detection_scores(matches, task.classes), {name: finite_interval(values) for name, values in samples.items()}
