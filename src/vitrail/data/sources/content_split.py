"""Split missing validation and test sets off from train by content hash, so that they are the same on every machine.

Within a class the images are ordered by the hash of their content and the first ones are split off. Names, dates and the order
of files do not matter, duplicates stay together, and an added image moves few others. n images.
"""

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from vitrail.config import validate
from vitrail.errors import VitrailError


@dataclass(frozen=True)
class SplitFractions:
    """Fraction of each class to split off for validation and test, if missing; at least one image of three or more."""

    validation: float = 0.1
    test: float = 0.1

    def __post_init__(self) -> None:
        validate(self)
        if min(self.validation, self.test) < 0 or self.validation + self.test >= 1:
            raise VitrailError(
                f"the validation and test fractions must leave some training data, got {self.validation} and {self.test}; "
                "try 0.1 and 0.1"
            )


def split_by_content_hash(keys: ndarray, labels: ndarray, fractions: SplitFractions) -> dict[str, ndarray]:
    """Assign each image to a split; return the sorted indices of each."""
    contents, inverse = np.unique(keys, return_inverse=True)  # sorted by hash
    label = np.full(len(contents), np.iinfo(np.int64).max)
    np.minimum.at(label, inverse, labels)  # a content under two labels counts for the first, so that it is in one split
    split_of = np.zeros(len(contents), np.int8)
    by_label = np.argsort(label, kind="stable")
    for members in np.split(by_label, np.flatnonzero(np.diff(label[by_label])) + 1):
        validation = min(_num_split_off(len(members), fractions.validation, 2), len(members) - 1)
        test = min(_num_split_off(len(members), fractions.test, 3), len(members) - 1 - validation)
        split_of[members[: validation + test]] = 2
        split_of[members[:validation]] = 1
    return {split: np.flatnonzero(split_of[inverse] == number) for number, split in enumerate(("train", "validation", "test"))}


def _num_split_off(num_contents: int, fraction: float, min_contents: int) -> int:
    """Return how many images of a class to split off, at least one if there are enough."""
    return max(round(num_contents * fraction), 1) if fraction > 0 and num_contents >= min_contents else 0
