"""Dataset protocol: labelled images by index, wherever they are stored. n images, h high, w wide, c channels.

Folders, tables, shards, packs and synthetic images each implement it.
"""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy import ndarray

from vitrail.data.sources.content_split import SplitFractions

Progress = Callable[[str, int, int | None], None]  # activity, amount done, total if known

MAX_BAD_FRACTION = 0.05  # fraction of the images that may be unusable
MAX_FILE_BYTES = 2**28  # bytes: a file larger than 256 MiB is not taken for an image


@runtime_checkable
class Dataset(Protocol):
    """Images by index. Reading one is a pure function of its index, and thread-safe."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Class names by label; empty if nothing is labelled."""

    @property
    def labels(self) -> ndarray:
        """int64, one per image; -1 if it has none."""

    def __len__(self) -> int: ...

    def describe(self, index: int) -> str:
        """Return a description of an image for messages, such as its path."""

    def read(self, index: int) -> bytes | ndarray:
        """Return the encoded file, or the pixels (h w c, uint8); raises VitrailError or OSError."""


@dataclass(frozen=True)
class ImageFileDataset:
    """Image files below a folder."""

    root: Path
    paths: Sequence[str]  # relative to the root
    labels: ndarray
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def describe(self, index: int) -> str:
        return str(self.root / self.paths[index])

    def read(self, index: int) -> bytes:
        return read_image_file(self.root / self.paths[index])


def read_image_file(path: Path) -> bytes:
    """Read a regular file of plausible size; never block on a pipe."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    with open(handle, "rb", buffering=0) as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise OSError(errno.EINVAL, "not a regular file of plausible size")
        return file.readall()


@dataclass(frozen=True)
class ArrayDataset:
    """Images of one size in an array, in memory or memory-mapped; read a batch at a time."""

    images: ndarray  # n h w c, uint8
    labels: ndarray
    class_names: tuple[str, ...]
    origin: str = "array"

    def __len__(self) -> int:
        return len(self.images)

    def describe(self, index: int) -> str:
        return f"image {index} of {self.origin}"

    def read(self, index: int) -> ndarray:
        return self.images[index]


@dataclass(frozen=True)
class Subset:
    """A selection of a dataset's images, in any order."""

    dataset: Dataset
    indices: ndarray

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.dataset.class_names

    @cached_property
    def labels(self) -> ndarray:
        return self.dataset.labels[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def describe(self, index: int) -> str:
        return self.dataset.describe(int(self.indices[index]))

    def read(self, index: int) -> bytes | ndarray:
        return self.dataset.read(int(self.indices[index]))


def max_bad_images(max_bad_fraction: float, num_images: int) -> float:
    """Return how many images may be unusable: the fraction, but at least one, unless none is tolerated."""
    return max(max_bad_fraction * num_images, 1) if max_bad_fraction else 0


def label_name(dataset: Dataset, index: int) -> str:
    """Return the class name of an image; empty if it is not labelled."""
    label = int(dataset.labels[index])
    return dataset.class_names[label] if 0 <= label < len(dataset.class_names) else ""


def empty_dataset(class_names: tuple[str, ...]) -> Dataset:
    """Build a dataset without images."""
    return ArrayDataset(np.zeros((0, 1, 1, 3), np.uint8), np.zeros(0, np.int64), class_names, "nothing")


def select_images(dataset: Dataset, indices: ndarray) -> Dataset:
    """Select images by index; the dataset itself if all are selected in order."""
    if len(indices) == len(dataset) and (indices == np.arange(len(dataset))).all():
        return dataset
    return Subset(dataset, indices)


@dataclass(frozen=True)
class DatasetSplits:
    """The splits of a dataset: ``train``, ``validation`` and ``test`` (each may be empty)."""

    name: str
    train: Dataset
    validation: Dataset
    test: Dataset
    fingerprint: str  # hash of names, labels and splits; after the dataset check, also of the images' content
    notes: tuple[str, ...] = ()  # remarks for the user
    split_fractions: SplitFractions | None = None  # fractions split off by content, if splits were missing

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.train.class_names

    @property
    def splits(self) -> dict[str, Dataset]:
        return {"train": self.train, "validation": self.validation, "test": self.test}
