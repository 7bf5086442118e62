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
    contents, of = np.unique(keys, return_inverse=True)  # in the order of the hashes
    label = np.full(len(contents), np.iinfo(np.int64).max)
    np.minimum.at(label, of, labels)  # a content under two labels goes with the first, so that it is in one split
    place = np.zeros(len(contents), np.int8)
    by_label = np.argsort(label, kind="stable")
    for members in np.split(by_label, np.flatnonzero(np.diff(label[by_label])) + 1):
        validation = min(_taken(len(members), shares.validation, 2), len(members) - 1)
        test = min(_taken(len(members), shares.test, 3), len(members) - 1 - validation)
        place[members[: validation + test]] = 2
        place[members[:validation]] = 1
    return {split: np.flatnonzero(place[of] == number) for number, split in enumerate(("train", "validation", "test"))}


def _taken(contents: int, share: float, least: int) -> int:
    """The share of a class, one at least where there are enough."""
    return max(round(contents * share), 1) if share > 0 and contents >= least else 0
