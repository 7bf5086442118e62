"""Samplers: which images a step reads, as a pure function of (seed, epoch, position), so that a sampler has no state and any
step can be the first. They sample the global batch; ranks take their parts of it. Torch-free."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
from numpy import ndarray

from vitrail.augment.chance import bits, permutation
from vitrail.data.sources.parquet import Cells
from vitrail.data.sources.shards import Shards
from vitrail.data.sources.source import Part, Source

WITHIN = 2**32 + 1  # random slot of the order within windows; 2**32 is the permutation's
PLACES = 64  # runs per window for datasets without shards


@runtime_checkable
class Order(Protocol):
    """Maps a step to the epochs and indices of its global batch."""

    @property
    def steps(self) -> int | None: ...

    def at(self, step: int) -> tuple[ndarray, ndarray]: ...


@dataclass(frozen=True)
class Shuffled:
    """Endless: a new permutation per epoch, concatenated, so that no batch is short and no image is lost."""

    length: int
    batch: int
    seed: int
    steps: None = None

    def at(self, step: int) -> tuple[ndarray, ndarray]:
        places = np.arange(step * self.batch, (step + 1) * self.batch)
        epochs, inside = places // self.length, places % self.length
        indices = np.empty(self.batch, np.int64)
        for epoch in np.unique(epochs).tolist():
            now = epochs == epoch
            indices[now] = _permutation(self.seed, epoch, self.length)[inside[now]]
        return epochs, indices


@dataclass(frozen=True, eq=False)
class Windowed:
    """Endless, for sequential storage: an epoch permutes the runs (shards, row groups), concatenates them, and shuffles images
    within each ``window``. So a window touches few runs, however many there are, and no permutation as long as the dataset is
    ever drawn."""

    starts: ndarray  # first index of each run
    length: int
    batch: int
    seed: int
    window: int
    steps: None = None

    def at(self, step: int) -> tuple[ndarray, ndarray]:
        places = np.arange(step * self.batch, (step + 1) * self.batch)
        epochs, inside = places // self.length, places % self.length
        windows = -(-self.length // self.window)  # per epoch; the last may be short
        which = epochs * windows + inside // self.window
        indices = np.empty(self.batch, np.int64)
        for number in np.unique(which).tolist():
            now, epoch, begin = which == number, number // windows, number % windows * self.window
            drawn = _window(self.seed, epoch, begin, min(begin + self.window, self.length))
            indices[now] = self._laid(epoch, drawn[inside[now] - begin])
        return epochs, indices

    def _laid(self, epoch: int, places: ndarray) -> ndarray:
        """Return the images at these positions of the concatenated runs of an epoch."""
        order = _permutation(self.seed, epoch, len(self.starts))
        lengths = np.diff(self.starts, append=self.length)[order]
        ends = np.cumsum(lengths)
        run = np.searchsorted(ends, places, side="right")
        found: ndarray = self.starts[order[run]] + places - (ends - lengths)[run]
        return found


@dataclass(frozen=True)
class InOrder:
    """Every image once, in order; the last batch may be short."""

    length: int
    batch: int

    @property
    def steps(self) -> int:
        return -(-self.length // self.batch)

    def at(self, step: int) -> tuple[ndarray, ndarray]:
        indices = np.arange(step * self.batch, min((step + 1) * self.batch, self.length))
        return np.zeros_like(indices), indices


def shuffled(source: Source, batch: int, seed: int, window: int | None = None) -> Order:
    """Build a sampler that shuffles every epoch, among all images or within windows."""
    if window is None or window >= len(source):
        return Shuffled(len(source), batch, seed)
    return Windowed(_runs(source, window), len(source), batch, seed, window)


def _runs(source: Source, window: int) -> ndarray:
    """Return where each run begins: shards and row groups; for other datasets, and for a single file, small parts of a window,
    so that a folder sorted by class is mixed as well."""
    homes = _homes(source)
    if homes is None or (homes == homes[0]).all():
        return np.arange(0, len(source), max(window // PLACES, 1))
    return np.flatnonzero(np.diff(homes, prepend=-1))


def _homes(source: Source) -> ndarray | None:
    """Return the index of the shard or row group of each image; None if there are none."""
    match source:
        case Part():
            whole = _homes(source.whole)
            return None if whole is None else whole[source.indices]
        case Shards():
            return source.shards
        case Cells():
            return np.searchsorted(source.starts, np.arange(len(source)), side="right")
    return None


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, length: int) -> ndarray:
    return permutation(seed, epoch, length)


@lru_cache(maxsize=8)
def _window(seed: int, epoch: int, begin: int, end: int) -> ndarray:
    """Return the positions of a window, shuffled."""
    return begin + np.argsort(bits(seed, epoch, np.arange(begin, end), WITHIN).reshape(-1), kind="stable")
