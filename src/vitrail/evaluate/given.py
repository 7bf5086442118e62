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

from vitrail.data.decode import LARGEST, BadPicture, upright
from vitrail.data.sources.source import read_file
from vitrail.errors import VitrailError

Picture = str | os.PathLike[str] | bytes | Image.Image | ndarray
_one_at_a_time = Lock()  # a PIL image may be listed twice, and loading changes it


@dataclass(frozen=True)
class Given:
    """List of image-like items as a dataset; an unusable one fails when it is read."""

    items: Sequence[Any]
    names: tuple[str, ...] = ()

    @cached_property
    def labels(self) -> ndarray:
        return np.broadcast_to(np.int64(-1), len(self.items))

    def __len__(self) -> int:
        return len(self.items)

    def where(self, index: int) -> str:
        item = self.items[index]
        return os.fsdecode(item) if isinstance(item, str | os.PathLike) else f"image {index}"

    def content(self, index: int) -> bytes | ndarray:
        item = self.items[index]
        if isinstance(item, str | os.PathLike):
            return _file(os.fsdecode(item))
        return item if isinstance(item, bytes) else _pixels(item if isinstance(item, Image.Image) else _picture(item))


def listed(pictures: Iterable[Picture]) -> list[Any]:
    if isinstance(pictures, str | os.PathLike | bytes | Image.Image) or (isinstance(pictures, ndarray) and pictures.ndim < 4):
        raise VitrailError(f"images must be a list, got one {type(pictures).__name__}; put it in square brackets")
    items = list(pictures)
    for place, item in enumerate(items):
        if not isinstance(item, str | os.PathLike | bytes | Image.Image | ndarray):
            kind = type(item).__name__
            raise VitrailError(f"an image must be a path, bytes, a PIL image or an array, got {kind} at index {place}")
    return items


def _file(path: str) -> bytes:
    try:
        return read_file(Path(path))
    except OSError as error:
        raise BadPicture(f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a null byte in the name
        raise BadPicture(f"cannot be read: {error}") from None


def _picture(array: ndarray) -> Image.Image:
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        shape = " x ".join(map(str, array.shape))
        raise BadPicture(f"is an array of {array.dtype}, {shape}; it must be uint8, height x width, or that x 1, 3 or 4")
    return Image.fromarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array)


def _pixels(picture: Image.Image) -> ndarray:
    """Return the pixels upright and in plain RGB or grey, as if read from a file."""
    if not 0 < picture.width * picture.height <= LARGEST:
        raise BadPicture(f"has {picture.width} x {picture.height} pixels; 1 to {LARGEST:,} are allowed")
    try:
        with _one_at_a_time:
            picture.load()
            return np.asarray(upright(picture))
    except (VitrailError, MemoryError):
        raise
    except Exception as error:  # a damaged image can fail its decoder in any way
        raise BadPicture(f"cannot be decoded: {error}") from None
