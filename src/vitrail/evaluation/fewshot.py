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

from vitrail.inference.features import Features

SHOTS, SEEDS = (1, 5, 10, 25), 3
PENALTY, BIAS, EPSILON = 2.0**10, 100.0, 1e-5


@dataclass(frozen=True)
class FewShotResult:
    """Few-shot accuracy; ``std`` is over the seeds, ``short_classes`` counts the classes that have fewer images than shots."""

    shots: int
    accuracy: float
    std: float
    per_seed: tuple[float, ...]
    short_classes: int


def fewshot_probe(
    train: Features, test: Features, classes: int, shots: Sequence[int] = SHOTS, seeds: int = SEEDS
) -> tuple[FewShotResult, ...]:
    """Return the accuracy for each number of shots. A seed draws an order of every class; more shots include the fewer."""
    accuracies: dict[int, list[float]] = {count: [] for count in shots}
    for seed in range(seeds):
        orders = _class_orders(train.labels, classes, seed)
        for count in shots:
            few = np.concatenate([order[:count] for order in orders])
            predicted = ridge_regression(train.values[few], train.labels[few], test.values, classes).argmax(axis=1)
            accuracies[count].append(float((predicted == test.labels).mean()))
    class_counts = np.bincount(train.labels, minlength=classes)
    return tuple(_summarise(count, accuracies[count], int((class_counts < count).sum())) for count in shots)


def ridge_regression(
    x: Float32[ndarray, "n d"], labels: Int64[ndarray, " n"], x_test: Float32[ndarray, "m d"], classes: int
) -> Float[ndarray, "m k"]:
    """Return the class scores of ``x_test`` by ridge regression. Solved on the smaller side: n x n if n < d + 1."""
    mean, deviation = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64) + EPSILON
    train, test = _append_bias((x - mean) / deviation), _append_bias((x_test - mean) / deviation)
    targets = 2.0 * np.eye(classes)[labels] - 1.0
    if train.shape[0] < train.shape[1]:
        return test @ (train.T @ np.linalg.solve(train @ train.T + PENALTY * np.eye(train.shape[0]), targets))
    return test @ np.linalg.solve(train.T @ train + PENALTY * np.eye(train.shape[1]), train.T @ targets)


def _class_orders(labels: ndarray, classes: int, seed: int) -> list[ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.permutation(np.flatnonzero(labels == number)) for number in range(classes)]


def _append_bias(x: ndarray) -> ndarray:
    return np.concatenate([x, np.full((x.shape[0], 1), BIAS)], axis=1)


def _summarise(shots: int, accuracies: Sequence[float], short_classes: int) -> FewShotResult:
    std = float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else 0.0
    return FewShotResult(shots, float(np.mean(accuracies)), std, tuple(accuracies), short_classes)
