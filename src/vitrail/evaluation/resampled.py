"""Evaluations whose every metric has an interval by the bootstrap, and the paired comparison of two of them. r resamples."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, Num
from numpy import ndarray
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.evaluation.split_runner import Evaluation
from vitrail.tasks.resampling import percentile_interval


@dataclass(frozen=True)
class ResampledEvaluation(Evaluation):
    """Metrics with their 95 % intervals, and what they come from: outputs and targets of the images."""

    intervals: dict[str, tuple[float, float]]
    bootstrap: dict[str, Float[ndarray, " r"]]  # the metrics of each resample, which are the same images for every model
    outputs: Num[Tensor, "b ..."]
    targets: Any
    indices: Int[Tensor, " b"]  # of the images in the split
    details: dict[str, Any]  # what the task says besides, such as a row per class


@dataclass(frozen=True)
class MetricDifference:
    """The other model's metric minus the first's. ``p``: how often resamples contradict the sign, for both sides."""

    difference: float
    interval: tuple[float, float]
    p: float


def compare_resampled(first: ResampledEvaluation, other: ResampledEvaluation) -> dict[str, MetricDifference]:
    """Compare two models on the same images, metric by metric."""
    if not torch.equal(first.indices, other.indices):
        raise VitrailError(f"{first.split} and {other.split} are not the same images, so they cannot be compared in pairs")
    return {
        name: _difference(other.metrics[name] - first.metrics[name], other.bootstrap[name] - samples)
        for name, samples in first.bootstrap.items()
        if name in other.bootstrap
    }


def _difference(value: float, samples: Float[ndarray, " r"]) -> MetricDifference:
    contradicting = min((samples <= 0).mean(), (samples >= 0).mean())
    return MetricDifference(value, percentile_interval(samples), float(min(1.0, max(2 * contradicting, 1 / len(samples)))))
