"""Confidence intervals by the bootstrap of ``tasks.resampling``, and McNemar's exact test of two models on the same images.

An interval holds the middle 95 % of the scores of the resamples. b images, k classes, r resamples.
"""

import math
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from vitrail.evaluation.calibration import NUM_BINS, assign_bins
from vitrail.recipes.task_config import LossName
from vitrail.tasks.classification import per_image_scores
from vitrail.tasks.resampling import CONFIDENCE_LEVEL, NUM_RESAMPLES, bootstrap_means, percentile_interval

METRIC_NAMES = ("top1", "top5", "nll", "ece")


def bootstrap_scores(
    logits: Float[Tensor, "b k"],
    labels: Int[Tensor, " b"],
    resamples: int = NUM_RESAMPLES,
    loss: LossName = "softmax",
) -> dict[str, ndarray]:
    """Return every score of each resample. All are sums over images (ECE: one per bin), so one product gives them all."""
    per_image = per_image_scores(logits, labels, loss)
    confidence, correct, bin_index = assign_bins(logits, labels, loss=loss)
    gaps = torch.zeros(len(labels), NUM_BINS, dtype=torch.float64)
    gaps[torch.arange(len(labels)), bin_index] = confidence - correct
    table = torch.cat([torch.stack([per_image["top1"], per_image["top5"], per_image["loss"]], dim=1), gaps], dim=1)
    means = bootstrap_means(table.numpy(), resamples)
    return dict(zip(METRIC_NAMES, (*means[:, :3].T, np.abs(means[:, 3:]).sum(1)), strict=True))


def bias_corrected_interval(samples: Float[ndarray, " r"], value: float) -> tuple[float, float]:
    """Return the bias-corrected percentile interval (Efron 1981) of a score whose resamples are biased.

    Average precision is: a resample repeats images, and images that are repeated next to each other rank better.
    """
    normal, resamples = NormalDist(), len(samples)
    below = ((samples < value).sum() + (samples == value).sum() / 2) / resamples
    shift = 2 * normal.inv_cdf(float(np.clip(below, 1 / resamples, 1 - 1 / resamples)))
    ends = (normal.cdf(shift + normal.inv_cdf((1 + sign * CONFIDENCE_LEVEL) / 2)) for sign in (-1, 1))
    low, high = np.quantile(samples, list(ends))
    return float(low), float(high)


def score_intervals(
    logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], samples: Mapping[str, ndarray]
) -> dict[str, tuple[float, float]]:
    intervals_by_name = {name: percentile_interval(values) for name, values in samples.items()}
    for name in ("top1", "top5") if logits.shape[1] > 5 else ("top1",):  # with five classes, top-5 is always right
        intervals_by_name[name] = proportion_interval(samples[name], len(labels))
    return intervals_by_name


def proportion_interval(samples: Float[ndarray, " r"], num_images: int) -> tuple[float, float]:
    """Return the interval of a proportion; if it is 0 or 1, where all resamples agree, the exact binomial bound."""
    low, high = percentile_interval(samples)
    bound = ((1 - CONFIDENCE_LEVEL) / 2) ** (1 / num_images)
    if low == high == 1:
        return bound, 1.0
    return (0.0, 1 - bound) if low == high == 0 else (low, high)


def mcnemar(only_first: int, only_other: int) -> float:
    """Return the p-value of McNemar's exact test, from the images that only one of the two models has right."""
    differing = only_first + only_other
    counts = torch.arange(min(only_first, only_other) + 1, dtype=torch.float64)
    if not differing:
        return 1.0
    log_binomials = math.lgamma(differing + 1) - torch.lgamma(counts + 1) - torch.lgamma(differing - counts + 1)
    return min(1.0, 2 * math.exp(torch.logsumexp(log_binomials, 0).item() - differing * math.log(2)))
