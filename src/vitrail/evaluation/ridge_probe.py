"""Ridge regression on features in closed form (Hoerl and Kennard 1970), the penalty of each target selected on validation.

Minimised is the mean squared error + penalty * |w|^2 without the intercept: scikit-learn's alpha is n * penalty. n images,
d features, m targets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from vitrail.tasks.regression import target_scores

PENALTIES = tuple(float(10**power) for power in np.arange(3, -6.25, -0.25))


@dataclass(frozen=True)
class RidgeTarget:
    """Scores of one target, and its penalty, which has the lowest squared error on validation."""

    name: str
    mae: float
    rmse: float
    r2: float
    penalty: float


@dataclass(frozen=True)
class RidgeProbeResult:
    """Result of a ridge probe; ``mae`` and ``r2`` are means over the targets."""

    mae: float
    r2: float
    targets: tuple[RidgeTarget, ...]


def ridge_probe(
    features: Sequence[Float[ndarray, "_ d"]],
    targets: Sequence[Float[Tensor, "_ m"]],
    names: tuple[str, ...],
    has_test: bool,
    penalties: Sequence[float] = PENALTIES,
) -> RidgeProbeResult:
    """Probe features and targets of train, validation and test, or of validation again without a test split.

    Features are centred and divided by one number, their deviation, so that a penalty means the same for every model. With a
    test split, the weights are fitted again on train and validation.
    """
    mean = features[0].mean(axis=0)
    deviation = float((features[0] - mean).std()) or 1.0
    x, x_val, x_eval = (torch.from_numpy((part - mean) / deviation).double() for part in features)
    y, y_val, y_eval = (part.double() for part in targets)
    errors = torch.stack([(predict(x_val) - y_val).square().mean(0) for predict in fit_ridge(x, y, penalties)])
    chosen = [penalties[index] for index in errors.argmin(0).tolist()]
    if has_test:
        x, y = torch.cat([x, x_val]), torch.cat([y, y_val])
    columns = [predict(x_eval)[:, number] for number, predict in enumerate(fit_ridge(x, y, chosen))]
    scores = target_scores(torch.stack(columns, dim=1), y_eval)
    rows = tuple(
        RidgeTarget(name, **{score: float(values[number]) for score, values in scores.items()}, penalty=chosen[number])
        for number, name in enumerate(names)
    )
    return RidgeProbeResult(float(scores["mae"].mean()), float(scores["r2"].mean()), rows)


@dataclass(frozen=True)
class Ridge:
    """A fitted ridge regression; calling it predicts."""

    weight: Float[Tensor, "d m"]
    intercept: Float[Tensor, " m"]

    def __call__(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
        return x @ self.weight + self.intercept


def fit_ridge(x: Float[Tensor, "n d"], y: Float[Tensor, "n m"], penalties: Sequence[float]) -> list[Ridge]:
    """Return the regression for each penalty, by one eigendecomposition of the smaller of the two Gram matrices."""
    centre, level, count = x.mean(0), y.mean(0), x.shape[0]
    x, y = x - centre, y - level
    is_wide = x.shape[1] > count
    values, vectors = torch.linalg.eigh((x @ x.T if is_wide else x.T @ x) / count)
    values, projected = values.clamp(min=0)[:, None], vectors.T @ ((y if is_wide else x.T @ y) / count)
    fitted = []
    for penalty in penalties:
        weight = vectors @ (projected / (values + penalty))
        weight = x.T @ weight if is_wide else weight
        fitted.append(Ridge(weight, level - centre @ weight))
    return fitted
