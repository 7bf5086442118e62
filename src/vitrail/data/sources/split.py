"""Split missing validation and test sets off from train by content hash, so that they are the same on every machine.

Within a class the images are ordered by the hash of their content and the first ones are split off. Names, dates and the order
of files do not matter, duplicates stay together, and an added image moves few others. n images.
"""

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from vitrail.config import check
from vitrail.errors import VitrailError


@dataclass(frozen=True)
class Shares:
    """Fraction of each class to split off for validation and test, if missing; at least one image of three or more."""

    validation: float = 0.1
    test: float = 0.1

    def __post_init__(self) -> None:
        check(self)
        if min(self.validation, self.test) < 0 or self.validation + self.test >= 1:
            raise VitrailError(
                f"the validation and test fractions must leave some training data, got {self.validation} and {self.test}; "
                "try 0.1 and 0.1"
            )


def stratified(keys: ndarray, labels: ndarray, shares: Shares) -> dict[str, ndarray]:
    """Assign each image to a split; return the sorted indices of each."""
    contents, of = np.unique(keys, return_inverse=True)  # sorted by hash
    label = np.full(len(contents), np.iinfo(np.int64).max)
    np.minimum.at(label, of, labels)  # a content under two labels counts for the first, so that it is in one split
    place = np.zeros(len(contents), np.int8)
    by_label = np.argsort(label, kind="stable")
    for members in np.split(by_label, np.flatnonzero(np.diff(label[by_label])) + 1):
        validation = min(_taken(len(members), shares.validation, 2), len(members) - 1)
        test = min(_taken(len(members), shares.test, 3), len(members) - 1 - validation)
        place[members[: validation + test]] = 2
        place[members[:validation]] = 1
    return {split: np.flatnonzero(place[of] == number) for number, split in enumerate(("train", "validation", "test"))}


def _taken(contents: int, share: float, least: int) -> int:
    """Return how many images of a class to split off, at least one if there are enough."""
    return max(round(contents * share), 1) if share > 0 and contents >= least else 0
