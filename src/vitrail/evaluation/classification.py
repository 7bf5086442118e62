"""Evaluation of a classifier: accuracy, loss and calibration with confidence intervals, and paired comparison.

b images, k classes.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from vitrail.data.sources.dataset import Dataset, DatasetSplits
from vitrail.errors import VitrailError
from vitrail.evaluation.bootstrap import bootstrap_scores, mcnemar, score_intervals
from vitrail.evaluation.calibration import MAX_TEMPERATURE, Reliability, compute_reliability, fit_temperature
from vitrail.evaluation.label_matching import match_classes, select_split
from vitrail.evaluation.per_class import PerClassMetrics, per_class_metrics
from vitrail.evaluation.split_runner import Evaluation, SplitRunner, check_outputs
from vitrail.recipes.task_config import LossName
from vitrail.tasks.classification import mean_scores
from vitrail.tasks.resampling import percentile_interval

TEMPERATURE_BOUNDS = (MAX_TEMPERATURE, 1 / MAX_TEMPERATURE)


@dataclass(frozen=True)
class SplitPredictions:
    """Logits of a model on the images of a split, with the model's labels and the number of unreadable images."""

    logits: Float[Tensor, "b k"]
    labels: Int[Tensor, " b"]
    indices: Int[Tensor, " b"]
    unreadable_images: int = 0

    @property
    def predicted(self) -> Int[Tensor, " b"]:
        return self.logits.argmax(1)


@dataclass(frozen=True)
class TemperatureScaling:
    """Scores after temperature scaling, the temperature fitted on validation."""

    temperature: float
    num_fit_images: int
    nll: float
    ece: float


@dataclass(frozen=True)
class ClassificationEvaluation(Evaluation):
    """Scores of a classifier with their 95 % intervals, all fractions but ``nll``; and the predictions they come from."""

    class_names: tuple[str, ...]  # the model's classes
    predictions: SplitPredictions
    intervals: dict[str, tuple[float, float]]
    bootstrap: dict[str, ndarray]  # the scores of each bootstrap resample
    per_class: PerClassMetrics
    reliability: Reliability
    temperature_scaling: TemperatureScaling | None = None

    @property
    def top1(self) -> float:
        return self.metrics["top1"]

    @property
    def top5(self) -> float:
        return self.metrics["top5"]

    @property
    def nll(self) -> float:
        return self.metrics["nll"]

    @property
    def ece(self) -> float:
        return self.metrics["ece"]


def evaluate_classifier(runner: SplitRunner, data: DatasetSplits, split: str, source: Dataset) -> ClassificationEvaluation:
    """Evaluate a classifier; a temperature is fitted on the validation split, unless that is what is evaluated."""
    split_predictions = run_classifier(runner, source, split, data.name)
    scaling, notes = _fit_temperature_scaling(runner, data, split, split_predictions)
    predictor = runner.predictor
    return summarise_predictions(
        data.name, split, predictor.class_names, split_predictions, predictor.task.config.loss, scaling, tuple(notes)
    )


def summarise_predictions(
    data: str,
    split: str,
    class_names: tuple[str, ...],
    split_predictions: SplitPredictions,
    loss: LossName = "softmax",
    scaling: TemperatureScaling | None = None,
    notes: tuple[str, ...] = (),
) -> ClassificationEvaluation:
    """Compute every score that follows from the predictions alone; ``loss`` is what the model was trained with."""
    logits, labels = split_predictions.logits, split_predictions.labels
    mean_metrics, resampled = mean_scores(logits, labels, loss), bootstrap_scores(logits, labels, loss=loss)
    bins = compute_reliability(logits, labels, loss=loss)
    return ClassificationEvaluation(
        dataset=data,
        split=split,
        num_images=len(labels),
        unreadable_images=split_predictions.unreadable_images,
        metrics={"top1": mean_metrics["top1"], "top5": mean_metrics["top5"], "nll": mean_metrics["loss"], "ece": bins.ece},
        notes=notes,
        class_names=class_names,
        predictions=split_predictions,
        intervals=score_intervals(logits, labels, resampled),
        bootstrap=resampled,
        per_class=per_class_metrics(split_predictions.predicted, labels, logits.shape[1]),
        reliability=bins,
        temperature_scaling=scaling,
    )


def run_classifier(runner: SplitRunner, source: Dataset, split: str, data: str) -> SplitPredictions:
    """Run a classifier on a split whose classes are matched with the model's by name."""
    classes = torch.from_numpy(match_classes(source, runner.predictor, data))
    logits, indices, unreadable = runner.run(source, split)
    check_outputs(runner.predictor.task, logits, indices, source, data)
    labels = torch.from_numpy(source.labels[indices.numpy()])
    return SplitPredictions(logits, classes[labels], indices, unreadable)


@dataclass(frozen=True)
class PairedComparison:
    """Scores of the other model minus those of the first on the same images; p is McNemar's, of top-1."""

    difference: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    only_first: int  # images that only the first has right
    only_other: int
    p: float


def compare_paired(first: ClassificationEvaluation, other: ClassificationEvaluation) -> PairedComparison:
    if not torch.equal(first.predictions.indices, other.predictions.indices):
        raise VitrailError(f"{first.split} and {other.split} are not the same images, so they cannot be compared in pairs")
    first_correct, other_correct = (each.predictions.predicted == each.predictions.labels for each in (first, other))
    only_first, only_other = int((first_correct & ~other_correct).sum()), int((other_correct & ~first_correct).sum())
    difference = {name: other.metrics[name] - first.metrics[name] for name in first.bootstrap}
    interval_by_name = {name: percentile_interval(other.bootstrap[name] - first.bootstrap[name]) for name in first.bootstrap}
    return PairedComparison(difference, interval_by_name, only_first, only_other, mcnemar(only_first, only_other))


def _fit_temperature_scaling(
    runner: SplitRunner, data: DatasetSplits, split: str, split_predictions: SplitPredictions
) -> tuple[TemperatureScaling | None, list[str]]:
    """Fit the temperature on validation, unless that is what is evaluated."""
    if split in ("validation", "all") or not (data.validation.labels >= 0).any():
        return None, ["there is no separate validation split, so no temperature is fitted"]
    try:
        validation = run_classifier(runner, select_split(data, "validation")[1], "validation", data.name)
    except VitrailError as error:  # does not affect the split that is evaluated
        return None, [f"no temperature is fitted, as validation cannot be used: {error}"]
    loss = runner.predictor.task.config.loss
    fitted = fit_temperature(validation.logits, validation.labels, loss)
    if fitted in TEMPERATURE_BOUNDS:
        sense = "right" if fitted < 1 else "wrong"
        return None, [f"too many of the {len(validation.labels):,} validation images are {sense} to fit a temperature"]
    scaled = split_predictions.logits.double() / fitted
    nll = mean_scores(scaled, split_predictions.labels, loss)["loss"]
    return TemperatureScaling(
        fitted, len(validation.labels), nll, compute_reliability(scaled, split_predictions.labels, loss=loss).ece
    ), []
