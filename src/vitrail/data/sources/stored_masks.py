"""Masks as packs and shards store them: a PNG of whole numbers for each image. h high, w wide.

A mask has the index of each pixel's class, and 255 where it is ignored, with 8 bits; of more than 255 classes 16 bits and
65535. A PNG of objects has their numbers, and 0 where there is none.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int16, Int32, Integer
from numpy import ndarray
from PIL import Image

from vitrail.data.bad_image import BadImage
from vitrail.data.decode import MAX_IMAGE_PIXELS
from vitrail.data.sources.dataset import IGNORED, Dataset, Subset
from vitrail.errors import VitrailError, first_line

MAX_8_BITS, MAX_16_BITS = 2**8 - 1, 2**16 - 1


@runtime_checkable
class MaskStore(Protocol):
    """The PNGs of masks, wherever they are stored. Reading one is thread-safe."""

    def read_mask(self, index: int) -> bytes: ...

    def read_objects(self, index: int) -> bytes | None: ...

    def key(self) -> bytes:
        """Return bytes that change with any of the masks."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredMasks(Subset):
    """A dataset, with the PNGs of its masks."""

    store: MaskStore
    names: tuple[str, ...]  # of the classes of pixels
    are_targets: bool

    @property
    def mask_names(self) -> tuple[str, ...]:
        return self.names

    @property
    def has_mask_targets(self) -> bool:
        return self.are_targets

    def mask(self, index: int) -> Int16[ndarray, "h w"]:
        try:
            mask = decode_mask_png(self.store.read_mask(index))
        except BadImage as error:
            raise BadImage(f"has a mask that {error}") from None
        if mask.size and mask.max() >= len(self.names):
            raise BadImage(f"has a mask with the class {mask.max()}, and there are names of {len(self.names)}; name each class")
        return mask

    def instances(self, index: int) -> Int32[ndarray, "h w"] | None:
        content = self.store.read_objects(index)
        try:
            return None if content is None else decode_objects_png(content)
        except BadImage as error:
            raise BadImage(f"has a mask of objects that {error}") from None

    def content_key(self) -> bytes:
        return super().content_key() + repr(self.names).encode() + self.store.key()

    def cache_key(self) -> bytes | None:
        key = super().cache_key()
        return None if key is None else key + repr(self.names).encode() + self.store.key()


def with_stored_masks(dataset: Dataset, store: MaskStore, names: Sequence[str], are_targets: bool) -> Dataset:
    """Return a dataset with masks, which are its targets in place of labels or not."""
    class_names = tuple(names) if are_targets else dataset.class_names
    every = np.arange(len(dataset))
    return StoredMasks(dataset, every, class_names=class_names, store=store, names=tuple(names), are_targets=are_targets)


def encode_mask_png(mask: Int16[ndarray, "h w"]) -> bytes:
    """Encode the class of each pixel."""
    largest = int(mask.max(initial=0))
    dtype, ignored = (np.uint8, MAX_8_BITS) if largest < MAX_8_BITS else (np.uint16, MAX_16_BITS)
    return _encode_png(np.where(mask == IGNORED, ignored, mask).astype(dtype))


def decode_mask_png(content: bytes) -> Int16[ndarray, "h w"]:
    values = _decode_png(content)
    ignored = MAX_8_BITS if values.dtype == np.uint8 else MAX_16_BITS
    return np.where(values == ignored, IGNORED, values.astype(np.int32)).astype(np.int16)


def encode_objects_png(objects: Int32[ndarray, "h w"]) -> bytes:
    """Encode the number of each pixel's object."""
    largest = int(objects.max(initial=0))
    if largest > MAX_16_BITS:
        raise BadImage(f"has the object {largest:,} in its mask, and {MAX_16_BITS:,} can be stored; number them from 1")
    return _encode_png(objects.astype(np.uint8 if largest <= MAX_8_BITS else np.uint16))


def decode_objects_png(content: bytes) -> Int32[ndarray, "h w"]:
    return _decode_png(content).astype(np.int32)


def encode_masks(
    dataset: Dataset, index: int, size: tuple[int, int] | None = None, crops: bool = False
) -> tuple[bytes, bytes | None]:
    """Return the PNGs of the classes and of the objects of an image, resized to this size as ``resize_mask`` does; None: the
    masks are as they are."""
    mask, objects = dataset.mask(index), dataset.instances(index)
    if size is not None:
        mask = resize_mask(mask, size, crops)
        objects = None if objects is None else resize_mask(objects, size, crops)
    return encode_mask_png(mask), None if objects is None else encode_objects_png(objects)


def resize_mask(mask: Integer[ndarray, "h w"], size: tuple[int, int], crops: bool) -> Integer[ndarray, "height width"]:
    """Resize a mask, or if it ``crops``, its largest centre crop of this aspect ratio: each pixel is the one at its centre."""
    (height, width), (h, w) = mask.shape, size
    high, wide = (min(height, width * h / w), min(width, height * w / h)) if crops else (height, width)
    rows = np.floor((height - high) / 2 + (np.arange(h) + 0.5) * high / h).astype(np.int64)
    columns = np.floor((width - wide) / 2 + (np.arange(w) + 0.5) * wide / w).astype(np.int64)
    return mask[rows[:, None], columns]


def _encode_png(values: ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, "PNG", compress_level=6)
    return stream.getvalue()


def _decode_png(content: bytes) -> Integer[ndarray, "h w"]:
    """Decode a PNG of grey values or of indices of a palette, as uint8 or uint16."""
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if image.width * image.height > MAX_IMAGE_PIXELS:
                raise BadImage(f"has more than the {MAX_IMAGE_PIXELS:,} pixels allowed")
            if image.mode not in ("1", "L", "P", "I;16", "I"):
                raise BadImage(f"has pixels of the kind {image.mode}, and whole numbers are needed; save it as 8-bit grey")
            values = np.asarray(image)
    except VitrailError:
        raise
    except Exception as error:  # a damaged file can fail its decoder in any way
        raise BadImage(f"cannot be decoded: {first_line(error)}") from None
    return values.astype(np.uint8 if image.mode in ("1", "L", "P") else np.uint16)
