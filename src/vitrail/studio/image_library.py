"""The images that the studio shows, by id: from datasets, built-in samples, and uploads.

``sample-3`` is one of the samples, ``d0-test-17`` image 17 of the first dataset's test split, ``upload-`` and a hash an upload.
No image is ever requested by a path, and no path is revealed.
"""

import io
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import BoundedSemaphore, Lock
from typing import Any

import numpy as np
from numpy import ndarray
from PIL import Image

from vitrail.data.decode import ImageSize, decode_array, to_pil
from vitrail.data.sources.dataset import Dataset, DatasetSplits, label_name
from vitrail.data.sources.objects import Objects
from vitrail.data.transforms import upright_size
from vitrail.errors import VitrailError
from vitrail.plot.box_image import draw_boxes
from vitrail.recipes.recipe import Recipe
from vitrail.studio.lazy_dataset import DatasetLoading, LazyDataset
from vitrail.studio.sample_images import NUM_SAMPLES, Samples
from vitrail.studio.uploads import Upload, Uploads, printable_title

MAX_PAGE_SIZE = 60  # images per response
MIN_THUMBNAIL_SIZE, MAX_THUMBNAIL_SIZE = 16, 1024  # pixels of a thumbnail's longer side
DATASET_LIST_TIMEOUT = 2.0  # seconds that the list of datasets waits for them to open
MAX_CONCURRENT_DECODES = 2  # images decoded at a time, since the largest takes hundreds of megabytes
IMAGE_ID = re.compile(r"sample-(\d{1,3})|d(\d{1,3})-(train|validation|test)-(\d{1,12})|upload-([0-9a-f]{16})", re.ASCII)


@dataclass(frozen=True)
class LabelledObjects:
    """The objects of an image that a dataset has, with the names of its classes and the height and width of the image."""

    objects: Objects
    class_names: Sequence[str]
    size: ImageSize


class ImageLibrary:
    """All images, thread-safe. A run's recipe stands for its dataset, split and checked as in the run."""

    def __init__(self, datasets: Sequence[str | Recipe] = ()) -> None:
        self._lock, self._decoding = Lock(), BoundedSemaphore(MAX_CONCURRENT_DECODES)
        self._datasets: list[LazyDataset] = []
        self._uploads = Uploads()
        for dataset in datasets:
            self.add_dataset(dataset)

    def add_dataset(self, name_or_recipe: str | Recipe) -> int:
        """Add a dataset and return its index; an equal one is reused."""
        dataset = LazyDataset(name_or_recipe)
        with self._lock:
            for index, existing in enumerate(self._datasets):
                if existing.key == dataset.key:
                    return index
            self._datasets.append(dataset)
            return len(self._datasets) - 1

    def get_dataset(self, index: int, timeout: float | None = None) -> DatasetSplits:
        """Return a dataset; raises if it cannot be opened, or not within so many seconds."""
        with self._lock:
            if not 0 <= index < len(self._datasets):
                raise VitrailError(f"the studio has {len(self._datasets)} datasets, got index {index}; the first is 0")
            dataset = self._datasets[index]
        return dataset.wait(timeout)

    def image_id(self, dataset_index: int, split: str, index: int) -> str:
        return f"d{dataset_index}-{split}-{index}"

    def list_datasets(self) -> list[dict[str, Any]]:
        """List all datasets with ``id``, ``title`` and ``splits``, and an ``error`` if one cannot be opened, or not yet
        (``loading``)."""
        with self._lock:
            datasets = list(self._datasets)
        for dataset in datasets:
            dataset.start()
        end = time.monotonic() + DATASET_LIST_TIMEOUT
        entries = [_dataset_entry("samples", "samples", {"all": NUM_SAMPLES})]
        if len(self._uploads):
            entries.append(_dataset_entry("uploads", "uploads", {"all": len(self._uploads)}))
        for index, dataset in enumerate(datasets):
            try:
                counts = {name: len(part) for name, part in dataset.wait(max(end - time.monotonic(), 0)).splits.items()}
                entries.append(_dataset_entry(f"d{index}", dataset.title, counts))
            except VitrailError as error:
                failure = {"error": str(error), "loading": isinstance(error, DatasetLoading)}
                entries.append({**_dataset_entry(f"d{index}", dataset.title, {}), **failure})
        return entries

    def page(self, dataset: str, split: str, start: int, count: int) -> dict[str, Any]:
        """Return ``total`` and a page of ``images`` with id, title and label."""
        if start < 0 or not 1 <= count <= MAX_PAGE_SIZE:
            raise VitrailError(f"a page starts at 0 or later and has 1 to {MAX_PAGE_SIZE} images, got {start} and {count}")
        ids, total = self._page_ids(dataset, split, start, count)
        return {"total": total, "images": [self.describe(id) for id in ids]}

    def describe(self, id: str) -> dict[str, Any]:
        return {"id": id, "title": self.title(id), "label": self.label(id)}

    def read(self, id: str) -> bytes | ndarray:
        """Return the stored file, or the pixels (h w c, uint8)."""
        location = self._locate(id)
        if isinstance(location, Upload):
            return location.content
        try:
            return location[0].read(location[1])
        except OSError as error:
            raise VitrailError(f"{self.title(id)} cannot be read: {error.strerror or 'the file is gone'}") from None

    def title(self, id: str) -> str:
        location = self._locate(id)
        return location.title if isinstance(location, Upload) else printable_title(location[0].title(location[1]))

    def label(self, id: str) -> str | None:
        """Return the class name; without one, how many objects there are; None if nobody knows."""
        location = self._locate(id)
        if isinstance(location, Upload):
            return None
        return label_name(*location) or (_count_objects(*location) if location[0].box_names else None)

    def objects(self, id: str) -> LabelledObjects | None:
        """Return the objects of an image; None if its dataset has no boxes, or those of the image cannot be read."""
        location = self._locate(id)
        if isinstance(location, Upload) or not location[0].box_names:
            return None
        dataset, position = location
        try:
            return LabelledObjects(dataset.objects(position), dataset.box_names, upright_size(dataset, position))
        except (VitrailError, OSError):
            return None

    def python_code(self, id: str) -> dict[str, Any]:
        """Return a Python expression for this image, and the imports that it needs."""
        location = self._locate(id)
        if isinstance(location, Upload):
            return {"python": repr(location.title), "imports": []}
        if id.startswith("sample-"):
            return {"python": f"Samples().read({location[1]})", "imports": ["from vitrail.studio.sample_images import Samples"]}
        dataset_index, split, index = id[1:].split("-")
        return self._datasets[int(dataset_index)].python_code(split, int(index), self.title(id))

    def describe_source(self, id: str) -> str:
        """Describe the source of an image."""
        if not id.startswith("d"):
            return "the samples" if id.startswith("sample-") else "the uploads"
        dataset_index, split, _ = id[1:].split("-")
        return f"{self._datasets[int(dataset_index)].title} ({split})"

    def thumbnail(self, id: str, size: int, with_boxes: bool = False) -> bytes:
        """Return an upright PNG whose longer side is at most ``size``; small images are not enlarged. ``with_boxes``: draw the
        objects, if the dataset has their boxes."""
        if not MIN_THUMBNAIL_SIZE <= size <= MAX_THUMBNAIL_SIZE:
            raise VitrailError(f"size must be from {MIN_THUMBNAIL_SIZE} to {MAX_THUMBNAIL_SIZE} pixels, got {size}; try 160")
        content = self.read(id)
        labelled = self.objects(id) if with_boxes else None
        with self._decoding:
            return _encode_png(content, size, labelled)

    def upload(self, name: str, content: bytes) -> dict[str, Any]:
        """Decode and store an image; the oldest uploads are dropped when there are too many."""
        return self._uploads.add(name, content)

    @cached_property
    def _samples(self) -> Samples:
        return Samples()

    def _page_ids(self, dataset: str, split: str, start: int, count: int) -> tuple[list[str], int]:
        if dataset == "uploads" and split == "all":
            ids = self._uploads.ids()
            return ids[start : start + count], len(ids)
        if dataset == "samples" and split == "all":
            return [f"sample-{index}" for index in range(NUM_SAMPLES)][start : start + count], NUM_SAMPLES
        match = re.fullmatch(r"d(\d{1,3})", dataset, re.ASCII)
        if match is None:
            names = "samples, uploads" if not self._datasets else "samples, uploads, d0"
            if dataset in ("samples", "uploads"):
                raise VitrailError(f"{dataset} has no split {split!r}; try 'all'")
            raise VitrailError(f"there is no dataset {dataset!r}; try one of {names}")
        splits = self.get_dataset(int(match[1])).splits
        if split not in splits:
            raise VitrailError(f"the dataset has no split {split!r}; try one of {', '.join(splits)}")
        total = len(splits[split])
        return [self.image_id(int(match[1]), split, index) for index in range(start, min(start + count, total))], total

    def _locate(self, id: str) -> Upload | tuple[Dataset, int]:
        match = IMAGE_ID.fullmatch(id)
        if match is None:
            raise VitrailError(
                f"no image has the id {id[:40]!r}; ids are like sample-0, d0-test-17 and upload-0123456789abcdef"
            )
        sample, dataset_index, split, index, upload = match.groups()
        if upload is not None:
            return self._uploads.find(id)
        dataset: Dataset = self._samples if sample is not None else self.get_dataset(int(dataset_index)).splits[split]
        position = int(sample if sample is not None else index)
        if position >= len(dataset):
            last = f"the last is {id.rpartition('-')[0]}-{len(dataset) - 1}" if len(dataset) else "the split is empty"
            raise VitrailError(f"there is no image {id}; {last}")
        return dataset, position


def _dataset_entry(id: str, title: str, counts: dict[str, int]) -> dict[str, Any]:
    return {"id": id, "title": title, "splits": [{"name": name, "count": count} for name, count in counts.items() if count]}


def _scale_to_fit(original: tuple[int, int], size: int) -> tuple[int, int]:
    """Return height and width, scaled down so that neither exceeds ``size``."""
    scale = min(1.0, size / max(original))
    return max(1, round(original[0] * scale)), max(1, round(original[1] * scale))


def _count_objects(dataset: Dataset, index: int) -> str | None:
    """Return how many objects an image has; None if they cannot be read."""
    try:
        count = len(dataset.objects(index))
    except (VitrailError, OSError):
        return None
    return f"{count} object{'' if count == 1 else 's'}"


def _encode_png(content: bytes | ndarray, size: int, labelled: LabelledObjects | None = None) -> bytes:
    if isinstance(content, bytes):
        image = Image.fromarray(decode_array(content, min_size=lambda original: _scale_to_fit(original, size)))
    else:
        image = to_pil(content)
    image = image if image.mode in ("L", "RGB") else image.convert("RGB")
    height, width = _scale_to_fit((image.height, image.width), size)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3)
    if labelled is not None:
        scale = np.array((width, height, width, height)) / np.array(labelled.size[::-1] * 2)
        image = draw_boxes(image, scale * labelled.objects.boxes, labelled.objects.labels)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
