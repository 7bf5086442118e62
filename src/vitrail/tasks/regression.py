"""Regression: one number per image, or several. b images, m numbers.

The model predicts numbers that are standardised by the mean and the standard deviation of the training targets, so that a
learning rate suits any units; they are saved with the model, and everything that leaves it is in the units of the targets.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.data.loader import Batch, Loader
from vitrail.data.sources.dataset import Dataset, DatasetSplits
from vitrail.data.sources.numbers import check_numbers, unnamed_targets
from vitrail.errors import VitrailError, did_you_mean
from vitrail.recipes.task_config import Regression
from vitrail.tasks.task import Gather, ImageScore, Loss, Prediction, Task, no_gather

MAX_LISTED = 3  # targets in a short description
VALUES = "values"  # the predicted numbers in units, in exported files and in saved predictions


@dataclass(frozen=True)
class RegressionPrediction(Prediction):
    """The predicted numbers of an image by name, in the units of the targets."""

    values: dict[str, float] = field(default_factory=dict)

    def cells(self) -> dict[str, Any]:
        return dict(self.values)

    def text(self) -> list[str]:
        return [f"{value:.6g}" for value in self.values.values()]


@dataclass(frozen=True)
class RegressionTask(Task):
    """Numbers per image."""

    mean: tuple[float, ...] | None = None  # of the training targets
    std: tuple[float, ...] | None = None  # their standard deviation
    custom_loss: Loss | None = None

    config_class: ClassVar = Regression
    lower_is_better: ClassVar[bool] = True
    metric_titles: ClassVar[Mapping[str, str]] = {
        "mae": "MAE",
        "rmse": "RMSE",
        "r2": "R²",
        "standardised_mae": "MAE in standard deviations",
    }
    output_name: ClassVar[str] = "standardised"
    prediction_class: ClassVar = RegressionPrediction

    @property
    def primary_metric(self) -> str:  # type: ignore[override]  # a mean over several targets needs a common unit
        """The mean absolute error; that of several targets in standard deviations of each."""
        return "mae" if len(self.config.targets) < 2 else "standardised_mae"

    @property
    def image_score(self) -> ImageScore:  # type: ignore[override]
        """The absolute error of an image."""
        title = "mean absolute error" + (" in standard deviations" if len(self.config.targets) > 1 else "")
        return ImageScore(self.primary_metric, title, lower_is_better=True, is_fraction=False)

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.config.targets

    @property
    def description(self) -> str:
        names = self.config.targets
        listed = ", ".join(names[:MAX_LISTED]) + (f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else "")
        return f"a model that predicts {' and '.join(names) if len(names) == 2 else listed}"

    def default_output(self, outputs: Tensor) -> int:
        return 0  # numbers in different units have no largest one

    def require_targets(self, dataset: Dataset, name: str) -> None:
        super().require_targets(dataset, name)
        if len(dataset):
            self._columns(dataset, name)
            check_numbers(dataset)

    def _columns(self, dataset: Dataset, name: str) -> list[int]:
        """Return the column of each target: by name, or by order if the model's targets or the dataset's have no names."""
        names, own = self.config.targets, dataset.target_names
        if all(target in own for target in names):
            return [own.index(target) for target in names]
        if len(own) == len(names) and unnamed_targets(len(names)) in (own, names):
            return list(range(len(names)))
        missing = next(target for target in names if target not in own)
        has = f"; it has {', '.join(own)}{did_you_mean(missing, own)}" if own else " or other numbers as targets"
        raise VitrailError(f"{name} has no target {missing!r}, which the model predicts{has}")

    def with_data(self, data: DatasetSplits) -> "RegressionTask":
        names = self.config.targets
        if data.target_names != names or self.model.classes != len(names):
            raise VitrailError(
                f"the task predicts {', '.join(names) or 'nothing'} by {self.model.classes} outputs, and the targets of "
                f"{data.name} are {', '.join(data.target_names)}; use one task, model and dataset"
            )
        for split in data.splits.values():
            self.require_targets(split, data.name)
        numbers = np.asarray(data.train.targets, np.float64)
        for name, column in zip(names, numbers.T, strict=True):
            if column.min() == column.max():
                raise VitrailError(
                    f"the target {name} is {column[0]:g} for every training image of {data.name}, so there is nothing to "
                    "learn; leave it out"
                )
        return replace(self, mean=tuple(numbers.mean(0).tolist()), std=tuple(numbers.std(0).tolist()))

    def with_loss(self, loss: Loss) -> "RegressionTask":
        return replace(self, custom_loss=loss)

    def state(self) -> dict[str, Any]:
        if self.mean is None or self.std is None:
            return {}
        names = self.config.targets
        return {"mean": dict(zip(names, self.mean, strict=True)), "std": dict(zip(names, self.std, strict=True))}

    def with_state(self, state: Mapping[str, Any]) -> "RegressionTask":
        return replace(self, mean=self._recorded(state, "mean"), std=self._recorded(state, "std")) if state else self

    def _recorded(self, state: Mapping[str, Any], part: str) -> tuple[float, ...]:
        """Return a recorded number for each target."""
        numbers = state.get(part)
        found = [numbers.get(name) for name in self.config.targets] if isinstance(numbers, Mapping) else []
        values = tuple(float(each) for each in found if isinstance(each, int | float) and math.isfinite(each))
        if len(values) != len(self.config.targets) or (part == "std" and min(values) <= 0):
            raise VitrailError(
                f"the {part} of the targets must be a number for each of {', '.join(self.config.targets)}, got {numbers!r}; "
                "the model is damaged"
            )
        return values

    def targets(self, dataset: Dataset, indices: ndarray) -> Float[Tensor, "b m"]:
        """Return the targets in their own units."""
        return torch.from_numpy(np.asarray(dataset.targets, np.float64)[indices][:, self._columns(dataset, dataset.name)])

    def _scale(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation in the precision and on the device of a tensor."""
        if self.mean is None or self.std is None:
            raise VitrailError(
                "the model records no mean and standard deviation of its targets, so its outputs have no units; use a run that "
                "has been evaluated once"
            )
        return like.new_tensor(self.mean), like.new_tensor(self.std)

    def standardise(self, targets: Float[Tensor, "*b m"]) -> Float[Tensor, "*b m"]:
        """Return targets as the model predicts them."""
        mean, std = self._scale(targets)
        return (targets - mean) / std

    def restore(self, outputs: Float[Tensor, "*b m"]) -> Float[Tensor, "*b m"]:
        mean, std = self._scale(outputs)
        return outputs * std + mean

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        outputs = model(batch.images).float()
        targets = batch.targets.to(outputs.device)
        if self.custom_loss is not None:
            return self.custom_loss(self.restore(outputs), targets.float()), {}
        return self._loss(outputs, self.standardise(targets).float()), {}

    def _loss(self, outputs: Float[Tensor, "b m"], standardised: Float[Tensor, "b m"]) -> Tensor:
        match self.config.loss:
            case "l1":
                return F.l1_loss(outputs, standardised)
            case "huber":
                return F.huber_loss(outputs, standardised, delta=self.config.huber_delta)
        return F.mse_loss(outputs, standardised)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, loader: Loader, workers: int, gather: Gather = no_gather) -> dict[str, Any]:
        scores = super().evaluate(model, loader, workers, gather)
        return {**scores, VALUES: self.restore(scores[self.output_name].double())}

    def metrics(self, outputs: Float[Tensor, "b m"], targets: Float[Tensor, "b m"]) -> dict[str, float]:
        outputs, targets = outputs.double(), targets.double()
        values = self.restore(outputs)
        own = self.custom_loss
        loss = self._loss(outputs, self.standardise(targets)) if own is None else own(values, targets)
        scores = target_scores(values, targets)
        means = {name: column.mean() for name, column in scores.items()}
        standardised_mae = (scores["mae"] / self._scale(values)[1]).mean()
        return {name: float(value) for name, value in {"loss": loss, **means, "standardised_mae": standardised_mae}.items()}

    def image_scores(self, outputs: Float[Tensor, "b m"], targets: Float[Tensor, "b m"]) -> Float[Tensor, " b"]:
        """Return the absolute error of each image; of several targets, its mean in standard deviations."""
        errors = (self.restore(outputs.double()) - targets).abs()
        return errors[:, 0] if errors.shape[1] == 1 else (errors / self._scale(errors)[1]).mean(1)

    def details(self, outputs: Float[Tensor, "b m"], targets: Float[Tensor, "b m"]) -> dict[str, Any]:
        scores = target_scores(self.restore(outputs.double()), targets.double())
        return {
            "targets": [
                {"name": name, **{metric: float(column[number]) for metric, column in scores.items()}}
                for number, name in enumerate(self.config.targets)
            ]
        }

    def baseline(self, train: Dataset, split: Dataset) -> dict[str, float]:
        """Return the primary metric of always predicting the mean of the training targets."""
        if not len(split):
            return {}
        targets = self.targets(split, np.arange(len(split)))
        return {"mean_prediction": self.metrics(torch.zeros_like(targets), targets)[self.primary_metric]}

    def predictions(self, outputs: Float[Tensor, "b m"], top_k: int) -> list[RegressionPrediction]:
        rows = self.restore(outputs.double()).tolist()
        return [RegressionPrediction(values=dict(zip(self.config.targets, row, strict=True))) for row in rows]

    def columns(self, top_k: int) -> list[str]:
        return list(self.config.targets)

    def export_outputs(self, outputs: Float[Tensor, "b m"]) -> dict[str, Tensor]:
        return {self.output_name: outputs, VALUES: self.restore(outputs)}


def target_scores(values: Float[Tensor, "b m"], targets: Float[Tensor, "b m"]) -> dict[str, Float[Tensor, " m"]]:
    """Return mean absolute error, root mean squared error and R² of each target, of float64 values in its units.

    R² is 1 minus the squared error as a fraction of that of predicting the mean of these targets; NaN if they are all equal.
    """
    errors, deviations = values - targets, targets - targets.mean(0)
    squared, total = errors.square().mean(0), deviations.square().mean(0)
    r2 = torch.where(total > 0, 1 - squared / total.clamp(min=torch.finfo(total.dtype).tiny), torch.nan)
    return {"mae": errors.abs().mean(0), "rmse": squared.sqrt(), "r2": r2}
