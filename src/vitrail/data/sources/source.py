"""What a split is to everything that reads it: pictures by number, with what they show. n pictures, h high, w wide, c channels.

Where they come from (a folder, a table, shards, a pack, a formula) is each source's own affair.
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

Progress = Callable[[str, int, int | None], None]  # what is done, how much of it, of how much in all where that is known

TOLERATED = 0.05  # share of the pictures that may turn out to be unusable
LARGEST_FILE = 2**28  # bytes: a picture file larger than 256 MiB is none


@runtime_checkable
class Source(Protocol):
    """Pictures by number. Reading one is a pure function of its number, and safe from several threads."""

    @property
    def names(self) -> tuple[str, ...]:
        """The classes, by label; empty where nothing is labelled."""

    @property
    def labels(self) -> ndarray:
        """int64, one a picture; -1 where it has none."""

    def __len__(self) -> int: ...

    def where(self, index: int) -> str:
        """What to call the picture in a message."""

    def content(self, index: int) -> bytes | ndarray:
        """The file as it is, still encoded, or its pixels (h w c, uint8); a VitrailError or OSError where that fails."""


@dataclass(frozen=True)
class Files:
    """Picture files below a folder."""

    root: Path
    paths: Sequence[str]  # below the root
    labels: ndarray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def where(self, index: int) -> str:
        return str(self.root / self.paths[index])

    def content(self, index: int) -> bytes:
        return read_file(self.root / self.paths[index])


def read_file(path: Path) -> bytes:
    """A plain file of a picture's size; a pipe is not waited for."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    with open(handle, "rb", buffering=0) as file:
        known = os.fstat(handle)
        if not stat.S_ISREG(known.st_mode) or known.st_size > LARGEST_FILE:
            raise OSError(errno.EINVAL, "it is no plain file of a picture's size")
        return file.readall()


@dataclass(frozen=True)
class Arrays:
    """Pictures of one size in memory, or in a file mapped into it; whole batches are taken out of it at once."""

    images: ndarray  # n h w c, uint8
    labels: ndarray
    names: tuple[str, ...]
    origin: str = "array"

    def __len__(self) -> int:
        return len(self.images)

    def where(self, index: int) -> str:
        return f"picture {index} of {self.origin}"

    def content(self, index: int) -> ndarray:
        return self.images[index]


@dataclass(frozen=True)
class Part:
    """Some pictures of a source, in an order of their own."""

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
    """How many may be unusable: their share, and of a small set one, unless none is tolerated."""
    return max(tolerated * pictures, 1) if tolerated else 0


def label_name(source: Source, index: int) -> str:
    """What the picture shows, in words; nothing where it is not labelled."""
    label = int(source.labels[index])
    return source.names[label] if 0 <= label < len(source.names) else ""


def nothing(names: tuple[str, ...]) -> Source:
    """A split without pictures."""
    return Arrays(np.zeros((0, 1, 1, 3), np.uint8), np.zeros(0, np.int64), names, "nothing")


def chosen(source: Source, indices: ndarray) -> Source:
    """Some of the pictures; what lies in memory as one array and is wanted whole stays that."""
    if len(indices) == len(source) and (indices == np.arange(len(source))).all():
        return source
    return Part(source, indices)


@dataclass(frozen=True)
class Data:
    """A data set: learn on ``train``, choose on ``validation``, report on ``test`` (which may be empty)."""

    name: str
    train: Source
    validation: Source
    test: Source
    fingerprint: str  # of names, labels and splits; after the data check, of the pictures' content too
    notes: tuple[str, ...] = ()  # what its owner should know
    taken: Shares | None = None  # what was split off by content, where the data did not say

    @property
    def names(self) -> tuple[str, ...]:
        return self.train.names

    @property
    def splits(self) -> dict[str, Source]:
        return {"train": self.train, "validation": self.validation, "test": self.test}
