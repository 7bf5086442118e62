"""``vitrail.evaluate``: accuracy, loss and calibration of a classifier with confidence intervals, and paired comparison.

The images go through the model's own preprocessing and the same evaluation that training uses. b images, k classes.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor, nn

from vitrail.data.loader import build_eval_loader
from vitrail.data.sources.dataset import Dataset, DatasetSplits, Progress
from vitrail.errors import VitrailError
from vitrail.evaluation.bootstrap import bootstrap_scores, mcnemar, percentile_interval, score_intervals
from vitrail.evaluation.calibration import MAX_TEMPERATURE, Reliability, compute_reliability, fit_temperature
from vitrail.evaluation.label_matching import get_class_names, match_classes, select_split
from vitrail.evaluation.leakage import dataset_notes, leakage_warnings, open_for_evaluation
from vitrail.evaluation.per_class import PerClassMetrics, per_class_metrics
from vitrail.evaluation.tta import TTAMode, TTAModel, without_crop
from vitrail.inference.predict import require_classifier
from vitrail.models.build import Model
from vitrail.tasks.classification import mean_scores
from vitrail.tasks.task import run_model
from vitrail.weights.load import load

DEFAULT_BATCH_SIZE = 64
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
class Evaluation:
    """Scores with their 95 % intervals, all fractions but ``nll``; and the predictions they were computed from."""

    dataset: str
    split: str
    class_names: tuple[str, ...]  # the model's classes
    predictions: SplitPredictions
    top1: float
    top5: float
    nll: float
    ece: float
    intervals: dict[str, tuple[float, float]]
    bootstrap: dict[str, ndarray]  # the scores of each bootstrap resample
    per_class: PerClassMetrics
    reliability: Reliability
    temperature_scaling: TemperatureScaling | None = None
    notes: tuple[str, ...] = ()


def evaluate(
    model: Model | str | Path,
    data: DatasetSplits | str | Path,
    split: str | None = None,
    tta: TTAMode | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate on a split: test, validation, train or all; None: the first of test, validation and all that has images.

    ``tta`` is ``"flip"`` or ``"crops"``. If the dataset has a validation split that is not the one evaluated, a temperature is
    fitted on it.
    """
    model = load(model) if isinstance(model, str | Path) else model
    require_classifier(model)  # fails before anything is read
    data = data if isinstance(data, DatasetSplits) else open_for_evaluation(data, model, progress)
    is_default_split = split is None
    split, source = select_split(data, split)
    runner = _Runner(model, tta, batch_size, workers, progress)
    split_predictions = runner.run(source, split, data.name)
    scaling, notes = _fit_temperature_scaling(runner, data, split, split_predictions)
    preprocess = require_classifier(model)
    if tta == "crops" and preprocess.image_size == preprocess.resize_to:
        notes = ["the model's preprocessing crops nothing, so the images were enlarged before cropping", *notes]
    return summarise_predictions(
        data.name,
        split,
        get_class_names(model),
        split_predictions,
        scaling,
        (*dataset_notes(data), *leakage_warnings(model, data, split, is_default_split), *notes),
    )


def summarise_predictions(
    data: str,
    split: str,
    class_names: tuple[str, ...],
    split_predictions: SplitPredictions,
    scaling: TemperatureScaling | None = None,
    notes: tuple[str, ...] = (),
) -> Evaluation:
    """Compute every score that follows from the predictions alone."""
    logits, labels = split_predictions.logits, split_predictions.labels
    mean_metrics, resampled = mean_scores(logits, labels), bootstrap_scores(logits, labels)
    bins = compute_reliability(logits, labels)
    return Evaluation(
        dataset=data,
        split=split,
        class_names=class_names,
        predictions=split_predictions,
        top1=mean_metrics["top1"],
        top5=mean_metrics["top5"],
        nll=mean_metrics["loss"],
        ece=bins.ece,
        intervals=score_intervals(logits, labels, resampled),
        bootstrap=resampled,
        per_class=per_class_metrics(split_predictions.predicted, labels, logits.shape[1]),
        reliability=bins,
        temperature_scaling=scaling,
        notes=notes,
    )


@dataclass(frozen=True)
class PairedComparison:
    """Scores of the other model minus those of the first on the same images; p is McNemar's, of top-1."""

    difference: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    only_first: int  # images that only the first has right
    only_other: int
    p: float


def compare_paired(first: Evaluation, other: Evaluation) -> PairedComparison:
    if not torch.equal(first.predictions.indices, other.predictions.indices):
        raise VitrailError(f"{first.split} and {other.split} are not the same images, so they cannot be compared in pairs")
    first_correct, other_correct = (each.predictions.predicted == each.predictions.labels for each in (first, other))
    only_first, only_other = int((first_correct & ~other_correct).sum()), int((other_correct & ~first_correct).sum())
    difference = {name: getattr(other, name) - getattr(first, name) for name in first.bootstrap}
    interval_by_name = {name: percentile_interval(other.bootstrap[name] - first.bootstrap[name]) for name in first.bootstrap}
    return PairedComparison(difference, interval_by_name, only_first, only_other, mcnemar(only_first, only_other))


@dataclass(frozen=True)
class _Runner:
    """A model with the settings to run it."""

    model: Model
    tta: TTAMode | None
    batch_size: int
    workers: int | None
    progress: Progress | None

    def run(self, source: Dataset, split: str, data: str) -> SplitPredictions:
        classes = torch.from_numpy(match_classes(source, self.model, data))
        preprocess, model = require_classifier(self.model), self.model
        network: nn.Module = model if self.tta is None else TTAModel(model, self.tta)
        loader = build_eval_loader(source, without_crop(preprocess) if self.tta == "crops" else preprocess, self.batch_size)
        total = len(source)
        report = self.progress or (lambda description, done, total: None)
        logits, labels, indices = run_model(
            network, loader, self.workers, lambda done: report(f"evaluating {split}", done, total)
        )
        check_predictions(logits, indices, source, data)
        return SplitPredictions(logits, classes[labels], indices, len(loader.read_errors))


def check_predictions(logits: Float[Tensor, "b k"], indices: Int[Tensor, " b"], source: Dataset, data: str) -> None:
    """Raise unless there are predictions and all are finite."""
    if not len(indices):
        raise VitrailError(f"no image of {data} can be read; `vitrail data check {data}` gives the reasons")
    non_finite = (~logits.isfinite().all(1)).nonzero()[:, 0]
    if len(non_finite):
        where = source.describe(int(indices[non_finite[0]]))
        raise VitrailError(
            f"the model's logits are not finite for {len(non_finite)} of {len(indices)} images, first {where}; "
            "its weights or that image are damaged"
        )


def _fit_temperature_scaling(
    runner: _Runner, data: DatasetSplits, split: str, split_predictions: SplitPredictions
) -> tuple[TemperatureScaling | None, list[str]]:
    """Fit the temperature on validation, unless that is what is evaluated."""
    if split in ("validation", "all") or not (data.validation.labels >= 0).any():
        return None, ["there is no separate validation split, so no temperature is fitted"]
    try:
        validation = runner.run(select_split(data, "validation")[1], "validation", data.name)
    except VitrailError as error:  # does not affect the split that is evaluated
        return None, [f"no temperature is fitted, as validation cannot be used: {error}"]
    fitted = fit_temperature(validation.logits, validation.labels)
    if fitted in TEMPERATURE_BOUNDS:
        sense = "right" if fitted < 1 else "wrong"
        return None, [f"too many of the {len(validation.labels):,} validation images are {sense} to fit a temperature"]
    scaled = split_predictions.logits.double() / fitted
    nll = mean_scores(scaled, split_predictions.labels)["loss"]
    return TemperatureScaling(
        fitted, len(validation.labels), nll, compute_reliability(scaled, split_predictions.labels).ece
    ), []
