"""Training metadata of a saved model: recipe, dataset fingerprint, metrics. Torch-free."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from vitrail.config import to_dict
from vitrail.data.sources.dataset import DatasetSplits
from vitrail.training.recipe import Recipe


def run_metadata(recipe: Recipe, data: DatasetSplits, step: int, **scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata for ``vitrail.save``; metrics by split. Without validation, the weights were selected on train."""
    by_split = {split if len(data.splits[split]) else "train": _finite_floats(metrics) for split, metrics in scores.items()}
    return {
        "recipe": to_dict(recipe),
        "dataset": {"name": data.name, "fingerprint": data.fingerprint},
        "metrics": {"step": step, **by_split},
    }


def logged_validation(rows: Iterable[Mapping[str, Any]], step: int) -> Mapping[str, Any]:
    """Return the logged validation metrics of a step."""
    return next((row["validation"] for row in rows if row["step"] == step and "validation" in row), {})


def _finite_floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Keep the finite floats, as JSON has no others."""
    return {name: value for name, value in metrics.items() if isinstance(value, float) and math.isfinite(value)}
