"""Summary of a dataset's targets: labels that occur together, are missing or have similar names, and the range of numbers.

n images, k classes, m numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from vitrail.data.sources.dataset import Dataset, class_counts
from vitrail.data.sources.label_sets import LabelSets, concat_label_sets
from vitrail.data.sources.labels import similar_names

MAX_PAIRED = 300  # classes of which pairs are counted, the most frequent ones
MAX_LISTED = 100  # pairs and outliers listed
CHUNK = 4096  # images counted at a time
FAR_OUT = 3.0  # interquartile ranges from the nearer quartile, beyond which Tukey calls a value far out


@dataclass(frozen=True)
class LabelPair:
    """Two labels that occur together. ``jaccard``: the images with both, divided by those with either."""

    labels: tuple[str, str]
    images: int
    jaccard: float


@dataclass(frozen=True)
class SeveralLabels:
    """Labels of images that may have several: how many an image has, and which occur together most."""

    mean: float  # labels per image
    most: int  # of one image
    unlabelled: dict[str, int]  # split: images without any label
    pairs: tuple[LabelPair, ...]


@dataclass(frozen=True)
class NumberRange:
    """The finite numbers of one target in a split; ``missing`` are those that are not."""

    minimum: float
    mean: float
    maximum: float
    std: float
    missing: int

    @property
    def statistics(self) -> tuple[float, float, float, float]:
        return self.minimum, self.mean, self.maximum, self.std


@dataclass(frozen=True)
class Outlier:
    """A number far outside of the others."""

    target: str
    value: float
    location: str
    split: str


@dataclass(frozen=True)
class TargetSummary:
    """Summary of the targets of a dataset's usable images."""

    absent: dict[str, tuple[str, ...]]  # split that has images: labels that never occur in it
    similar: tuple[tuple[str, ...], ...]  # labels whose names differ only in case, punctuation or a plural
    several: SeveralLabels | None
    numbers: dict[str, dict[str, NumberRange]]  # target: split: range
    outliers: tuple[Outlier, ...]
    num_outliers: int


def summarise_targets(splits: Mapping[str, Dataset]) -> TargetSummary:
    """Summarise the targets of the splits."""
    used = {split: dataset for split, dataset in splits.items() if len(dataset)}
    names = next(iter(splits.values())).class_names
    absent = {
        split: tuple(names[label] for label in np.flatnonzero(class_counts(dataset) == 0).tolist())
        for split, dataset in used.items()
        if (dataset.labels >= 0).any() or dataset.label_sets is not None
    }
    outliers, num_outliers = _find_outliers(used)
    return TargetSummary(
        {split: missing for split, missing in absent.items() if missing},
        tuple(similar_names(names)),
        _summarise_label_sets(used, names),
        _summarise_numbers(used),
        outliers,
        num_outliers,
    )


# Several labels ------------------------------------------------------------------------------------------------------


def _summarise_label_sets(splits: Mapping[str, Dataset], names: Sequence[str]) -> SeveralLabels | None:
    by_split = {split: label_sets for split, dataset in splits.items() if (label_sets := dataset.label_sets) is not None}
    if not by_split:
        return None
    label_sets = concat_label_sets(list(by_split.values()))
    sizes = label_sets.sizes()
    return SeveralLabels(
        float(sizes.mean()),
        int(sizes.max()),
        {split: int((part.sizes() == 0).sum()) for split, part in by_split.items()},
        tuple(_count_pairs(label_sets, names)),
    )


def _count_pairs(label_sets: LabelSets, names: Sequence[str]) -> list[LabelPair]:
    """Return the pairs that occur together most, of the most frequent labels."""
    counts = label_sets.counts()
    labels = np.argsort(-counts, kind="stable")[:MAX_PAIRED]
    together = _co_occurrence(label_sets, labels)
    first, second = np.triu_indices(len(labels), 1)
    both = together[first, second]
    order = np.argsort(-both, kind="stable")[:MAX_LISTED]
    pairs = []
    for one, other, images in zip(
        labels[first[order]].tolist(), labels[second[order]].tolist(), both[order].tolist(), strict=True
    ):
        if images:
            pairs.append(LabelPair((names[one], names[other]), images, images / int(counts[one] + counts[other] - images)))
    return pairs


def _co_occurrence(label_sets: LabelSets, labels: Int[ndarray, " p"]) -> Int[ndarray, "p p"]:
    """Count the images that have both of two labels."""
    together = np.zeros((len(labels), len(labels)), np.int64)
    for start in range(0, len(label_sets), CHUNK):
        rows = label_sets.rows(np.arange(start, min(start + CHUNK, len(label_sets))))[:, labels].astype(np.float32)
        together += (rows.T @ rows).astype(np.int64)  # exact: at most CHUNK in a cell
    return together


# Numbers -------------------------------------------------------------------------------------------------------------


def _summarise_numbers(splits: Mapping[str, Dataset]) -> dict[str, dict[str, NumberRange]]:
    tables = {split: _numbers(dataset) for split, dataset in splits.items()}
    names = next((dataset.target_names for dataset in splits.values()), ())
    return {name: {split: _range(table[:, column]) for split, table in tables.items()} for column, name in enumerate(names)}


def _numbers(dataset: Dataset) -> Float[ndarray, "n m"]:
    return (
        np.asarray(dataset.targets, np.float64).reshape(len(dataset), len(dataset.target_names))
        if dataset.target_names
        else np.zeros((len(dataset), 0))
    )


def _range(values: Float[ndarray, " n"]) -> NumberRange:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return NumberRange(np.nan, np.nan, np.nan, np.nan, len(values))
    minimum, mean, maximum, std = map(float, (finite.min(), finite.mean(), finite.max(), finite.std()))
    return NumberRange(minimum, mean, maximum, std, len(values) - len(finite))


def _find_outliers(splits: Mapping[str, Dataset]) -> tuple[tuple[Outlier, ...], int]:
    """Return the numbers that are far out, the farthest first, and how many there are."""
    found: list[tuple[float, str, float, str, int]] = []
    names = next((dataset.target_names for dataset in splits.values()), ())
    for column, name in enumerate(names):
        values = {split: _numbers(dataset)[:, column] for split, dataset in splits.items()}
        distances = _distances(np.concatenate(list(values.values())))
        starts = np.cumsum([0, *map(len, values.values())])
        for (split, of_split), start in zip(values.items(), starts, strict=False):
            of_numbers = distances[start : start + len(of_split)]
            for index in np.flatnonzero(of_numbers > FAR_OUT).tolist():
                found.append((-float(of_numbers[index]), name, float(of_split[index]), split, index))
    found.sort()
    outliers = [
        Outlier(name, value, splits[split].describe(index), split) for _, name, value, split, index in found[:MAX_LISTED]
    ]
    return tuple(outliers), len(found)


def _distances(values: Float[ndarray, " n"]) -> Float[ndarray, " n"]:
    """Return the distance of each value from the nearer quartile in interquartile ranges, 0 between them."""
    is_finite: Bool[ndarray, " n"] = np.isfinite(values)
    if not is_finite.any():
        return np.zeros(len(values))
    lower, upper = np.quantile(values[is_finite], (0.25, 0.75))
    if lower == upper:
        return np.zeros(len(values))
    return np.where(is_finite, np.maximum(np.maximum(lower - values, values - upper), 0), 0) / (upper - lower)
