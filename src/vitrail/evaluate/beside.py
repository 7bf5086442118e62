"""Comparison of several models under the same corruptions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vitrail.data.sources.source import Data
from vitrail.errors import VitrailError
from vitrail.evaluate.bootstrap import interval
from vitrail.evaluate.corrupt import Pair
from vitrail.evaluate.disturb import check_grid
from vitrail.evaluate.match import matched, split_of
from vitrail.evaluate.predict import preprocessing
from vitrail.evaluate.robust import GRID, Stressed, cells_of
from vitrail.models.build import Model
from vitrail.models.settings import ViTConfig, times


@dataclass(frozen=True)
class Difference:
    """Mean accuracy of the other model minus that of the first, on the same corrupted images."""

    difference: float
    interval: tuple[float, float]


def differences(first: Stressed, other: Stressed) -> dict[str, Difference]:
    """Return the difference for each corruption, and for ``clean`` and ``all``."""
    if not np.array_equal(first.indices, other.indices) or first.grid != other.grid:
        raise VitrailError(f"{first.split} and {other.split} are not the same images, so they cannot be compared in pairs")
    return {
        name: Difference(other.scores[name].mean - score.mean, interval(other.drawn[name] - first.drawn[name]))
        for name, score in first.scores.items()
    }


def shared_grid(models: Sequence[Model]) -> Pair:
    """Return the patch grid of the first model that has patches."""
    return next((cells_of(model) for model in models if isinstance(model.config, ViTConfig)), GRID)


def check_all(models: Sequence[Model], data: Data, split: str | None, grid: Pair) -> None:
    """Raise whatever would stop one of the models, before the first is evaluated."""
    for model in models:
        check_grid(grid, preprocessing(model).image)
        matched(split_of(data, split)[1], model, data.name)


def unlike(models: Mapping[str, Model], grid: Pair) -> list[str]:
    """Return notes on what makes the comparison uneven, a sentence each."""
    notes, images = [], list(dict.fromkeys(preprocessing(model).image for model in models.values()))
    for name, model in models.items():
        if isinstance(model.config, ViTConfig) and model.config.grid != grid:
            notes.append(f"cells are {times(grid)}; the patches of {name} are {times(model.config.grid)}")
    if len(images) > 1:
        sizes = " and ".join(map(times, images))
        notes.append(f"the models take images of {sizes}: cells and blocks are the same fractions of each, noise differs")
    for image in images:
        if any(side % cells for side, cells in zip(image, grid, strict=True)):
            notes.append(f"{times(grid)} cells do not divide {times(image)} pixels, so cells differ by a pixel")
    return notes
