"""``vitrail.evaluate``: accuracy, loss and calibration of a classifier with confidence intervals, and paired comparison.

The images go through the model's own preprocessing and the same evaluation that training uses. b images, k classes.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor, nn

from vitrail.data.loader import evaluation
from vitrail.data.sources.source import Data, Progress, Source
from vitrail.errors import VitrailError
from vitrail.evaluate.accuracy import ByClass, by_class
from vitrail.evaluate.bootstrap import drawn_scores, interval, intervals, mcnemar
from vitrail.evaluate.calibration import HOTTEST, Reliability, reliability, temperature
from vitrail.evaluate.caution import cautions, notes_of, opened
from vitrail.evaluate.match import labels_of, matched, split_of
from vitrail.evaluate.predict import preprocessing
from vitrail.evaluate.tta import Several, Views, uncropped
from vitrail.models.build import Model
from vitrail.tasks.classify import predictions, scores
from vitrail.weights.load import load

BATCH = 64
ENDS = (HOTTEST, 1 / HOTTEST)


@dataclass(frozen=True)
class Answers:
    """Logits of a model on the images of a split, with the model's labels and the number of unreadable images."""

    logits: Float[Tensor, "b k"]
    labels: Int[Tensor, " b"]
    indices: Int[Tensor, " b"]
    left_out: int = 0

    @property
    def guesses(self) -> Int[Tensor, " b"]:
        return self.logits.argmax(1)


@dataclass(frozen=True)
class Calibrated:
    """Scores after temperature scaling, the temperature fitted on validation."""

    temperature: float
    fitted_on: int  # images
    nll: float
    ece: float


@dataclass(frozen=True)
class Measured:
    """Scores with their 95 % intervals, all fractions but ``nll``; and the predictions they were computed from."""

    data: str
    split: str
    names: tuple[str, ...]  # the model's classes
    answers: Answers
    top1: float
    top5: float
    nll: float
    ece: float
    interval: dict[str, tuple[float, float]]
    drawn: dict[str, ndarray]  # the scores of each bootstrap resample
    classes: ByClass
    reliability: Reliability
    calibrated: Calibrated | None = None
    notes: tuple[str, ...] = ()


def measure(
    model: Model | str | Path,
    data: Data | str | Path,
    split: str | None = None,
    tta: Views | None = None,
    batch: int = BATCH,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Measured:
    """Evaluate on a split: test, validation, train or all; None: the first of test, validation and all that has images.

    ``tta`` is ``"flip"`` or ``"crops"``. If the dataset has a validation split that is not the one evaluated, a temperature is
    fitted on it.
    """
    model = load(model) if isinstance(model, str | Path) else model
    preprocessing(model)  # fails before anything is read
    data = data if isinstance(data, Data) else opened(data, model, progress)
    by_default = split is None
    split, source = split_of(data, split)
    look = _Looking(model, tta, batch, workers, progress)
    answers = look.at(source, split, data.name)
    calibrated, notes = _calibrated(look, data, split, answers)
    how = preprocessing(model)
    if tta == "crops" and how.image == how.resized:
        notes = ["the model's preprocessing crops nothing, so the images were enlarged before cropping", *notes]
    return summed_up(
        data.name,
        split,
        labels_of(model),
        answers,
        calibrated,
        (*notes_of(data), *cautions(model, data, split, by_default), *notes),
    )


def summed_up(
    data: str,
    split: str,
    names: tuple[str, ...],
    answers: Answers,
    calibrated: Calibrated | None = None,
    notes: tuple[str, ...] = (),
) -> Measured:
    """Compute every score that follows from the predictions alone."""
    logits, labels = answers.logits, answers.labels
    found, drawn = scores(logits, labels), drawn_scores(logits, labels)
    bins = reliability(logits, labels)
    return Measured(
        data, split, names, answers, found["top1"], found["top5"], found["loss"], bins.error, intervals(logits, labels, drawn),
        drawn, by_class(answers.guesses, labels, logits.shape[1]), bins, calibrated, notes,
    )  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """Scores of the other model minus those of the first on the same images; p is McNemar's, of top-1."""

    difference: dict[str, float]
    interval: dict[str, tuple[float, float]]
    only_first: int  # images that only the first has right
    only_other: int
    p: float


def compare(first: Measured, other: Measured) -> Compared:
    if not torch.equal(first.answers.indices, other.answers.indices):
        raise VitrailError(f"{first.split} and {other.split} are not the same images, so they cannot be compared in pairs")
    right, too = (each.answers.guesses == each.answers.labels for each in (first, other))
    one, two = int((right & ~too).sum()), int((too & ~right).sum())
    difference = {name: getattr(other, name) - getattr(first, name) for name in first.drawn}
    spread = {name: interval(other.drawn[name] - first.drawn[name]) for name in first.drawn}
    return Compared(difference, spread, one, two, mcnemar(one, two))


@dataclass(frozen=True)
class _Looking:
    """A model with the settings to run it."""

    model: Model
    tta: Views | None
    batch: int
    workers: int | None
    progress: Progress | None

    def at(self, source: Source, split: str, data: str) -> Answers:
        classes = torch.from_numpy(matched(source, self.model, data))
        how, model = preprocessing(self.model), self.model
        seen: nn.Module = model if self.tta is None else Several(model, self.tta)
        loader = evaluation(source, uncropped(how) if self.tta == "crops" else how, self.batch)
        total = len(source)
        tell = self.progress or (lambda what, done, of: None)
        logits, labels, indices = predictions(seen, loader, self.workers, lambda done: tell(f"evaluating {split}", done, total))
        check_answers(logits, indices, source, data)
        return Answers(logits, classes[labels], indices, len(loader.problems))


def check_answers(logits: Float[Tensor, "b k"], indices: Int[Tensor, " b"], source: Source, data: str) -> None:
    """Raise unless there are predictions and all are finite."""
    if not len(indices):
        raise VitrailError(f"no image of {data} can be read; `vitrail data check {data}` gives the reasons")
    odd = (~logits.isfinite().all(1)).nonzero()[:, 0]
    if len(odd):
        where = source.where(int(indices[odd[0]]))
        raise VitrailError(
            f"the model's logits are not finite for {len(odd)} of {len(indices)} images, first {where}; "
            "its weights or that image are damaged"
        )


def _calibrated(look: _Looking, data: Data, split: str, answers: Answers) -> tuple[Calibrated | None, list[str]]:
    """Fit the temperature on validation, unless that is what is evaluated."""
    if split in ("validation", "all") or not (data.validation.labels >= 0).any():
        return None, ["there is no separate validation split, so no temperature is fitted"]
    try:
        fit = look.at(split_of(data, "validation")[1], "validation", data.name)
    except VitrailError as error:  # does not affect the split that is evaluated
        return None, [f"no temperature is fitted, as validation cannot be used: {error}"]
    heat = temperature(fit.logits, fit.labels)
    if heat in ENDS:
        sense = "right" if heat < 1 else "wrong"
        return None, [f"too many of the {len(fit.labels):,} validation images are {sense} to fit a temperature"]
    cooled = answers.logits.double() / heat
    nll = scores(cooled, answers.labels)["loss"]
    return Calibrated(heat, len(fit.labels), nll, reliability(cooled, answers.labels).error), []
