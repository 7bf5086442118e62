"""Strata, by which the images of a dataset are divided evenly: classes, sets of labels or of the classes of boxes, or quantiles
of numbers."""

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.label_sets import LabelSets
from vitrail.errors import VitrailError

MAX_BINS, MIN_BIN_SIZE = 10, 10  # of the quantiles of a number


def strata_of(dataset: Dataset) -> ndarray | LabelSets:
    """Return the label of each image, or its labels or the classes of its boxes; of numbers, the quantile that each is in."""
    if (label_sets := dataset.label_sets) is not None:
        return label_sets
    if dataset.has_box_targets and not dataset.has_exact_boxes:
        return _classes_of_boxes(dataset)
    if not _are_numbers(dataset):
        return dataset.labels
    numbers = np.asarray(dataset.targets, np.float64).reshape(len(dataset), -1)
    bins = np.stack([_quantile_bins(column) for column in numbers.T], axis=1)
    if bins.shape[1] == 1:
        return bins[:, 0]
    num_columns = bins.shape[1]
    return LabelSets(
        (bins + MAX_BINS * np.arange(num_columns)).astype(np.int32).ravel(),
        num_columns * np.arange(1, len(dataset) + 1),
        MAX_BINS * num_columns,
    )


def _classes_of_boxes(dataset: Dataset) -> LabelSets:
    members = [np.zeros(0, np.int64)]
    for index in range(len(dataset)):
        try:
            members.append(np.unique(dataset.objects(index).labels))
        except (OSError, VitrailError):  # the dataset check reports it
            members.append(np.zeros(0, np.int64))
    sizes = np.array([len(each) for each in members[1:]], np.int64)
    return LabelSets.from_members(np.concatenate(members), sizes, len(dataset.class_names))


def _are_numbers(dataset: Dataset) -> bool:
    """Return whether the targets are numbers, with or without names."""
    if dataset.target_names or dataset.class_names or not len(dataset):
        return bool(dataset.target_names)
    return isinstance(dataset.targets[0], float | np.floating)


def _quantile_bins(numbers: Float[ndarray, " n"]) -> Int[ndarray, " n"]:
    """Number the quantiles, of which there are at most ten, with ten images or more each."""
    finite = numbers[np.isfinite(numbers)]
    bins = min(MAX_BINS, max(len(finite) // MIN_BIN_SIZE, 1))
    edges = np.quantile(finite, np.arange(1, bins) / bins) if bins > 1 else np.zeros(0)
    return np.searchsorted(edges, numbers, side="right").astype(np.int64)
