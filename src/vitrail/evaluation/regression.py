"""Evaluation of a model that predicts numbers: MAE, RMSE and R² of each target and their means, with bootstrap intervals.

b images, m targets, r resamples.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from vitrail.data.sources.dataset import Dataset, DatasetSplits
from vitrail.evaluation.resampled import ResampledEvaluation
from vitrail.evaluation.split_runner import SplitRunner, check_outputs
from vitrail.tasks.regression import RegressionTask
from vitrail.tasks.resampling import bootstrap_means, finite_interval


def evaluate_regression(
    task: RegressionTask, runner: SplitRunner, data: DatasetSplits, split: str, source: Dataset
) -> ResampledEvaluation:
    """Evaluate a model on a split; its outputs are in the units of the targets, which are matched by name."""
    task.require_targets(source, data.name)
    outputs, indices, unreadable = runner.run(source, split)
    check_outputs(task, outputs, indices, source, data.name)
    targets = task.targets(source, indices.numpy())
    values = task.restore(outputs.double())
    metrics = task.metrics(outputs, targets)
    resampled = bootstrap_targets(values, targets)
    samples = {name: scores.mean(1) for name, scores in resampled.items()}
    samples["standardised_mae"] = (resampled["mae"] / np.array(task.std)).mean(1)
    return ResampledEvaluation(
        dataset=data.name,
        split=split,
        num_images=len(indices),
        unreadable_images=unreadable,
        metrics=metrics,
        notes=(),
        intervals={name: finite_interval(scores) for name, scores in samples.items()},
        bootstrap=samples,
        outputs=values,
        targets=targets,
        indices=indices,
        details={
            split: metrics,  # as a run's result has it
            "targets": with_intervals(task.details(outputs, targets)["targets"], resampled),
        },
    )


def with_intervals(rows: Sequence[Mapping[str, Any]], resampled: Mapping[str, Float[ndarray, "r m"]]) -> list[dict[str, Any]]:
    """Return the rows of the targets with the 95 % intervals of their scores."""
    return [
        {**row, "interval": {name: finite_interval(scores[:, number]) for name, scores in resampled.items()}}
        for number, row in enumerate(rows)
    ]


def bootstrap_targets(values: Float[Tensor, "b m"], targets: Float[Tensor, "b m"]) -> dict[str, Float[ndarray, "r m"]]:
    """Return the scores of each target over resamples of the images. All follow from means over images."""
    errors = values - targets
    deviations = targets - targets.mean(0)  # so that no digits are lost to a large mean
    columns = torch.cat([errors.abs(), errors.square(), deviations, deviations.square()], dim=1).numpy()
    absolute, squared, first, second = np.split(bootstrap_means(columns), 4, axis=1)
    total = second - first**2
    is_spread = total > 1e-12 * second  # a resample of one image repeated has no R²
    r2 = np.where(is_spread, 1 - squared / np.where(is_spread, total, 1), np.nan)
    return {"mae": absolute, "rmse": np.sqrt(squared), "r2": r2}
