"""Metrics of several labels per image: average precision, F1, Hamming loss, subset accuracy, coverage, calibration.

The conventions are scikit-learn's: images with equal scores count together, a class without positives has average precision 0,
and a class that neither occurs nor is predicted has F1 0. b images, k classes, r bootstrap resamples of the images, given as
how often each image occurs in it.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

RESAMPLE_CHUNK_NUMEL = 2**22  # counts that are summed at a time


def average_precision(
    scores: Float[Tensor, " b"], positive: Bool[Tensor, " b"], resamples: Int[Tensor, "r b"] | None = None
) -> Float[Tensor, " r"]:
    """Return the average precision of one ranking in each resample; None: of the images as they are. Without positives: 0."""
    order = scores.argsort(descending=True, stable=True)
    ordered = scores[order]
    last = torch.cat([ordered[1:] != ordered[:-1], torch.ones(min(len(ordered), 1), dtype=torch.bool)])  # of equal scores
    weights = torch.ones(1, len(order), dtype=torch.int32) if resamples is None else resamples[:, order].int()
    seen = weights.cumsum(1, dtype=torch.int32)[:, last].double()
    found = (weights * positive[order]).cumsum(1, dtype=torch.int32)[:, last].double()
    gained = found.diff(dim=1, prepend=found.new_zeros(len(found), 1))
    return (gained * found / seen.clamp(min=1)).sum(1) / found[:, -1:].clamp(min=1)[:, 0]


def mean_average_precision(scores: Float[Tensor, "b k"], positive: Bool[Tensor, "b k"]) -> float:
    """Return the unweighted mean over the classes."""
    return float(torch.cat([average_precision(*column) for column in zip(scores.T, positive.T, strict=True)]).mean())


@dataclass(frozen=True)
class LabelCounts:
    """Per class: how many images have it, how many are predicted to, and how many of these are right."""

    support: Int[Tensor, "*r k"]
    predicted: Int[Tensor, "*r k"]
    true_positives: Int[Tensor, "*r k"]

    @property
    def precision(self) -> Float[Tensor, "*r k"]:
        return self.true_positives.double() / self.predicted.clamp(min=1)

    @property
    def recall(self) -> Float[Tensor, "*r k"]:
        return self.true_positives.double() / self.support.clamp(min=1)

    @property
    def f1(self) -> Float[Tensor, "*r k"]:
        return 2 * self.true_positives.double() / (self.support + self.predicted).clamp(min=1)

    @property
    def f1_macro(self) -> Float[Tensor, "*r"]:
        return self.f1.mean(-1)

    @property
    def f1_micro(self) -> Float[Tensor, "*r"]:
        total = (self.support + self.predicted).sum(-1)
        return 2 * self.true_positives.sum(-1).double() / total.clamp(min=1)


def count_labels(
    predicted: Bool[Tensor, "b k"], positive: Bool[Tensor, "b k"], resamples: Int[Tensor, "r b"] | None = None
) -> LabelCounts:
    """Count the labels of all images, or of those of each resample."""
    tables = positive, predicted, predicted & positive
    if resamples is None:
        return LabelCounts(*(table.sum(0) for table in tables))
    weights = resamples.double()  # integers below 2^53 are exact, and the product is fast
    return LabelCounts(*((weights @ table.double()).round().long() for table in tables))


def coverage(scores: Float[Tensor, "b k"], positive: Bool[Tensor, "b k"]) -> Float[Tensor, " b"]:
    """Return how far down the ranking of its classes an image's last label is; 0 without labels."""
    lowest = scores.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
    return (scores >= lowest).sum(1).double()


def ranking_precision(scores: Float[Tensor, "b k"], positive: Bool[Tensor, "b k"]) -> Float[Tensor, " b"]:
    """Return the average precision of the ranking of each image's classes; 1 with all labels or none."""
    is_trivial = positive.all(1) | ~positive.any(1)
    rows = [average_precision(row, labels) for row, labels in zip(scores, positive, strict=True)]
    return torch.where(is_trivial, 1.0, torch.cat(rows).double() if rows else torch.zeros(0, dtype=torch.float64))


def label_losses(logits: Float[Tensor, "b k"], positive: Bool[Tensor, "b k"]) -> Float[Tensor, " b"]:
    """Return the negative log-likelihood of each image's labels, summed over the classes."""
    return F.binary_cross_entropy_with_logits(logits.double(), positive.double(), reduction="none").sum(1)


def label_calibration_error(
    probabilities: Float[Tensor, "b k"], positive: Bool[Tensor, "b k"], bins: int = 15
) -> Float[Tensor, " k"]:
    """Return the expected calibration error of each class: the gap between mean probability and frequency, over equal bins."""
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
    bin_index = torch.bucketize(probabilities.double(), edges)
    gaps = torch.zeros(bins, probabilities.shape[1], dtype=torch.float64)
    gaps.scatter_add_(0, bin_index, probabilities.double() - positive.double())
    return gaps.abs().sum(0) / max(len(probabilities), 1)


def best_thresholds(probabilities: Float[Tensor, "b k"], positive: Bool[Tensor, "b k"], min_positives: int) -> list[float]:
    """Choose a threshold of each class for the largest F1; classes with fewer positives share the one that is best for them."""
    enough = positive.sum(0) >= min_positives
    shared = _best_threshold(probabilities[:, ~enough].flatten(), positive[:, ~enough].flatten())
    return [
        _best_threshold(column, labels) if has_enough else shared
        for column, labels, has_enough in zip(probabilities.T, positive.T, enough.tolist(), strict=True)
    ]


def _best_threshold(scores: Float[Tensor, " b"], positive: Bool[Tensor, " b"]) -> float:
    """Return the threshold of the largest F1, halfway between two scores; 0.5 without positives."""
    if not positive.any():
        return 0.5
    order = scores.argsort(descending=True, stable=True)
    ordered, right = scores[order].double(), positive[order].cumsum(0)
    last = torch.cat([ordered[1:] != ordered[:-1], torch.ones(1, dtype=torch.bool)])
    f1 = 2 * right / (torch.arange(1, len(order) + 1) + positive.sum())
    best = int(f1.masked_fill(~last, -1).argmax())
    below = ordered[best + 1] if best + 1 < len(ordered) else 0.0
    return float((ordered[best] + below) / 2)
