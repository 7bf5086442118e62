"""Training metadata of a saved model: recipe, dataset fingerprint, metrics. Torch-free."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from vitrail.config import to_plain
from vitrail.data.sources.source import Data
from vitrail.train.recipe import Recipe


def facts(recipe: Recipe, data: Data, step: int, **scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata for ``vitrail.save``; metrics by split. Without validation, the weights were selected on train."""
    named = {split if len(data.splits[split]) else "train": _numbers(found) for split, found in scores.items()}
    return {
        "recipe": to_plain(recipe),
        "dataset": {"name": data.name, "fingerprint": data.fingerprint},
        "metrics": {"step": step, **named},
    }


def logged(lines: Iterable[Mapping[str, Any]], step: int) -> Mapping[str, Any]:
    """Return the logged validation metrics of a step."""
    return next((line["validation"] for line in lines if line["step"] == step and "validation" in line), {})


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """Keep the finite floats, as JSON has no others."""
    return {name: value for name, value in found.items() if isinstance(value, float) and math.isfinite(value)}
