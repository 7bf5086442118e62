"""Comparison of several models under the same corruptions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vitrail.data.sources.dataset import DatasetSplits
from vitrail.errors import VitrailError
from vitrail.evaluation.bootstrap import percentile_interval
from vitrail.evaluation.corruption_ops import GridSize
from vitrail.evaluation.corruptions import check_grid
from vitrail.evaluation.label_matching import match_classes, select_split
from vitrail.evaluation.robustness import DEFAULT_GRID, RobustnessResult, model_grid
from vitrail.inference.predict import require_classifier
from vitrail.models.build import Model
from vitrail.models.config import ViTConfig, format_size


@dataclass(frozen=True)
class RobustnessDifference:
    """Mean accuracy of the other model minus that of the first, on the same corrupted images."""

    difference: float
    interval: tuple[float, float]


def compare_robustness(first: RobustnessResult, other: RobustnessResult) -> dict[str, RobustnessDifference]:
    """Return the difference for each corruption, and for ``clean`` and ``all``."""
    if not np.array_equal(first.indices, other.indices) or first.grid != other.grid:
        raise VitrailError(f"{first.split} and {other.split} are not the same images, so they cannot be compared in pairs")
    return {
        name: RobustnessDifference(
            other.scores[name].mean - score.mean, percentile_interval(other.bootstrap[name] - first.bootstrap[name])
        )
        for name, score in first.scores.items()
    }


def common_grid(models: Sequence[Model]) -> GridSize:
    """Return the patch grid of the first model that has patches."""
    return next((model_grid(model) for model in models if isinstance(model.config, ViTConfig)), DEFAULT_GRID)


def check_models(models: Sequence[Model], data: DatasetSplits, split: str | None, grid: GridSize) -> None:
    """Raise whatever would stop one of the models, before the first is evaluated."""
    for model in models:
        check_grid(grid, require_classifier(model).image_size)
        match_classes(select_split(data, split)[1], model, data.name)


def comparability_notes(models: Mapping[str, Model], grid: GridSize) -> list[str]:
    """Return notes on what makes the comparison uneven, a sentence each."""
    notes, images = [], list(dict.fromkeys(require_classifier(model).image_size for model in models.values()))
    for name, model in models.items():
        if isinstance(model.config, ViTConfig) and model.config.grid != grid:
            notes.append(f"cells are {format_size(grid)}; the patches of {name} are {format_size(model.config.grid)}")
    if len(images) > 1:
        sizes = " and ".join(map(format_size, images))
        notes.append(f"the models take images of {sizes}: cells and blocks are the same fractions of each, noise differs")
    for image in images:
        if any(side % cells for side, cells in zip(image, grid, strict=True)):
            notes.append(f"{format_size(grid)} cells do not divide {format_size(image)} pixels, so cells differ by a pixel")
    return notes
