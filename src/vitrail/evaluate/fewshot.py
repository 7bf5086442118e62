"""Few-shot accuracy in closed form (Dosovitskiy et al. 2021, section 4.1), with the constants of big_vision's ``fewshot_lsr``.

A few images of each class are drawn; their features are standardised (by their own mean and deviation + 1e-5) and get a
constant of 100, so that the bias is hardly penalised; ridge regression with a penalty of 2^10 onto targets of -1 and 1. A class
with fewer images than shots gives all it has. n images, d features, k classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int64
from numpy import ndarray

from vitrail.evaluate.features import Features

SHOTS, SEEDS = (1, 5, 10, 25), 3
PENALTY, BIAS, EPSILON = 2.0**10, 100.0, 1e-5


@dataclass(frozen=True)
class FewShot:
    """Few-shot accuracy; ``std`` is over the seeds, ``short_classes`` counts the classes that have fewer images than shots."""

    shots: int
    accuracy: float
    spread: float
    seeds: tuple[float, ...]
    short: int


def fewshot(
    train: Features, test: Features, classes: int, shots: Sequence[int] = SHOTS, seeds: int = SEEDS
) -> tuple[FewShot, ...]:
    """Return the accuracy for each number of shots. A seed draws an order of every class; more shots include the fewer."""
    found: dict[int, list[float]] = {count: [] for count in shots}
    for seed in range(seeds):
        orders = _orders(train.labels, classes, seed)
        for count in shots:
            few = np.concatenate([order[:count] for order in orders])
            answers = ridge(train.values[few], train.labels[few], test.values, classes).argmax(axis=1)
            found[count].append(float((answers == test.labels).mean()))
    amounts = np.bincount(train.labels, minlength=classes)
    return tuple(_summed(count, found[count], int((amounts < count).sum())) for count in shots)


def ridge(
    x: Float32[ndarray, "n d"], labels: Int64[ndarray, " n"], asked: Float32[ndarray, "m d"], classes: int
) -> Float[ndarray, "m k"]:
    """Return the class scores of ``x_test`` by ridge regression. Solved on the smaller side: n x n if n < d + 1."""
    mean, deviation = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64) + EPSILON
    known, new = _biased((x - mean) / deviation), _biased((asked - mean) / deviation)
    targets = 2.0 * np.eye(classes)[labels] - 1.0
    if known.shape[0] < known.shape[1]:
        return new @ (known.T @ np.linalg.solve(known @ known.T + PENALTY * np.eye(known.shape[0]), targets))
    return new @ np.linalg.solve(known.T @ known + PENALTY * np.eye(known.shape[1]), known.T @ targets)


def _orders(labels: ndarray, classes: int, seed: int) -> list[ndarray]:
    chance = np.random.default_rng(seed)
    return [chance.permutation(np.flatnonzero(labels == number)) for number in range(classes)]


def _biased(x: ndarray) -> ndarray:
    return np.concatenate([x, np.full((x.shape[0], 1), BIAS)], axis=1)


def _summed(shots: int, accuracies: Sequence[float], short: int) -> FewShot:
    spread = float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else 0.0
    return FewShot(shots, float(np.mean(accuracies)), spread, tuple(accuracies), short)
