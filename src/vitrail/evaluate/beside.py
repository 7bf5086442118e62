"""Several models under the same disturbances, side by side."""

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
    """The other's mean less the first's, on the same pictures, disturbed in the same way."""

    difference: float
    interval: tuple[float, float]


def differences(first: Stressed, other: Stressed) -> dict[str, Difference]:
    """By disturbance, and ``clean`` and ``all``."""
    if not np.array_equal(first.indices, other.indices) or first.grid != other.grid:
        raise VitrailError(f"{first.split} and {other.split} are not the same pictures, so they cannot be compared in pairs")
    return {
        name: Difference(other.scores[name].mean - score.mean, interval(other.drawn[name] - first.drawn[name]))
        for name, score in first.scores.items()
    }


def shared_grid(models: Sequence[Model]) -> Pair:
    """The patches of the first model that has some."""
    return next((cells_of(model) for model in models if isinstance(model.config, ViTConfig)), GRID)


def check_all(models: Sequence[Model], data: Data, split: str | None, grid: Pair) -> None:
    """Whatever would stop one of them is said before the first begins."""
    for model in models:
        check_grid(grid, preprocessing(model).image)
        matched(split_of(data, split)[1], model, data.name)


def unlike(models: Mapping[str, Model], grid: Pair) -> list[str]:
    """What keeps a comparison from being one of equals, a sentence each."""
    notes, images = [], list(dict.fromkeys(preprocessing(model).image for model in models.values()))
    for name, model in models.items():
        if isinstance(model.config, ViTConfig) and model.config.grid != grid:
            notes.append(f"cells are {times(grid)}; the patches of {name} are {times(model.config.grid)}")
    if len(images) > 1:
        sizes = " and ".join(map(times, images))
        notes.append(f"the models see pictures of {sizes}: cells and blocks are the same shares of each, noise is another")
    for image in images:
        if any(side % cells for side, cells in zip(image, grid, strict=True)):
            notes.append(f"{times(grid)} cells do not divide {times(image)} pixels, so cells differ by a pixel")
    return notes
