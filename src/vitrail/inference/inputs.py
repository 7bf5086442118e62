"""User-supplied images (files, bytes, PIL images, arrays) as an unlabelled dataset."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy import ndarray
from PIL import Image

from vitrail.data.decode import MAX_IMAGE_PIXELS, BadImage, to_upright_rgb
from vitrail.data.sources.dataset import Dataset, read_image_file
from vitrail.errors import VitrailError

ImageLike = str | os.PathLike[str] | bytes | Image.Image | ndarray
_pil_lock = Lock()  # a PIL image may be listed twice, and loading changes it


@dataclass(frozen=True, eq=False)
class ImageList(Dataset):
    """List of image-like items as a dataset; an unusable one fails when it is read."""

    items: Sequence[Any]
    class_names: tuple[str, ...] = ()

    @cached_property
    def labels(self) -> ndarray:
        return np.broadcast_to(np.int64(-1), len(self.items))

    def __len__(self) -> int:
        return len(self.items)

    def describe(self, index: int) -> str:
        item = self.items[index]
        return os.fsdecode(item) if isinstance(item, str | os.PathLike) else f"image {index}"

    def read(self, index: int) -> bytes | ndarray:
        item = self.items[index]
        if isinstance(item, str | os.PathLike):
            return _read_file(os.fsdecode(item))
        return (
            item if isinstance(item, bytes) else _pil_to_array(item if isinstance(item, Image.Image) else _array_to_pil(item))
        )


def as_image_list(images: Iterable[ImageLike]) -> list[Any]:
    if isinstance(images, str | os.PathLike | bytes | Image.Image) or (isinstance(images, ndarray) and images.ndim < 4):
        raise VitrailError(f"images must be a list, got one {type(images).__name__}; put it in square brackets")
    items = list(images)
    for index, item in enumerate(items):
        if not isinstance(item, str | os.PathLike | bytes | Image.Image | ndarray):
            kind = type(item).__name__
            raise VitrailError(f"an image must be a path, bytes, a PIL image or an array, got {kind} at index {index}")
    return items


def _read_file(path: str) -> bytes:
    try:
        return read_image_file(Path(path))
    except OSError as error:
        raise BadImage(f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a null byte in the name
        raise BadImage(f"cannot be read: {error}") from None


def _array_to_pil(array: ndarray) -> Image.Image:
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        shape = " x ".join(map(str, array.shape))
        raise BadImage(f"is an array of {array.dtype}, {shape}; it must be uint8, height x width, or that x 1, 3 or 4")
    return Image.fromarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array)


def _pil_to_array(image: Image.Image) -> ndarray:
    """Return the pixels upright and in plain RGB or grey, as if read from a file."""
    if not 0 < image.width * image.height <= MAX_IMAGE_PIXELS:
        raise BadImage(f"has {image.width} x {image.height} pixels; 1 to {MAX_IMAGE_PIXELS:,} are allowed")
    try:
        with _pil_lock:
            image.load()
            return np.asarray(to_upright_rgb(image))
    except (VitrailError, MemoryError):
        raise
    except Exception as error:  # a damaged image can fail its decoder in any way
        raise BadImage(f"cannot be decoded: {error}") from None
