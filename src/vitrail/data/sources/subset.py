"""Subsets of a dataset: fewer training or held-out images, some of the classes. ``fashion:train_size=500,classes=0-4``.

Validation and test are the same for every training size, and a smaller training set is part of a larger one, so that results
can be compared. n images.
"""

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray

from vitrail.augment.counter_rng import random_bits
from vitrail.config import validate
from vitrail.data.sources.dataset import ArrayDataset, Dataset, DatasetSplits, fingerprint, select_images
from vitrail.errors import VitrailError

SUBSET_STREAM = 0x616D6F75  # in place of an epoch, so that these draws differ from those of augmentation


@dataclass(frozen=True)
class SubsetSpec:
    """``train_size`` training images and ``heldout_size`` each for validation and test, balanced over the classes; None: all.
    ``seed`` draws the training images. ``classes``: the first and the last class, such as ``0-4``."""

    train_size: int | None = None
    heldout_size: int | None = None
    seed: int = 0
    classes: str | None = None

    def __post_init__(self) -> None:
        validate(self)
        for name in ("train_size", "heldout_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise VitrailError(f"{name} must be at least 1, got {value}; try {name}=500")
        if self.classes is not None and not re.fullmatch(r"\d{1,6}-\d{1,6}", self.classes):
            raise VitrailError(f"classes must be the first and the last class, got {self.classes!r}; try classes=0-4")


def take_subset(data: DatasetSplits, spec: SubsetSpec) -> DatasetSplits:
    """Return the subset of a dataset that the spec describes."""
    splits = dict(data.splits) if spec.classes is None else _take_classes(data, spec.classes)
    sizes = {"train": (spec.train_size, spec.seed), "validation": (spec.heldout_size, 0), "test": (spec.heldout_size, 0)}
    train, validation, test = (_take_balanced(f"{data.name} ({name})", splits[name], *sizes[name]) for name in sizes)
    new_fingerprint = fingerprint(train, validation, test)
    return replace(data, train=train, validation=validation, test=test, fingerprint=new_fingerprint)


def _take_balanced(name: str, dataset: Dataset, count: int | None, seed: int) -> Dataset:
    """Take ``count`` images in a drawn order: the first of each class, then the second of each ..."""
    if count is None:
        return dataset
    if count > len(dataset):
        raise VitrailError(f"{name} has {len(dataset):,} images, fewer than the {count:,} requested; request fewer")
    random_keys = random_bits(seed, SUBSET_STREAM, np.arange(len(dataset)), 0)[:, 0]
    order = np.lexsort((random_keys, dataset.labels))
    rank = np.empty(len(dataset), np.int64)
    starts = np.flatnonzero(np.diff(dataset.labels[order], prepend=dataset.labels[order][:1] - 1))
    rank[order] = np.arange(len(dataset)) - np.repeat(starts, np.diff(starts, append=len(dataset)))
    indices = np.sort(np.lexsort((dataset.labels, rank))[:count])
    subset = select_images(dataset, indices)
    if subset is dataset or dataset.array_shape is None:
        return subset
    return _copy_to_array(dataset, indices, 0, dataset.class_names)


def _take_classes(data: DatasetSplits, class_range: str) -> dict[str, Dataset]:
    first, last = map(int, class_range.split("-"))
    if not first < last < len(data.class_names):
        raise VitrailError(
            f"classes must be two or more of the {len(data.class_names)} of {data.name}, got {class_range}; "
            f"try classes=0-{max(len(data.class_names) // 2 - 1, 1)}"
        )
    if any(dataset.array_shape is None for dataset in data.splits.values()):
        raise VitrailError("classes can be selected only from datasets that are in memory; try fashion:classes=0-4")
    class_names = data.class_names[first : last + 1]
    return {
        split: _copy_to_array(dataset, np.flatnonzero((dataset.labels >= first) & (dataset.labels <= last)), first, class_names)
        for split, dataset in data.splits.items()
    }


def _copy_to_array(dataset: Dataset, indices: ndarray, first_label: int, class_names: tuple[str, ...]) -> Dataset:
    """Copy the images to an array of their own, so that the full array is not read along, with labels from 0."""
    origin = dataset.describe(0).partition(" of ")[2] if len(dataset) else "nothing"
    pixels = [np.asarray(dataset.read(int(index))) for index in indices]
    images = np.stack(pixels) if pixels else np.zeros((0, 1, 1, 1), np.uint8)
    return ArrayDataset(images, dataset.labels[indices] - first_label, class_names, origin)
