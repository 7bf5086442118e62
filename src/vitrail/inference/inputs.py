"""Images to run a model on: one or several files, bytes, PIL images or arrays, or a dataset, as an unlabelled dataset."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from vitrail.data.sources.dataset import Dataset, DatasetSplits
from vitrail.data.sources.image_like import describe_value, is_image_like, is_tensor, read_image_like
from vitrail.data.sources.user_dataset import UserDataset
from vitrail.errors import VitrailError, first_line

EXPECTED = "images must be one image, a list of them or a dataset"


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
        return read_image_like(self.items[index])


def as_images(images: Any) -> Dataset:
    """Return images as a dataset: one of them, any number, or a dataset, whose targets are left aside."""
    if isinstance(images, Dataset):
        return images
    if isinstance(images, DatasetSplits):
        raise VitrailError(f"images must be those of one split, got all of {images.name}; try its .test")
    if is_image_like(images) and getattr(images, "ndim", 0) < 4:
        return ImageList([images])
    if isinstance(images, Mapping):
        raise VitrailError(f"{EXPECTED}, got {describe_value(images)}; try list(images.values())")
    is_container = isinstance(images, list | tuple | ndarray) or is_tensor(images)
    if not is_container and hasattr(images, "__len__") and hasattr(images, "__getitem__") and len(images):
        return UserDataset(images, np.full(len(images), -1), pairs=_is_pair(_first_item(images)))
    if not hasattr(images, "__iter__"):
        raise VitrailError(f"{EXPECTED}, got {describe_value(images)}")
    items = [item[0] if _is_pair(item) else item for item in images]
    for index, item in enumerate(items):
        if not is_image_like(item):
            raise VitrailError(
                f"an image must be a path, bytes, a PIL image or an array, got {describe_value(item)} at index {index}"
            )
    return ImageList(items)


def _first_item(images: Any) -> Any:
    try:
        return images[0]
    except Exception as error:  # code of the user, which can raise anything
        problem = f"whose item 0 cannot be read ({type(error).__name__}: {first_line(error)})"
        raise VitrailError(f"{EXPECTED}, got {describe_value(images)}, {problem}") from error


def _is_pair(item: Any) -> bool:
    return isinstance(item, tuple | list) and len(item) == 2 and is_image_like(item[0])
