"""How far a score can be trusted: percentile bootstrap (Efron 1979), and two models on the same pictures: McNemar's exact test.

Pictures are drawn again with replacement, so often; the interval holds the middle 95 % of the scores. The draws follow from a
fixed seed and the number of pictures alone: the same command says the same, and two models on the same pictures see the same
draws, so that the differences of their scores are paired. b pictures, r draws, c columns.
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
AT_ONCE = 2**21  # numbers drawn at a time
SCORES = ("top1", "top5", "nll", "ece")


def drawn_scores(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], draws: int = DRAWS) -> dict[str, ndarray]:
    """Every score of each draw. All are sums over pictures, the calibration error one a bin, so one product gives them all."""
    own = marks(logits, labels)
    sure, right, place = binned(logits, labels)
    gaps = torch.zeros(len(labels), BINS, dtype=torch.float64)
    gaps[torch.arange(len(labels)), place] = sure - right
    table = torch.cat([torch.stack([own["top1"], own["top5"], own["loss"]], dim=1), gaps], dim=1)
    means = drawn_means(table.numpy(), draws)
    return dict(zip(SCORES, (*means[:, :3].T, np.abs(means[:, 3:]).sum(1)), strict=True))


def drawn_means(table: Float[ndarray, "b c"], draws: int = DRAWS, seed: int = 0) -> Float[ndarray, "r c"]:
    """The mean of every column over each draw of pictures."""
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
    for name in ("top1", "top5") if logits.shape[1] > 5 else ("top1",):  # of five classes, five are always right
        found[name] = of_share(drawn[name], len(labels))
    return found


def of_share(drawn: Float[ndarray, " r"], pictures: int) -> tuple[float, float]:
    """Where every picture is right, or none, each draw says the same; the exact binomial bound stands in for it."""
    low, high = interval(drawn)
    edge = ((1 - LEVEL) / 2) ** (1 / pictures)
    if low == high == 1:
        return edge, 1.0
    return (0.0, 1 - edge) if low == high == 0 else (low, high)


def mcnemar(only_first: int, only_other: int) -> float:
    """The chance that two equally good models differ so much or more, by those pictures that one alone has right."""
    differing = only_first + only_other
    few = torch.arange(min(only_first, only_other) + 1, dtype=torch.float64)
    if not differing:
        return 1.0
    ways = math.lgamma(differing + 1) - torch.lgamma(few + 1) - torch.lgamma(differing - few + 1)
    return min(1.0, 2 * math.exp(torch.logsumexp(ways, 0).item() - differing * math.log(2)))
