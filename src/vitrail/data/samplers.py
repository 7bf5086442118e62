"""Samplers: which images a step reads, as a pure function of (seed, epoch, position), so that a sampler has no state and any
step can be the first. They sample the global batch; ranks take their parts of it. Torch-free."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
from numpy import ndarray

from vitrail.augment.counter_rng import permutation, random_bits
from vitrail.data.sources.dataset import Dataset

WINDOW_SLOT = 2**32 + 1  # random slot of the order within windows; 2**32 is the permutation's
RUNS_PER_WINDOW = 64  # runs per window for datasets without shards


@runtime_checkable
class Sampler(Protocol):
    """Maps a step to the epochs and indices of its global batch."""

    @property
    def steps(self) -> int | None: ...

    def batch_indices(self, step: int) -> tuple[ndarray, ndarray]: ...


@dataclass(frozen=True)
class ShuffledSampler:
    """Endless: a new permutation per epoch, concatenated, so that no batch is short and no image is lost."""

    length: int
    batch_size: int
    seed: int
    steps: None = None

    def batch_indices(self, step: int) -> tuple[ndarray, ndarray]:
        positions = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, offsets = positions // self.length, positions % self.length
        indices = np.empty(self.batch_size, np.int64)
        for epoch in np.unique(epochs).tolist():
            selected = epochs == epoch
            indices[selected] = _permutation(self.seed, epoch, self.length)[offsets[selected]]
        return epochs, indices


@dataclass(frozen=True, eq=False)
class WindowedSampler:
    """Endless, for sequential storage: an epoch permutes the runs (shards, row groups), concatenates them, and shuffles images
    within each ``window``. So a window touches few runs, however many there are, and no permutation as long as the dataset is
    ever drawn."""

    run_starts: ndarray  # first index of each run
    length: int
    batch_size: int
    seed: int
    window: int
    steps: None = None

    def batch_indices(self, step: int) -> tuple[ndarray, ndarray]:
        positions = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, offsets = positions // self.length, positions % self.length
        windows = -(-self.length // self.window)  # per epoch; the last may be short
        window_numbers = epochs * windows + offsets // self.window
        indices = np.empty(self.batch_size, np.int64)
        for number in np.unique(window_numbers).tolist():
            selected, epoch, begin = window_numbers == number, number // windows, number % windows * self.window
            drawn = _window(self.seed, epoch, begin, min(begin + self.window, self.length))
            indices[selected] = self._indices_at(epoch, drawn[offsets[selected] - begin])
        return epochs, indices

    def _indices_at(self, epoch: int, positions: ndarray) -> ndarray:
        """Return the images at these positions of the concatenated runs of an epoch."""
        order = _permutation(self.seed, epoch, len(self.run_starts))
        lengths = np.diff(self.run_starts, append=self.length)[order]
        ends = np.cumsum(lengths)
        run = np.searchsorted(ends, positions, side="right")
        indices: ndarray = self.run_starts[order[run]] + positions - (ends - lengths)[run]
        return indices


@dataclass(frozen=True)
class SequentialSampler:
    """Every image once, in order; the last batch may be short."""

    length: int
    batch_size: int

    @property
    def steps(self) -> int:
        return -(-self.length // self.batch_size)

    def batch_indices(self, step: int) -> tuple[ndarray, ndarray]:
        indices = np.arange(step * self.batch_size, min((step + 1) * self.batch_size, self.length))
        return np.zeros_like(indices), indices


def build_shuffled_sampler(dataset: Dataset, batch_size: int, seed: int, window: int | None = None) -> Sampler:
    """Build a sampler that shuffles every epoch, among all images or within windows."""
    if window is None or window >= len(dataset):
        return ShuffledSampler(len(dataset), batch_size, seed)
    return WindowedSampler(_run_starts(dataset, window), len(dataset), batch_size, seed, window)


def _run_starts(dataset: Dataset, window: int) -> ndarray:
    """Return where each run begins: shards and row groups; for other datasets, and for a single file, small parts of a window,
    so that a folder sorted by class is mixed as well."""
    groups = dataset.groups()
    if groups is None or (groups == groups[0]).all():
        return np.arange(0, len(dataset), max(window // RUNS_PER_WINDOW, 1))
    return np.flatnonzero(np.diff(groups, prepend=-1))


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, length: int) -> ndarray:
    return permutation(seed, epoch, length)


@lru_cache(maxsize=8)
def _window(seed: int, epoch: int, begin: int, end: int) -> ndarray:
    """Return the positions of a window, shuffled."""
    return begin + np.argsort(random_bits(seed, epoch, np.arange(begin, end), WINDOW_SLOT).reshape(-1), kind="stable")
