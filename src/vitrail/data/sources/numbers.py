"""Numbers as targets: their names where a source has none, and the check that every image has them. n images, m numbers."""

import numpy as np

from vitrail.data.sources.dataset import Dataset
from vitrail.errors import VitrailError


def unnamed_targets(count: int) -> tuple[str, ...]:
    """Return the names of numbers that have none: ``target``, or ``target_0``, ``target_1`` ..."""
    return ("target",) if count == 1 else tuple(f"target_{number}" for number in range(count))


def check_numbers(dataset: Dataset) -> None:
    """Raise if a number is missing or not finite, and name the first image without."""
    if not len(dataset) or not dataset.target_names:
        return
    missing = np.argwhere(~np.isfinite(np.asarray(dataset.targets, np.float64)))
    if len(missing):
        index, column = missing[0].tolist()
        value = np.asarray(dataset.targets)[index, column]
        got = "nothing" if np.isnan(value) else f"{value:g}"
        raise VitrailError(
            f"{dataset.describe(index)}: the target {dataset.target_names[column]} must be a finite number, got {got}; correct "
            "it or leave the image out"
        )
