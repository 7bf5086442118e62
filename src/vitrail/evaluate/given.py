"""Pictures that somebody hands in (files, their bytes, PIL pictures, arrays) as a source like any other, without labels."""

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
_one_at_a_time = Lock()  # the same PIL picture may be given twice, and to be loaded is to be changed


@dataclass(frozen=True)
class Given:
    """By number; what cannot be used says so when it is read."""

    items: Sequence[Any]
    names: tuple[str, ...] = ()

    @cached_property
    def labels(self) -> ndarray:
        return np.broadcast_to(np.int64(-1), len(self.items))

    def __len__(self) -> int:
        return len(self.items)

    def where(self, index: int) -> str:
        item = self.items[index]
        return os.fsdecode(item) if isinstance(item, str | os.PathLike) else f"picture {index}"

    def content(self, index: int) -> bytes | ndarray:
        item = self.items[index]
        if isinstance(item, str | os.PathLike):
            return _file(os.fsdecode(item))
        return item if isinstance(item, bytes) else _pixels(item if isinstance(item, Image.Image) else _picture(item))


def listed(pictures: Iterable[Picture]) -> list[Any]:
    if isinstance(pictures, str | os.PathLike | bytes | Image.Image) or (isinstance(pictures, ndarray) and pictures.ndim < 4):
        raise VitrailError(f"pictures must be a list of them, got one {type(pictures).__name__}; put it in square brackets")
    items = list(pictures)
    for place, item in enumerate(items):
        if not isinstance(item, str | os.PathLike | bytes | Image.Image | ndarray):
            kind = type(item).__name__
            raise VitrailError(f"a picture must be a path, bytes, a PIL picture or an array, got {kind} as number {place}")
    return items


def _file(path: str) -> bytes:
    try:
        return read_file(Path(path))
    except OSError as error:
        raise BadPicture(f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a name with a zero in it
        raise BadPicture(f"cannot be read: {error}") from None


def _picture(array: ndarray) -> Image.Image:
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        shape = " x ".join(map(str, array.shape))
        raise BadPicture(f"is an array of {array.dtype}, {shape}; it must be uint8, height x width, or that x 1, 3 or 4")
    return Image.fromarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array)


def _pixels(picture: Image.Image) -> ndarray:
    """Upright and plain, as a file would be."""
    if not 0 < picture.width * picture.height <= LARGEST:
        raise BadPicture(f"has {picture.width} x {picture.height} pixels; 1 to {LARGEST:,} are allowed")
    try:
        with _one_at_a_time:
            picture.load()
            return np.asarray(upright(picture))
    except (VitrailError, MemoryError):
        raise
    except Exception as error:  # a damaged picture can fail its decoder in any way
        raise BadPicture(f"is no picture that can be read: {error}") from None
