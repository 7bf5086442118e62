"""Linear probe: logistic regression on features by L-BFGS, its penalty selected on validation (Radford et al. 2021, A.3).

Minimised is the mean cross-entropy + penalty / 2 * |w|^2 without the bias: scikit-learn's C is 1 / (n * penalty). The penalties
are tried from the strongest down, each warm-started from the one before. n images, d features, k classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.inference.features import Features

PENALTIES = tuple(float(10**power) for power in np.arange(0, -5.25, -0.25))
PATIENCE = 4  # weaker penalties in a row that are worse than the best one, until the search ends
MAX_STEPS, GRAD_TOLERANCE = 500, 1e-4  # limit of iterations; largest gradient at the optimum


@dataclass(frozen=True)
class PenaltyResult:
    penalty: float
    accuracy: float  # on validation, as is the loss
    loss: float


@dataclass(frozen=True)
class LinearProbeResult:
    """Result of a linear probe. ``penalty`` has the best accuracy on validation, of equals the lowest loss."""

    accuracy: float
    penalty: float
    penalty_results: tuple[PenaltyResult, ...]


def linear_probe(
    train: Features,
    validation: Features,
    test: Features | None,
    classes: int,
    penalties: Sequence[float] = PENALTIES,
    on_progress: Callable[[int], None] | None = None,
) -> LinearProbeResult:
    """Select the penalty on validation, then fit on train and validation for the test accuracy; without test, on validation.

    Features are centred and divided by one number, their deviation: the penalty means the same for every model, and the
    least loss is that of the features as they are.
    """
    mean = train.values.mean(axis=0)
    deviation = float((train.values - mean).std()) or 1.0
    x, x_val, x_eval = (torch.from_numpy((part.values - mean) / deviation) for part in (train, validation, test or validation))
    y, y_val, y_eval = (torch.from_numpy(part.labels) for part in (train, validation, test or validation))
    weight = torch.zeros(x.shape[1] + 1, classes)
    results: list[PenaltyResult] = []
    best, best_weight = -1, weight
    for number, penalty in enumerate(sorted(penalties, reverse=True)):
        weight = fit_logistic(x, y, penalty, weight)
        logits = linear_logits(x_val, weight)
        loss = float(torch.nn.functional.cross_entropy(logits.double(), y_val))
        results.append(PenaltyResult(penalty, _accuracy(logits, y_val), loss))
        if number == _best_index(results):
            best, best_weight = number, weight
        if on_progress:
            on_progress(number + 1)
        if number - best >= PATIENCE and loss > results[best].loss:
            break
    if test is not None:
        best_weight = fit_logistic(torch.cat([x, x_val]), torch.cat([y, y_val]), results[best].penalty, best_weight)
    return LinearProbeResult(_accuracy(linear_logits(x_eval, best_weight), y_eval), results[best].penalty, tuple(results))


def fit_logistic(
    x: Float[Tensor, "n d"],
    y: Int[Tensor, " n"],
    penalty: float,
    start: Float[Tensor, "d_and_1 k"],
    tolerance: float = GRAD_TOLERANCE,
    steps: int = MAX_STEPS,
) -> Float[Tensor, "d_and_1 k"]:
    """Return the weights of least loss, the bias as last row. The gradient is written out, which is faster than autograd."""
    weight = start.clone()
    optimiser = torch.optim.LBFGS(
        [weight], max_iter=steps, history_size=20, tolerance_grad=tolerance, tolerance_change=0, line_search_fn="strong_wolfe"
    )
    rows = torch.arange(x.shape[0])

    def loss() -> Tensor:
        log_probabilities = linear_logits(x, weight).log_softmax(dim=1)
        gradient = log_probabilities.exp()
        gradient[rows, y] -= 1
        gradient /= x.shape[0]
        weight.grad = torch.cat([x.T @ gradient + penalty * weight[:-1], gradient.sum(dim=0, keepdim=True)])
        return penalty / 2 * weight[:-1].square().sum() - log_probabilities[rows, y].mean()

    optimiser.step(loss)
    return weight.detach()


def linear_logits(x: Float[Tensor, "n d"], weight: Float[Tensor, "d_and_1 k"]) -> Float[Tensor, "n k"]:
    return torch.addmm(weight[-1], x, weight[:-1])


def _best_index(results: Sequence[PenaltyResult]) -> int:
    return max(range(len(results)), key=lambda number: (results[number].accuracy, -results[number].loss))


def _accuracy(logits: Float[Tensor, "n k"], labels: Int[Tensor, " n"]) -> float:
    return float((logits.argmax(dim=1) == labels).double().mean())
