"""Linear probe: logistic regression on features by L-BFGS, its penalty selected on validation (Radford et al. 2021, A.3).

Minimised is the mean cross-entropy + penalty / 2 * |w|^2 without the bias: scikit-learn's C is 1 / (n * penalty). The penalties
are tried from the strongest down, each warm-started from the one before. With several labels per image, the cross-entropy is
that of a binary classifier per class. n images, d features, k classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from vitrail.inference.features import Features
from vitrail.tasks.label_metrics import label_losses, mean_average_precision

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


@dataclass(frozen=True)
class LabelPenaltyResult:
    penalty: float
    map: float  # on validation, as is the loss, which is summed over the classes
    loss: float


@dataclass(frozen=True)
class LabelProbeResult:
    """Result of a linear probe of several labels per image. ``penalty`` has the best mean average precision on validation."""

    map: float
    penalty: float
    penalty_results: tuple[LabelPenaltyResult, ...]


Scores = tuple[float, float]  # the higher the better, and the loss


def linear_probe(
    train: Features,
    validation: Features,
    test: Features | None,
    classes: int,
    penalties: Sequence[float] = PENALTIES,
    on_progress: Callable[[int], None] | None = None,
) -> LinearProbeResult:
    """Select the penalty on validation, then fit on train and validation for the test accuracy; without test, on validation."""
    features = [part.values for part in (train, validation, test or validation)]
    targets = [torch.from_numpy(part.labels) for part in (train, validation, test or validation)]
    weights = torch.zeros(features[0].shape[1] + 1, classes)

    def score(logits: Tensor, y: Tensor) -> Scores:
        return _accuracy(logits, y), float(torch.nn.functional.cross_entropy(logits.double(), y))

    logits, best, tried = _select_penalty(features, targets, weights, score, penalties, test is not None, on_progress)
    return LinearProbeResult(_accuracy(logits, targets[2]), best, tuple(PenaltyResult(*each) for each in tried))


def linear_label_probe(
    features: Sequence[Float[ndarray, "_ d"]],
    targets: Sequence[Float[Tensor, "_ k"]],
    has_test: bool,
    penalties: Sequence[float] = PENALTIES,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[LabelProbeResult, Float[Tensor, "_ k"]]:
    """Probe several labels per image by features and targets of train, validation and test, or of validation again without
    a test split; return also the logits of the last."""
    weights = torch.zeros(features[0].shape[1] + 1, targets[0].shape[1])

    def score(logits: Tensor, y: Tensor) -> Scores:
        return mean_average_precision(logits, y.bool()), float(label_losses(logits, y.bool()).mean())

    logits, best, tried = _select_penalty(features, targets, weights, score, penalties, has_test, on_progress)
    value = mean_average_precision(logits, targets[2].bool())
    return LabelProbeResult(value, best, tuple(LabelPenaltyResult(*each) for each in tried)), logits


def _select_penalty(
    features: Sequence[Float[ndarray, "_ d"]],
    targets: Sequence[Tensor],
    weight: Float[Tensor, "d_and_1 k"],
    score: Callable[[Tensor, Tensor], Scores],
    penalties: Sequence[float],
    has_test: bool,
    on_progress: Callable[[int], None] | None,
) -> tuple[Float[Tensor, "_ k"], float, list[tuple[float, float, float]]]:
    """Return the logits on the last of train, validation and test, the penalty, and score and loss of each that was tried.

    Features are centred and divided by one number, their deviation: the penalty means the same for every model, and the
    least loss is that of the features as they are.
    """
    mean = features[0].mean(axis=0)
    deviation = float((features[0] - mean).std()) or 1.0
    x, x_val, x_eval = (torch.from_numpy((part - mean) / deviation) for part in features)
    y, y_val, _ = targets
    results: list[tuple[float, float, float]] = []
    best, best_weight = -1, weight
    for number, penalty in enumerate(sorted(penalties, reverse=True)):
        weight = fit_logistic(x, y, penalty, weight)
        value, loss = score(linear_logits(x_val, weight), y_val)
        results.append((penalty, value, loss))
        if number == max(range(len(results)), key=lambda index: (results[index][1], -results[index][2])):
            best, best_weight = number, weight
        if on_progress:
            on_progress(number + 1)
        if number - best >= PATIENCE and loss > results[best][2]:
            break
    if has_test:
        best_weight = fit_logistic(torch.cat([x, x_val]), torch.cat([y, y_val]), results[best][0], best_weight)
    return linear_logits(x_eval, best_weight), results[best][0], results


def fit_logistic(
    x: Float[Tensor, "n d"],
    y: Int[Tensor, " n"] | Float[Tensor, "n k"],
    penalty: float,
    start: Float[Tensor, "d_and_1 k"],
    tolerance: float = GRAD_TOLERANCE,
    steps: int = MAX_STEPS,
) -> Float[Tensor, "d_and_1 k"]:
    """Return the weights of least loss, the bias as last row. The gradient is written out, which is faster than autograd.

    ``y`` is a label per image, or zeros and ones for each class.
    """
    weight = start.clone()
    optimiser = torch.optim.LBFGS(
        [weight], max_iter=steps, history_size=20, tolerance_grad=tolerance, tolerance_change=0, line_search_fn="strong_wolfe"
    )
    rows = torch.arange(x.shape[0])

    def softmax_loss(logits: Tensor) -> tuple[Tensor, Tensor]:
        log_probabilities = logits.log_softmax(dim=1)
        gradient = log_probabilities.exp()
        gradient[rows, y] -= 1
        return -log_probabilities[rows, y].mean(), gradient

    def sigmoid_loss(logits: Tensor) -> tuple[Tensor, Tensor]:
        losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="none")
        return losses.sum(dim=1).mean(), logits.sigmoid() - y

    def loss() -> Tensor:
        mean_loss, gradient = (softmax_loss if y.ndim == 1 else sigmoid_loss)(linear_logits(x, weight))
        gradient /= x.shape[0]
        weight.grad = torch.cat([x.T @ gradient + penalty * weight[:-1], gradient.sum(dim=0, keepdim=True)])
        return penalty / 2 * weight[:-1].square().sum() + mean_loss

    optimiser.step(loss)
    return weight.detach()


def linear_logits(x: Float[Tensor, "n d"], weight: Float[Tensor, "d_and_1 k"]) -> Float[Tensor, "n k"]:
    return torch.addmm(weight[-1], x, weight[:-1])


def _accuracy(logits: Float[Tensor, "n k"], labels: Int[Tensor, " n"]) -> float:
    return float((logits.argmax(dim=1) == labels).double().mean())
