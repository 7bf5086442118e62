"""What a model on disk knows of its training: the recipe, the data's fingerprint, the score. Needs no torch."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from vitrail.config import to_plain
from vitrail.data.sources.source import Data
from vitrail.train.recipe import Recipe


def facts(recipe: Recipe, data: Data, step: int, **scores: Mapping[str, Any]) -> dict[str, Any]:
    """For ``vitrail.save``; scores by split, as fractions. Where there is no validation, the choice was made on train."""
    named = {split if len(data.splits[split]) else "train": _numbers(found) for split, found in scores.items()}
    return {
        "recipe": to_plain(recipe),
        "data": {"name": data.name, "fingerprint": data.fingerprint},
        "score": {"step": step, **named},
    }


def logged(lines: Iterable[Mapping[str, Any]], step: int) -> Mapping[str, Any]:
    """What the run's log says of the evaluation at a step."""
    return next((line["validation"] for line in lines if line["step"] == step and "validation" in line), {})


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """JSON has no other."""
    return {name: value for name, value in found.items() if isinstance(value, float) and math.isfinite(value)}
