"""Confidence intervals by the percentile bootstrap (Efron 1979), and McNemar's exact test of two models on the same images.

Images are resampled with replacement; the interval holds the middle 95 % of the scores. The resamples follow from a fixed seed
and the number of images alone: the same command gives the same intervals, and two models on the same images get the same
resamples, so that the differences of their scores are paired. b images, r resamples, c columns.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from vitrail.evaluate.calibration import BINS, binned
from vitrail.tasks.classify import marks

DRAWS = 1000
LEVEL = 0.95
AT_ONCE = 2**21  # random indices drawn at a time
SCORES = ("top1", "top5", "nll", "ece")


def drawn_scores(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], draws: int = DRAWS) -> dict[str, ndarray]:
    """Return every score of each resample. All are sums over images (ECE: one per bin), so one product gives them all."""
    own = marks(logits, labels)
    sure, right, place = binned(logits, labels)
    gaps = torch.zeros(len(labels), BINS, dtype=torch.float64)
    gaps[torch.arange(len(labels)), place] = sure - right
    table = torch.cat([torch.stack([own["top1"], own["top5"], own["loss"]], dim=1), gaps], dim=1)
    means = drawn_means(table.numpy(), draws)
    return dict(zip(SCORES, (*means[:, :3].T, np.abs(means[:, 3:]).sum(1)), strict=True))


def drawn_means(table: Float[ndarray, "b c"], draws: int = DRAWS, seed: int = 0) -> Float[ndarray, "r c"]:
    """Return the mean of every column over each resample of the images."""
    count = len(table)
    generator, each = np.random.default_rng(seed), max(AT_ONCE // count, 1)
    means = []
    for start in range(0, draws, each):
        now = min(each, draws - start)
        picked = generator.integers(0, count, (now, count)) + count * np.arange(now)[:, None]
        means.append(np.bincount(picked.ravel(), minlength=now * count).reshape(now, count) @ table / count)
    return np.concatenate(means)


def interval(drawn: Float[ndarray, " r"]) -> tuple[float, float]:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def intervals(
    logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], drawn: Mapping[str, ndarray]
) -> dict[str, tuple[float, float]]:
    found = {name: interval(values) for name, values in drawn.items()}
    for name in ("top1", "top5") if logits.shape[1] > 5 else ("top1",):  # with five classes, top-5 is always right
        found[name] = of_share(drawn[name], len(labels))
    return found


def of_share(drawn: Float[ndarray, " r"], pictures: int) -> tuple[float, float]:
    """Return the interval of a proportion; if it is 0 or 1, where all resamples agree, the exact binomial bound."""
    low, high = interval(drawn)
    edge = ((1 - LEVEL) / 2) ** (1 / pictures)
    if low == high == 1:
        return edge, 1.0
    return (0.0, 1 - edge) if low == high == 0 else (low, high)


def mcnemar(only_first: int, only_other: int) -> float:
    """Return the p-value of McNemar's exact test, from the images that only one of the two models has right."""
    differing = only_first + only_other
    few = torch.arange(min(only_first, only_other) + 1, dtype=torch.float64)
    if not differing:
        return 1.0
    ways = math.lgamma(differing + 1) - torch.lgamma(few + 1) - torch.lgamma(differing - few + 1)
    return min(1.0, 2 * math.exp(torch.logsumexp(ways, 0).item() - differing * math.log(2)))
