"""Which pictures a step sees: pure functions of (seed, epoch, place), so that an order has no state and any step can be the
first. The order is that of the global batch; ranks take their parts of it. Needs no torch."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
from numpy import ndarray

from vitrail.augment.chance import bits, permutation
from vitrail.data.sources.parquet import Cells
from vitrail.data.sources.shards import Shards
from vitrail.data.sources.source import Part, Source

WITHIN = 2**32 + 1  # the slot of what is drawn within windows; 2**32 is the permutation's
PLACES = 64  # of which a window is put together where a source does not say what lies together


@runtime_checkable
class Order(Protocol):
    """Which pictures of which epoch a global batch has."""

    @property
    def steps(self) -> int | None: ...

    def at(self, step: int) -> tuple[ndarray, ndarray]: ...


@dataclass(frozen=True)
class Shuffled:
    """Without end: every epoch in an order of its own, one behind the other, so that no batch is short and no picture lost."""

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
    """Likewise, but what lies together is read together: an epoch lays the runs one behind the other in an order of its own,
    and then draws the order of the pictures within each ``window`` of them. So a window touches few runs, however many there
    are, and nothing as long as the data set is ever drawn."""

    starts: ndarray  # where each run begins
    length: int
    batch: int
    seed: int
    window: int
    steps: None = None

    def at(self, step: int) -> tuple[ndarray, ndarray]:
        places = np.arange(step * self.batch, (step + 1) * self.batch)
        epochs, inside = places // self.length, places % self.length
        windows = -(-self.length // self.window)  # of an epoch; the last may be short
        which = epochs * windows + inside // self.window
        indices = np.empty(self.batch, np.int64)
        for number in np.unique(which).tolist():
            now, epoch, begin = which == number, number // windows, number % windows * self.window
            drawn = _window(self.seed, epoch, begin, min(begin + self.window, self.length))
            indices[now] = self._laid(epoch, drawn[inside[now] - begin])
        return epochs, indices

    def _laid(self, epoch: int, places: ndarray) -> ndarray:
        """The pictures at these places of the runs as the epoch lays them."""
        order = _permutation(self.seed, epoch, len(self.starts))
        lengths = np.diff(self.starts, append=self.length)[order]
        ends = np.cumsum(lengths)
        run = np.searchsorted(ends, places, side="right")
        found: ndarray = self.starts[order[run]] + places - (ends - lengths)[run]
        return found


@dataclass(frozen=True)
class InOrder:
    """Every picture once; the last batch has what is left."""

    length: int
    batch: int

    @property
    def steps(self) -> int:
        return -(-self.length // self.batch)

    def at(self, step: int) -> tuple[ndarray, ndarray]:
        indices = np.arange(step * self.batch, min((step + 1) * self.batch, self.length))
        return np.zeros_like(indices), indices


def shuffled(source: Source, batch: int, seed: int, window: int | None = None) -> Order:
    """Every epoch in an order of its own, drawn among all pictures, or among those of a window."""
    if window is None or window >= len(source):
        return Shuffled(len(source), batch, seed)
    return Windowed(_runs(source, window), len(source), batch, seed, window)


def _runs(source: Source, window: int) -> ndarray:
    """Where what lies together begins: shards and row groups; in anything else, and in a single file, small parts of a window,
    so that a folder whose classes lie one behind the other is mixed as well."""
    homes = _homes(source)
    if homes is None or (homes == homes[0]).all():
        return np.arange(0, len(source), max(window // PLACES, 1))
    return np.flatnonzero(np.diff(homes, prepend=-1))


def _homes(source: Source) -> ndarray | None:
    """The number of the shard or row group that each picture lies in."""
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
    """The places of a window in an order of its own."""
    return begin + np.argsort(bits(seed, epoch, np.arange(begin, end), WITHIN).reshape(-1), kind="stable")
