"""Batches as a pure function of the step: order and augmentation follow from (seed, epoch, index), so a loader has no state.
To resume is to start from another step; the number of threads changes nothing; ranks take parts of one global batch.

b images in a global batch, n of them on this rank.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int16, UInt8
from numpy import ndarray
from torch import Tensor

from vitrail.augment.counter_rng import uniforms
from vitrail.augment.mixup import MIX_SLOTS, Mix, apply_mix, draw_mix
from vitrail.augment.policy import Policy
from vitrail.data.batch_transforms import (
    BatchTransform,
    CustomTransform,
    EvalTransform,
    ImageTransform,
    PixelTransform,
    TrainTransform,
    TransformedBatch,
)
from vitrail.data.prefetch import prefetch
from vitrail.data.preprocess import Preprocess
from vitrail.data.samplers import Sampler, SequentialSampler, build_shuffled_sampler
from vitrail.data.sources.dataset import MAX_BAD_FRACTION, Dataset, max_bad_images
from vitrail.errors import VitrailError, printable
from vitrail.system import available_cores

MAX_STEP = 2**48  # stands for endless
MIX_OFFSET = 2000  # first random slot of Mixup and CutMix

log = logging.getLogger("vitrail")
Targets = Callable[[Dataset, ndarray], Any]  # from a dataset and indices to the targets of a task


@dataclass(frozen=True)
class Batch:
    """Preprocessed images. For mixed images the loss is lam * loss(targets) + (1 - lam) * loss(mixed_targets)."""

    images: Float[Tensor, "n c height width"] | UInt8[Tensor, "n c height width"]
    targets: Any  # class labels, or what else the task makes of the dataset
    indices: Int[Tensor, " n"]  # in the dataset
    mixed_targets: Any = None
    lam: Float[Tensor, " n"] | None = None
    epochs: Int[Tensor, " n"] | None = None  # epoch of each image; None: the first
    progress: Float[Tensor, " n"] | None = None  # fraction of the training that is done; None: outside of a training


def class_labels(dataset: Dataset, indices: ndarray) -> Int[Tensor, " n"]:
    """Return the class labels of images; -1 without one."""
    return torch.from_numpy(dataset.labels[indices])


@dataclass
class Loader:
    """Stateless data loader: ``loader.batch(step)`` is the batch of a step; ``loader.batches(start)`` prefetches in threads."""

    dataset: Dataset
    transform: BatchTransform
    sampler: Sampler
    mix_policy: Policy | None = None
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    max_bad_fraction: float = MAX_BAD_FRACTION
    read_errors: dict[int, str] = field(default_factory=dict)  # images that could not be read, by index
    targets: Targets = class_labels
    logs_errors: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise VitrailError(f"rank must be from 0 to {self.world_size - 1} of {self.world_size}, got {self.rank}")
        self._lock = Lock()

    def batch(self, step: int) -> Batch:
        steps = self.sampler.steps
        if not 0 <= step < (MAX_STEP if steps is None else steps):
            raise VitrailError(f"step must be from 0 to {(MAX_STEP if steps is None else steps) - 1}, got {step}")
        epochs, indices = self.sampler.batch_indices(step)
        size = len(indices)
        start, end = self.rank * size // self.world_size, (self.rank + 1) * size // self.world_size
        if self.mix_policy is None or start == end:
            transformed = self._load(epochs[start:end], indices[start:end])
            batch = self._with_targets(transformed.images, indices[start:end][transformed.readable], transformed.targets)
            return replace(batch, epochs=torch.from_numpy(epochs[start:end][transformed.readable]))
        return self._mixed_batch(epochs, indices, start, end)

    def batches(self, start: int = 0, stop: int | None = None, workers: int | None = None) -> Iterator[Batch]:
        """Iterate over the batches from ``start`` to ``stop`` or the end, prefetched by ``workers`` threads; 0: no threads."""
        ends = [end for end in (stop, self.sampler.steps) if end is not None]
        return prefetch(self.batch, start, min(ends) if ends else None, num_workers(workers))

    def mask(self, index: int) -> Int16[ndarray, "h w"] | None:
        """Return the mask of an image at its own size; None if it cannot be read, which is reported and counted."""
        try:
            return self.dataset.mask(index)
        except (OSError, VitrailError) as error:
            self._record_errors({index: f"{self.dataset.describe(index)}: {error}"})
            return None

    def _load(self, epochs: ndarray, indices: ndarray) -> TransformedBatch:
        transformed = self.transform(self.dataset, epochs, indices)
        if transformed.read_errors:
            self._record_errors(transformed.read_errors)
        return transformed

    def _record_errors(self, read_errors: dict[int, str]) -> None:
        with self._lock:
            for index, error in read_errors.items():
                if index not in self.read_errors and self.logs_errors:
                    log.warning("skipped an image: %s", printable(error))
                self.read_errors[index] = error
            if len(self.read_errors) > max_bad_images(self.max_bad_fraction, len(self.dataset)):
                raise VitrailError(
                    f"{len(self.read_errors)} of {len(self.dataset)} images cannot be used, more than the "
                    "tolerated fraction of "
                    f"{self.max_bad_fraction:g}, the last one {next(iter(read_errors.values()))}; "
                    "`vitrail data check` lists them all, max_bad_fraction=0.2 tolerates more"
                )

    def _with_targets(self, images: Tensor, indices: ndarray, moved: Tensor | None = None) -> Batch:
        targets = self.targets(self.dataset, indices) if moved is None else moved
        return Batch(images, targets, torch.from_numpy(indices))

    def _mixed_batch(self, epochs: ndarray, indices: ndarray, start: int, end: int) -> Batch:
        """Mix each image with the one before it in the global batch; a rank also reads the one before its part."""
        policy, size = self.mix_policy, len(indices)
        assert policy is not None
        positions = np.arange(start - 1, end) % size if self.world_size > 1 else np.arange(start, end)
        transformed = self._load(epochs[positions], indices[positions])
        drawn_for = slice(start, end) if policy.mix_per_sample else slice(0, 1)
        u = uniforms(self.seed, epochs[drawn_for], indices[drawn_for], MIX_SLOTS, MIX_OFFSET)
        u = np.broadcast_to(u, (end - start, MIX_SLOTS))
        mix = draw_mix(
            u,
            policy.mixup,
            policy.cutmix,
            policy.mix_prob,
            policy.cutmix_prob,
            policy.mix_per_sample,
            self.transform.preprocess.image_size,
        )
        if self.world_size > 1:
            own, partners = np.arange(1, len(positions)), np.arange(len(positions) - 1)
        else:
            own, partners = np.arange(size), np.roll(np.arange(size), 1)
        return self._blend(transformed.images, transformed.readable, indices[positions], mix, own, partners)

    def _blend(self, images: Tensor, readable: ndarray, indices: ndarray, mix: Mix, own: ndarray, partners: ndarray) -> Batch:
        row_of = np.cumsum(readable) - 1  # row of an image among those that could be read
        partner = np.where(readable[partners], partners, own)  # an image whose partner could not be read is not mixed
        lam, boxes = np.where(readable[partners], mix.lam, 1.0), np.where(readable[partners][:, None], mix.boxes, 0)
        present = readable[own]
        mixed = _select_rows(images, row_of[own[present]])
        if not mix.is_identity:
            apply_mix(mixed, _select_rows(images, row_of[partner[present]]), Mix(lam[present], boxes[present]))
        batch = self._with_targets(mixed, indices[own[present]])
        mixed_targets = self.targets(self.dataset, indices[partner[present]])
        return Batch(batch.images, batch.targets, batch.indices, mixed_targets, torch.from_numpy(lam[present]).float())


def _select_rows(images: Tensor, rows: ndarray) -> Tensor:
    """Select rows, without a copy if they are contiguous."""
    if len(rows) and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
        return images[int(rows[0]) : int(rows[0]) + len(rows)]
    return images[rows]


def num_workers(requested: int | None) -> int:
    """Return the number of threads that load images; None: one per core, at most eight."""
    if requested is not None and requested < 0:
        raise VitrailError(f"workers must not be below 0, got {requested}; try workers=2")
    return min(available_cores(), 8) if requested is None else requested


def build_train_loader(
    dataset: Dataset,
    preprocess: Preprocess,
    batch_size: int,
    policy: Policy,
    seed: int = 0,
    *,
    rank: int = 0,
    world_size: int = 1,
    max_bad_fraction: float = MAX_BAD_FRACTION,
    shuffle_window: int | None = None,
    transform: ImageTransform | None = None,
) -> Loader:
    """Build a shuffled, augmented, endless loader; ``batch_size`` is the global one. ``shuffle_window``: number of neighbouring
    images to shuffle among at a time; None: all. ``transform``: a function of the user's own in place of the policy's."""
    _check_arguments(dataset, batch_size)
    if shuffle_window is not None and shuffle_window < 1:
        raise VitrailError(f"shuffle_window must be at least 1, got {shuffle_window}; try shuffle_window={100 * batch_size}")
    if batch_size % world_size:
        raise VitrailError(
            f"batch_size must be a multiple of the world size {world_size}, got {batch_size}; try "
            f"batch_size={-(-batch_size // world_size) * world_size}"
        )
    mix_policy = policy if policy.mixup or policy.cutmix else None
    return Loader(
        dataset,
        TrainTransform(preprocess, policy, seed) if transform is None else CustomTransform(preprocess, transform, seed),
        build_shuffled_sampler(dataset, batch_size, seed, shuffle_window),
        mix_policy,
        seed,
        rank,
        world_size,
        max_bad_fraction,
    )


def build_eval_loader(
    dataset: Dataset, preprocess: Preprocess, batch_size: int, *, rank: int = 0, world_size: int = 1
) -> Loader:
    """Build a loader of every image once, in order, preprocessed as for evaluation."""
    _check_arguments(dataset, batch_size)
    return Loader(
        dataset, EvalTransform(preprocess), SequentialSampler(len(dataset), batch_size), rank=rank, world_size=world_size
    )


def build_pixel_loader(
    dataset: Dataset, preprocess: Preprocess, batch_size: int, max_bad_fraction: float = MAX_BAD_FRACTION
) -> Loader:
    """Build a loader of every image once, in order, as the uint8 images that a predictor takes."""
    _check_arguments(dataset, batch_size)
    transform, sampler = PixelTransform(preprocess), SequentialSampler(len(dataset), batch_size)
    return Loader(dataset, transform, sampler, max_bad_fraction=max_bad_fraction)


def check_batch_size(batch_size: int) -> int:
    if batch_size < 1:
        raise VitrailError(f"batch_size must be at least 1, got {batch_size}; try batch_size=64")
    return batch_size


def _check_arguments(dataset: Dataset, batch_size: int) -> None:
    check_batch_size(batch_size)
    if len(dataset) == 0:
        raise VitrailError("the dataset has no images; name one that has some")
