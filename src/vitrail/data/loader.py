"""Batches as a pure function of the step: order and augmentation follow from (seed, epoch, index), so a loader has no state.
To resume is to start from another step; the number of threads changes nothing; ranks take parts of one global batch.

b images in a global batch, n of them on this rank.
"""

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Lock

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from vitrail.augment.chance import uniforms
from vitrail.augment.mix import MIX_SLOTS, Mix, apply_mix, draw_mix
from vitrail.augment.policy import Policy
from vitrail.data.order import InOrder, Order, shuffled
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.source import TOLERATED, Source, allowed
from vitrail.data.threads import cores
from vitrail.data.view import Augmented, Plain, Seen, View
from vitrail.errors import VitrailError, printable

LAST = 2**48  # stands for endless
MIX = 2000  # first random slot of Mixup and CutMix

log = logging.getLogger("vitrail")


@dataclass(frozen=True)
class Batch:
    """Preprocessed images. For mixed images the loss is lam * loss(labels) + (1 - lam) * loss(mixed_labels)."""

    images: Float[Tensor, "n c height width"]
    labels: Int[Tensor, " n"]
    indices: Int[Tensor, " n"]  # in the dataset
    others: Int[Tensor, " n"] | None = None
    share: Float[Tensor, " n"] | None = None
    epochs: Int[Tensor, " n"] | None = None  # epoch of each image; None: the first


@dataclass
class Loader:
    """Stateless data loader: ``loader.batch(step)`` is the batch of a step; ``loader.batches(start)`` prefetches in threads."""

    source: Source
    view: View
    order: Order
    mixing: Policy | None = None
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    tolerated: float = TOLERATED
    problems: dict[int, str] = field(default_factory=dict)  # images that could not be read, by index

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise VitrailError(f"rank must be from 0 to {self.ranks - 1} of {self.ranks}, got {self.rank}")
        self._lock = Lock()

    def batch(self, step: int) -> Batch:
        steps = self.order.steps
        if not 0 <= step < (LAST if steps is None else steps):
            raise VitrailError(f"step must be from 0 to {(LAST if steps is None else steps) - 1}, got {step}")
        epochs, indices = self.order.at(step)
        size = len(indices)
        start, end = self.rank * size // self.ranks, (self.rank + 1) * size // self.ranks
        if self.mixing is None or start == end:
            seen = self._see(epochs[start:end], indices[start:end])
            made = self._labelled(seen.images, indices[start:end][seen.kept])
            return replace(made, epochs=torch.from_numpy(epochs[start:end][seen.kept]))
        return self._mixed(epochs, indices, start, end)

    def batches(self, start: int = 0, stop: int | None = None, workers: int | None = None) -> Iterator[Batch]:
        """Iterate over the batches from ``start`` to ``stop`` or the end, prefetched by ``workers`` threads; 0: no threads."""
        ends = [end for end in (stop, self.order.steps) if end is not None]
        workers = min(cores(), 8) if workers is None else workers
        if workers < 0:
            raise VitrailError(f"workers must not be below 0, got {workers}; try workers=2")
        return _ahead(self, start, min(ends) if ends else None, workers)

    def _see(self, epochs: ndarray, indices: ndarray) -> Seen:
        seen = self.view(self.source, epochs, indices)
        if seen.problems:
            self._count(seen.problems)
        return seen

    def _count(self, problems: dict[int, str]) -> None:
        with self._lock:
            for index, problem in problems.items():
                if index not in self.problems:
                    log.warning("skipped an image: %s", printable(problem))
                self.problems[index] = problem
            if len(self.problems) > allowed(self.tolerated, len(self.source)):
                raise VitrailError(
                    f"{len(self.problems)} of {len(self.source)} images cannot be used, more than the tolerated fraction of "
                    f"{self.tolerated:g}, the last one {next(iter(problems.values()))}; "
                    "`vitrail data check` lists them all"
                )

    def _labelled(self, images: Tensor, indices: ndarray) -> Batch:
        return Batch(images, torch.from_numpy(self.source.labels[indices]), torch.from_numpy(indices))

    def _mixed(self, epochs: ndarray, indices: ndarray, start: int, end: int) -> Batch:
        """Mix each image with the one before it in the global batch; a rank also reads the one before its part."""
        policy, size = self.mixing, len(indices)
        assert policy is not None
        wanted = np.arange(start - 1, end) % size if self.ranks > 1 else np.arange(start, end)
        seen = self._see(epochs[wanted], indices[wanted])
        drawn = slice(start, end) if policy.mix_each else slice(0, 1)
        u = uniforms(self.seed, epochs[drawn], indices[drawn], MIX_SLOTS, MIX)
        u = np.broadcast_to(u, (end - start, MIX_SLOTS))
        mix = draw_mix(u, policy.mixup, policy.cutmix, policy.mix, policy.switch, policy.mix_each, self.view.preprocess.image)
        own, before = (np.arange(1, len(wanted)), np.arange(len(wanted) - 1)) if self.ranks > 1 else (
            np.arange(size), np.roll(np.arange(size), 1)
        )  # fmt: skip
        return self._blended(seen.images, seen.kept, indices[wanted], mix, own, before)

    def _blended(self, images: Tensor, kept: ndarray, indices: ndarray, mix: Mix, own: ndarray, before: ndarray) -> Batch:
        place = np.cumsum(kept) - 1  # row of an image among those that could be read
        partner = np.where(kept[before], before, own)  # an image whose partner could not be read is not mixed
        share, boxes = np.where(kept[before], mix.share, 1.0), np.where(kept[before][:, None], mix.boxes, 0)
        here = kept[own]
        mixed = _rows(images, place[own[here]])
        if not mix.idle:
            apply_mix(mixed, _rows(images, place[partner[here]]), Mix(share[here], boxes[here]))
        made = self._labelled(mixed, indices[own[here]])
        others = torch.from_numpy(self.source.labels[indices[partner[here]]])
        return Batch(made.images, made.labels, made.indices, others, torch.from_numpy(share[here]).float())


def _rows(images: Tensor, rows: ndarray) -> Tensor:
    """Select rows, without a copy if they are contiguous."""
    if len(rows) and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
        return images[int(rows[0]) : int(rows[0]) + len(rows)]
    return images[rows]


def _ahead(loader: Loader, start: int, stop: int | None, workers: int) -> Iterator[Batch]:
    if workers == 0:
        step = start
        while stop is None or step < stop:
            yield loader.batch(step)
            step += 1
        return
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, "vitrail-loader", initializer=torch.set_num_threads, initargs=(1,))
    waiting: deque[Future[Batch]] = deque()
    try:
        step = start
        while waiting or stop is None or step < stop:
            while len(waiting) <= workers and (stop is None or step < stop):
                waiting.append(pool.submit(loader.batch, step))
                step += 1
            yield waiting.popleft().result()
            torch.set_num_threads(threads)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)  # what workers set would hold for threads started later


def training(
    source: Source,
    preprocess: Preprocess,
    batch: int,
    policy: Policy,
    seed: int = 0,
    *,
    rank: int = 0,
    ranks: int = 1,
    tolerated: float = TOLERATED,
    window: int | None = None,
) -> Loader:
    """Build a shuffled, augmented, endless loader; ``batch_size`` is the global one. ``shuffle_window``: number of neighbouring
    images to shuffle among at a time; None: all."""
    _check(source, batch)
    if window is not None and window < 1:
        raise VitrailError(f"shuffle_window must be at least 1, got {window}; try shuffle_window={100 * batch}")
    if batch % ranks:
        raise VitrailError(
            f"batch_size must be a multiple of the world size {ranks}, got {batch}; try batch_size={-(-batch // ranks) * ranks}"
        )
    mixing = policy if policy.mixup or policy.cutmix else None
    view = Augmented(preprocess, policy, seed)
    return Loader(source, view, shuffled(source, batch, seed, window), mixing, seed, rank, ranks, tolerated)


def evaluation(source: Source, preprocess: Preprocess, batch: int, *, rank: int = 0, ranks: int = 1) -> Loader:
    """Build a loader of every image once, in order, preprocessed as for evaluation."""
    _check(source, batch)
    return Loader(source, Plain(preprocess), InOrder(len(source), batch), rank=rank, ranks=ranks)


def _check(source: Source, batch: int) -> None:
    if batch < 1:
        raise VitrailError(f"batch_size must be at least 1, got {batch}; try batch_size=64")
    if len(source) == 0:
        raise VitrailError("the dataset has no images; name one that has some")
