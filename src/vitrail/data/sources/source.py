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

from vitrail.data.sources.split import Shares

Progress = Callable[[str, int, int | None], None]  # activity, amount done, total if known

TOLERATED = 0.05  # fraction of the images that may be unusable
LARGEST_FILE = 2**28  # bytes: a file larger than 256 MiB is not taken for an image


@runtime_checkable
class Source(Protocol):
    """Images by index. Reading one is a pure function of its index, and thread-safe."""

    @property
    def names(self) -> tuple[str, ...]:
        """Class names by label; empty if nothing is labelled."""

    @property
    def labels(self) -> ndarray:
        """int64, one per image; -1 if it has none."""

    def __len__(self) -> int: ...

    def where(self, index: int) -> str:
        """Return a description of an image for messages, such as its path."""

    def content(self, index: int) -> bytes | ndarray:
        """Return the encoded file, or the pixels (h w c, uint8); raises VitrailError or OSError."""


@dataclass(frozen=True)
class Files:
    """Image files below a folder."""

    root: Path
    paths: Sequence[str]  # relative to the root
    labels: ndarray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def where(self, index: int) -> str:
        return str(self.root / self.paths[index])

    def content(self, index: int) -> bytes:
        return read_file(self.root / self.paths[index])


def read_file(path: Path) -> bytes:
    """Read a regular file of plausible size; never block on a pipe."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    with open(handle, "rb", buffering=0) as file:
        known = os.fstat(handle)
        if not stat.S_ISREG(known.st_mode) or known.st_size > LARGEST_FILE:
            raise OSError(errno.EINVAL, "not a regular file of plausible size")
        return file.readall()


@dataclass(frozen=True)
class Arrays:
    """Images of one size in an array, in memory or memory-mapped; read a batch at a time."""

    images: ndarray  # n h w c, uint8
    labels: ndarray
    names: tuple[str, ...]
    origin: str = "array"

    def __len__(self) -> int:
        return len(self.images)

    def where(self, index: int) -> str:
        return f"image {index} of {self.origin}"

    def content(self, index: int) -> ndarray:
        return self.images[index]


@dataclass(frozen=True)
class Part:
    """A selection of a dataset's images, in any order."""

    whole: Source
    indices: ndarray

    @property
    def names(self) -> tuple[str, ...]:
        return self.whole.names

    @cached_property
    def labels(self) -> ndarray:
        return self.whole.labels[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def where(self, index: int) -> str:
        return self.whole.where(int(self.indices[index]))

    def content(self, index: int) -> bytes | ndarray:
        return self.whole.content(int(self.indices[index]))


def allowed(tolerated: float, pictures: int) -> float:
    """Return how many images may be unusable: the fraction, but at least one, unless none is tolerated."""
    return max(tolerated * pictures, 1) if tolerated else 0


def label_name(source: Source, index: int) -> str:
    """Return the class name of an image; empty if it is not labelled."""
    label = int(source.labels[index])
    return source.names[label] if 0 <= label < len(source.names) else ""


def nothing(names: tuple[str, ...]) -> Source:
    """Build a dataset without images."""
    return Arrays(np.zeros((0, 1, 1, 3), np.uint8), np.zeros(0, np.int64), names, "nothing")


def chosen(source: Source, indices: ndarray) -> Source:
    """Select images by index; the dataset itself if all are selected in order."""
    if len(indices) == len(source) and (indices == np.arange(len(source))).all():
        return source
    return Part(source, indices)


@dataclass(frozen=True)
class Data:
    """The splits of a dataset: ``train``, ``validation`` and ``test`` (each may be empty)."""

    name: str
    train: Source
    validation: Source
    test: Source
    fingerprint: str  # hash of names, labels and splits; after the dataset check, also of the images' content
    notes: tuple[str, ...] = ()  # remarks for the user
    taken: Shares | None = None  # fractions split off by content, if splits were missing

    @property
    def names(self) -> tuple[str, ...]:
        return self.train.names

    @property
    def splits(self) -> dict[str, Source]:
        return {"train": self.train, "validation": self.validation, "test": self.test}
