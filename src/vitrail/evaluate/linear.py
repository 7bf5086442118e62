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

from vitrail.evaluate.features import Features

PENALTIES = tuple(float(10**power) for power in np.arange(0, -5.25, -0.25))
PATIENCE = 4  # weaker penalties in a row that are worse than the best one, until the search ends
STEPS, STILL = 500, 1e-4  # limit of iterations; largest gradient at the optimum


@dataclass(frozen=True)
class Tried:
    penalty: float
    accuracy: float  # on validation, as is the loss
    loss: float


@dataclass(frozen=True)
class Linear:
    """Result of a linear probe. ``penalty`` has the best accuracy on validation, of equals the lowest loss."""

    accuracy: float
    penalty: float
    tried: tuple[Tried, ...]


def linear(
    train: Features,
    validation: Features,
    test: Features | None,
    classes: int,
    penalties: Sequence[float] = PENALTIES,
    told: Callable[[int], None] | None = None,
) -> Linear:
    """Select the penalty on validation, then fit on train and validation for the test accuracy; without test, on validation.

    Features are centred and divided by one number, their deviation: the penalty means the same for every model, and the
    least loss is that of the features as they are.
    """
    mean = train.values.mean(axis=0)
    deviation = float((train.values - mean).std()) or 1.0
    x, seen, asked = (torch.from_numpy((part.values - mean) / deviation) for part in (train, validation, test or validation))
    y, right, truth = (torch.from_numpy(part.labels) for part in (train, validation, test or validation))
    weight = torch.zeros(x.shape[1] + 1, classes)
    tried: list[Tried] = []
    best, answer = -1, weight
    for number, penalty in enumerate(sorted(penalties, reverse=True)):
        weight = logistic(x, y, penalty, weight)
        answers = scores(seen, weight)
        loss = float(torch.nn.functional.cross_entropy(answers.double(), right))
        tried.append(Tried(penalty, _accuracy(answers, right), loss))
        if number == _best(tried):
            best, answer = number, weight
        if told:
            told(number + 1)
        if number - best >= PATIENCE and loss > tried[best].loss:
            break
    if test is not None:
        answer = logistic(torch.cat([x, seen]), torch.cat([y, right]), tried[best].penalty, answer)
    return Linear(_accuracy(scores(asked, answer), truth), tried[best].penalty, tuple(tried))


def logistic(
    x: Float[Tensor, "n d"],
    y: Int[Tensor, " n"],
    penalty: float,
    start: Float[Tensor, "d_and_1 k"],
    still: float = STILL,
    steps: int = STEPS,
) -> Float[Tensor, "d_and_1 k"]:
    """Return the weights of least loss, the bias as last row. The gradient is written out, which is faster than autograd."""
    weight = start.clone()
    optimiser = torch.optim.LBFGS(
        [weight], max_iter=steps, history_size=20, tolerance_grad=still, tolerance_change=0, line_search_fn="strong_wolfe"
    )
    rows = torch.arange(x.shape[0])

    def loss() -> Tensor:
        logs = scores(x, weight).log_softmax(dim=1)
        slope = logs.exp()
        slope[rows, y] -= 1
        slope /= x.shape[0]
        weight.grad = torch.cat([x.T @ slope + penalty * weight[:-1], slope.sum(dim=0, keepdim=True)])
        return penalty / 2 * weight[:-1].square().sum() - logs[rows, y].mean()

    optimiser.step(loss)
    return weight.detach()


def scores(x: Float[Tensor, "n d"], weight: Float[Tensor, "d_and_1 k"]) -> Float[Tensor, "n k"]:
    return torch.addmm(weight[-1], x, weight[:-1])


def _best(tried: Sequence[Tried]) -> int:
    return max(range(len(tried)), key=lambda number: (tried[number].accuracy, -tried[number].loss))


def _accuracy(answers: Float[Tensor, "n k"], truth: Int[Tensor, " n"]) -> float:
    return float((answers.argmax(dim=1) == truth).double().mean())
