"""Masks whose classes are numbered in another way, such as by the classes of a model. h high, w wide, k classes."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int16
from numpy import ndarray

from vitrail.data.sources.dataset import IGNORED, Dataset, MaskTargets


@dataclass(frozen=True, eq=False)
class RenumberedMasks(MaskTargets):
    """A dataset whose masks have the numbers of other class names."""

    numbers: ndarray = None  # type: ignore[assignment]  # by the dataset's own number; the last is that of ignored pixels

    @property
    def mask_names(self) -> tuple[str, ...]:
        return self.class_names

    def mask(self, index: int) -> Int16[ndarray, "h w"]:
        return np.asarray(self.numbers[super().mask(index)])


def with_mask_classes(dataset: Dataset, class_names: tuple[str, ...]) -> Dataset:
    """Return the dataset with its masks numbered by these class names, which must include its own."""
    if dataset.mask_names == class_names:
        return dataset
    numbers = np.array([*map(class_names.index, dataset.mask_names), IGNORED], np.int16)
    nothing = np.full(len(dataset), -1, np.int64)
    return RenumberedMasks(dataset, np.arange(len(dataset)), nothing, class_names, numbers=numbers)
