"""Boxes of all images of a dataset, in arrays or as packs and shards store them. n images, m boxes of all of them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from vitrail.data.bad_image import BadImage
from vitrail.data.sources.dataset import Dataset, Subset
from vitrail.data.sources.objects import Objects


@runtime_checkable
class BoxStore(Protocol):
    """The objects of images, wherever they are stored. Reading those of an image is thread-safe."""

    def read_objects(self, index: int) -> Objects: ...

    def key(self) -> bytes:
        """Return bytes that change with any of the boxes."""


@dataclass(frozen=True, eq=False)
class BoxTable:
    """Objects in arrays, those of one image after those of another."""

    starts: Int[ndarray, " starts"]  # of each image among the boxes
    boxes: Float[ndarray, "m 4"]
    labels: Int[ndarray, " m"]
    crowd: Bool[ndarray, " m"]
    areas: Float[ndarray, " m"]

    @property
    def counts(self) -> Int[ndarray, " n"]:
        """Number of objects of each image."""
        return np.diff(self.starts)

    def read_objects(self, index: int) -> Objects:
        rows = slice(self.starts[index], self.starts[index + 1])
        return Objects(self.boxes[rows], self.labels[rows], self.crowd[rows], self.areas[rows])

    def key(self) -> bytes:
        digest = hashlib.sha256()
        for column in vars(self).values():
            digest.update(np.ascontiguousarray(column).tobytes())
        return digest.digest()


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredBoxes(Subset):
    """A dataset, with the boxes of its images."""

    store: BoxStore
    names: tuple[str, ...]  # of the classes of boxes
    are_targets: bool

    @property
    def box_names(self) -> tuple[str, ...]:
        return self.names

    @property
    def has_box_targets(self) -> bool:
        return self.are_targets

    @property
    def has_mask_targets(self) -> bool:
        return not self.are_targets and super().has_mask_targets

    def objects(self, index: int) -> Objects:
        objects = self.store.read_objects(index)
        if len(objects) and not 0 <= objects.labels.min() <= objects.labels.max() < len(self.names):
            raise BadImage(f"has a box of the class {objects.labels.max()}, and there are names of {len(self.names)}")
        return objects

    def content_key(self) -> bytes:
        return super().content_key() + repr(self.names).encode() + self.store.key()

    def cache_key(self) -> bytes | None:
        key = super().cache_key()
        return None if key is None else key + repr(self.names).encode() + self.store.key()


def with_stored_boxes(dataset: Dataset, store: BoxStore, names: Sequence[str], are_targets: bool) -> Dataset:
    """Return a dataset with boxes, which are its targets in place of labels or not."""
    every, class_names = np.arange(len(dataset)), tuple(names) if are_targets else dataset.class_names
    return StoredBoxes(dataset, every, class_names=class_names, store=store, names=tuple(names), are_targets=are_targets)
