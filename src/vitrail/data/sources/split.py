"""What is missing of validation and test is taken from train: by content, so that it is the same on every machine.

Within a class the pictures are ordered by the hash of their content and the first ones leave. Names, dates and the order of
files play no part, copies of a picture stay together, and a picture that is added moves few others. n pictures.
"""

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from vitrail.config import check
from vitrail.errors import VitrailError


@dataclass(frozen=True)
class Shares:
    """How much of each class leaves train, where there is no such split yet; at least one picture of three or more."""

    validation: float = 0.1
    test: float = 0.1

    def __post_init__(self) -> None:
        check(self)
        if min(self.validation, self.test) < 0 or self.validation + self.test >= 1:
            raise VitrailError(
                f"the shares of validation and test must leave something to train, got {self.validation} and {self.test}; "
                "try 0.1 and 0.1"
            )


def stratified(keys: ndarray, labels: ndarray, shares: Shares) -> dict[str, ndarray]:
    """Which pictures go where: the numbers of each split, rising."""
    _, order = np.unique(keys, return_inverse=True)  # a number a content, in the order of the hashes
    place = np.zeros(len(keys), np.int8)
    by_label = np.argsort(labels, kind="stable")
    for members in np.split(by_label, np.flatnonzero(np.diff(labels[by_label])) + 1):
        contents, of = np.unique(order[members], return_inverse=True)
        validation = _taken(len(contents), shares.validation, 2)
        test = _taken(len(contents), shares.test, 3)
        place[members[of < validation + test]] = 2
        place[members[of < validation]] = 1
    return {split: np.flatnonzero(place == number) for number, split in enumerate(("train", "validation", "test"))}


def _taken(contents: int, share: float, least: int) -> int:
    """The share of a class, one at least where there are enough; a class without label (-1) is like any other."""
    return max(round(contents * share), 1) if share > 0 and contents >= least else 0
