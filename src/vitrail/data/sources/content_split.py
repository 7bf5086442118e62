"""Divide a dataset by content hash, so that its splits and folds are the same on every machine: names, dates and the order of
files do not matter, and duplicates stay together. n images.

Missing validation and test sets are split off from train. Within a class the images are ordered by the hash of their content
and the first ones are split off, so that an added image moves few others. For a cross-validation, the images of each class are
dealt to the folds. Images with several labels each are divided by iterative stratification.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from vitrail.config import validate
from vitrail.data.sources.iterative_stratification import stratify
from vitrail.data.sources.label_sets import LabelSets
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


def split_by_content_hash(keys: ndarray, strata: ndarray | LabelSets, fractions: SplitFractions) -> dict[str, ndarray]:
    """Assign each image to a split; return the sorted indices of each. ``strata``: one label per image, or several."""
    inverse = np.unique(keys, return_inverse=True)[1]  # contents are sorted by hash
    split_of = (
        _split_label_sets(strata, inverse, fractions)
        if isinstance(strata, LabelSets)
        else _split_labels(strata, inverse, fractions)
    )
    return {split: np.flatnonzero(split_of[inverse] == number) for number, split in enumerate(("train", "validation", "test"))}


def fold_of(keys: ndarray, strata: ndarray | LabelSets, folds: int) -> Int[ndarray, " n"]:
    """Return the fold of each image, from 1. Of each class, every fold has as many images, or one more where they do not divide
    evenly; only duplicates, which share a fold, can make a larger difference."""
    inverse = np.unique(keys, return_inverse=True)[1]
    if isinstance(strata, LabelSets):
        label_sets = _label_sets_of_contents(strata, inverse)
    else:
        label_sets = LabelSets.from_labels(_label_of_contents(strata, inverse), int(strata.max(initial=-1)) + 1)
    sizes = np.bincount(inverse)
    counts = label_sets.counts(sizes)  # a part wants so much, where each image counts as often as there are folds
    wanted = np.repeat(counts[:, None], folds, axis=1)
    return stratify(label_sets, folds * sizes, wanted, np.full(folds, len(keys)))[inverse] + 1


def _split_labels(labels: ndarray, inverse: ndarray, fractions: SplitFractions) -> ndarray:
    """Return the split of each content: the first ones of each class are split off."""
    label = _label_of_contents(labels, inverse)
    split_of = np.zeros(len(label), np.int8)
    by_label = np.argsort(label, kind="stable")
    for members in np.split(by_label, np.flatnonzero(np.diff(label[by_label])) + 1):
        validation = min(_num_split_off(len(members), fractions.validation, 2), len(members) - 1)
        test = min(_num_split_off(len(members), fractions.test, 3), len(members) - 1 - validation)
        split_of[members[: validation + test]] = 2
        split_of[members[:validation]] = 1
    return split_of


def _split_label_sets(label_sets: LabelSets, inverse: ndarray, fractions: SplitFractions) -> ndarray:
    """Return the split of each content, by iterative stratification: of each class as many images as of a single label."""
    contents, sizes = _label_sets_of_contents(label_sets, inverse), np.bincount(inverse)
    counts = np.append(contents.counts(sizes), len(inverse))  # the last stands for all images
    wanted = np.zeros((len(counts), 3), np.int64)
    for row, count in zip(wanted, counts.tolist(), strict=True):
        row[1] = min(_num_split_off(count, fractions.validation, 2), max(count - 1, 0))
        row[2] = min(_num_split_off(count, fractions.test, 3), max(count - 1 - row[1], 0))
        row[0] = count - row[1] - row[2]
    return stratify(contents, sizes, wanted[:-1], wanted[-1])


def _label_of_contents(labels: ndarray, inverse: ndarray) -> ndarray:
    """Return the label of each content; one under two labels counts for the first, so that it is in one part."""
    label = np.full(int(inverse.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(label, inverse, labels)
    return label


def _label_sets_of_contents(label_sets: LabelSets, inverse: ndarray) -> LabelSets:
    """Return the labels of each content: of duplicates, those that any has."""
    classes = max(label_sets.num_classes, 1)
    pairs = np.unique(np.repeat(inverse, label_sets.sizes()) * classes + label_sets.members)
    sizes = np.bincount(pairs // classes, minlength=int(inverse.max(initial=-1)) + 1)
    return LabelSets((pairs % classes).astype(np.int32), np.cumsum(sizes), label_sets.num_classes)


def _num_split_off(num_contents: int, fraction: float, min_contents: int) -> int:
    """Return how many images of a class to split off, at least one if there are enough."""
    return max(round(num_contents * fraction), 1) if fraction > 0 and num_contents >= min_contents else 0
