"""Boxes of all images of a dataset, in arrays or as packs and shards store them. n images, m boxes of all of them."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from vitrail.data.bad_image import BadImage
from vitrail.data.decode import SIDEWAYS_ORIENTATIONS, ImageSize, stored_size
from vitrail.data.sources.box_faults import LEFT_OUT_CODES, find_faults
from vitrail.data.sources.dataset import Dataset, Subset
from vitrail.data.sources.objects import Objects, build_objects, concat_objects


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

    @classmethod
    def from_objects(cls, parts: Sequence[Objects]) -> "BoxTable":
        """Return the objects of images in order."""
        every = concat_objects(parts)
        return cls(np.cumsum([0, *map(len, parts)]), every.boxes, every.labels, every.crowd, every.areas)

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


def encode_objects(objects: Objects) -> bytes:
    """Encode the objects of an image as JSON, with all digits."""
    lists = {name: np.asarray(column).tolist() for name, column in vars(objects).items()}
    return json.dumps(lists, separators=(",", ":")).encode()


def decode_objects(content: bytes) -> Objects:
    try:
        lists = json.loads(content)
        objects = build_objects(
            lists["boxes"], lists["labels"], np.array(lists["crowd"], bool), np.array(lists["areas"], float)
        )
        if {len(column) for column in vars(objects).values()} != {len(objects)} or not np.isfinite(objects.boxes).all():
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise BadImage(
            "has boxes that cannot be read; they are JSON of boxes, labels, crowd and areas, one of each for an object"
        ) from None
    return objects


def upright_size(content: bytes | ndarray) -> ImageSize:
    """Return height and width of an image as it is shown."""
    if isinstance(content, ndarray):
        return content.shape[0], content.shape[1]
    (height, width), orientation = stored_size(content)
    return (width, height) if orientation in SIDEWAYS_ORIENTATIONS else (height, width)


def resize_objects(objects: Objects, size: ImageSize, new_size: ImageSize, crops: bool) -> Objects:
    """Return the objects of an image that is resized, or if it ``crops``, of its largest centre crop of the new aspect ratio,
    without those that are outside of it then."""
    (height, width), (h, w) = size, new_size
    high, wide = (min(height, width * h / w), min(width, height * w / h)) if crops else (height, width)
    resized = objects.moved((wide - width) / 2, (high - height) / 2).scaled(w / wide, h / high)
    codes = find_faults(resized.boxes, np.broadcast_to(np.array(new_size), (len(objects), 2)))
    return resized[~np.isin(codes, LEFT_OUT_CODES)]
