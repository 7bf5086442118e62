"""The settings of a fold of a cross-validation. Torch-free."""

from dataclasses import dataclass

from vitrail.config import validate
from vitrail.errors import VitrailError


@dataclass(frozen=True)
class Fold:
    """A part of a dataset that is divided into equal parts for cross-validation."""

    number: int = 1  # the first is 1
    of: int = 5  # how many folds there are

    def __post_init__(self) -> None:
        validate(self)
        if self.of < 2:
            raise VitrailError(f"folds must be at least 2, got {self.of}; try folds=5")
        if not 1 <= self.number <= self.of:
            raise VitrailError(f"fold.number must be from 1 to {self.of}, the number of folds, got {self.number}; try 1")
