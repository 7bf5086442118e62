"""The images that the studio shows, by id: from datasets, built-in samples, and uploads.

``sample-3`` is one of the samples, ``d0-test-17`` image 17 of the first dataset's test split, ``upload-`` and a hash an upload.
No image is ever requested by a path, and no path is revealed.
"""

import io
import re
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from threading import BoundedSemaphore, Lock
from typing import Any

from numpy import ndarray
from PIL import Image

from vitrail.data.decode import as_picture, pixels
from vitrail.data.sources.shards import Shards
from vitrail.data.sources.source import Data, Files, Part, Source, label_name
from vitrail.errors import VitrailError
from vitrail.studio.opening import Opening, StillOpening
from vitrail.studio.samples import SAMPLES, Samples
from vitrail.studio.uploads import Upload, Uploads, shortened
from vitrail.train.recipe import Recipe

PAGE = 60  # images per response
SMALLEST, LARGE = 16, 1024  # pixels of a thumbnail's longer side
PATIENCE = 2.0  # seconds that the list of datasets waits for them to open
DECODED = 2  # images decoded at a time, since the largest takes hundreds of megabytes
ID = re.compile(r"sample-(\d{1,3})|d(\d{1,3})-(train|validation|test)-(\d{1,12})|upload-([0-9a-f]{16})", re.ASCII)


class Album:
    """All images, thread-safe. A run's recipe stands for its dataset, split and checked as in the run."""

    def __init__(self, data: Sequence[str | Recipe] = ()) -> None:
        self._lock, self._decoding = Lock(), BoundedSemaphore(DECODED)
        self._data: list[Opening] = []
        self._uploads = Uploads()
        for what in data:
            self.include(what)

    def include(self, what: str | Recipe) -> int:
        """Add a dataset and return its index; an equal one is reused."""
        new = Opening(what)
        with self._lock:
            for number, known in enumerate(self._data):
                if known.way == new.way:
                    return number
            self._data.append(new)
            return len(self._data) - 1

    def data(self, number: int, seconds: float | None = None) -> Data:
        """Return a dataset; raises if it cannot be opened, or not within so many seconds."""
        with self._lock:
            if not 0 <= number < len(self._data):
                raise VitrailError(f"the studio has {len(self._data)} datasets, got index {number}; the first is 0")
            known = self._data[number]
        return known.data(seconds)

    def data_id(self, data_index: int, split: str, index: int) -> str:
        return f"d{data_index}-{split}-{index}"

    def albums(self) -> list[dict[str, Any]]:
        """List all datasets with ``id``, ``title`` and ``splits``, and an ``error`` if one cannot be opened, or not yet
        (``loading``)."""
        with self._lock:
            data = list(self._data)
        for known in data:
            known.begin()
        end = time.monotonic() + PATIENCE
        found = [_album("samples", "samples", {"all": SAMPLES})]
        if len(self._uploads):
            found.append(_album("uploads", "uploads", {"all": len(self._uploads)}))
        for number, known in enumerate(data):
            try:
                counts = {name: len(part) for name, part in known.data(max(end - time.monotonic(), 0)).splits.items()}
                found.append(_album(f"d{number}", known.title, counts))
            except VitrailError as error:
                later = {"error": str(error), "loading": isinstance(error, StillOpening)}
                found.append({**_album(f"d{number}", known.title, {}), **later})
        return found

    def page(self, album: str, split: str, start: int, count: int) -> dict[str, Any]:
        """Return ``total`` and a page of ``images`` with id, title and label."""
        if start < 0 or not 1 <= count <= PAGE:
            raise VitrailError(f"a page starts at 0 or later and has 1 to {PAGE} images, got {start} and {count}")
        ids, total = self._ids(album, split, start, count)
        return {"total": total, "images": [self.told(id) for id in ids]}

    def told(self, id: str) -> dict[str, Any]:
        return {"id": id, "title": self.title(id), "label": self.label(id)}

    def content(self, id: str) -> bytes | ndarray:
        """Return the stored file, or the pixels (h w c, uint8)."""
        found = self._find(id)
        if isinstance(found, Upload):
            return found.content
        try:
            return found[0].content(found[1])
        except OSError as error:
            raise VitrailError(f"{self.title(id)} cannot be read: {error.strerror or 'the file is gone'}") from None

    def title(self, id: str) -> str:
        found = self._find(id)
        return found.title if isinstance(found, Upload) else _name(*found)

    def label(self, id: str) -> str | None:
        """Return the class name, or None if it is unknown."""
        found = self._find(id)
        return None if isinstance(found, Upload) else label_name(*found) or None

    def python(self, id: str) -> dict[str, Any]:
        """Return a Python expression for this image, and the imports that it needs."""
        found = self._find(id)
        if isinstance(found, Upload):
            return {"python": repr(found.title), "imports": []}
        if id.startswith("sample-"):
            return {"python": f"Samples().content({found[1]})", "imports": ["from vitrail.studio.samples import Samples"]}
        number, split, index = id[1:].split("-")
        return self._data[int(number)].python(split, int(index), _name(*found))

    def about(self, id: str) -> str:
        """Describe the source of an image."""
        if not id.startswith("d"):
            return "the samples" if id.startswith("sample-") else "the uploads"
        number, split, _ = id[1:].split("-")
        return f"{self._data[int(number)].title} ({split})"

    def thumbnail(self, id: str, size: int) -> bytes:
        """Return an upright PNG whose longer side is at most ``size``; small images are not enlarged."""
        if not SMALLEST <= size <= LARGE:
            raise VitrailError(f"size must be from {SMALLEST} to {LARGE} pixels, got {size}; try 160")
        content = self.content(id)
        with self._decoding:
            return _png(content, size)

    def upload(self, name: str, content: bytes) -> dict[str, Any]:
        """Decode and store an image; the oldest uploads are dropped when there are too many."""
        return self._uploads.add(name, content)

    @cached_property
    def _samples(self) -> Samples:
        return Samples()

    def _ids(self, album: str, split: str, start: int, count: int) -> tuple[list[str], int]:
        if album == "uploads" and split == "all":
            ids = self._uploads.ids()
            return ids[start : start + count], len(ids)
        if album == "samples" and split == "all":
            return [f"sample-{number}" for number in range(SAMPLES)][start : start + count], SAMPLES
        number = re.fullmatch(r"d(\d{1,3})", album, re.ASCII)
        if number is None:
            known = "samples, uploads" if not self._data else "samples, uploads, d0"
            if album in ("samples", "uploads"):
                raise VitrailError(f"{album} has no split {split!r}; try 'all'")
            raise VitrailError(f"there is no dataset {album!r}; try one of {known}")
        splits = self.data(int(number[1])).splits
        if split not in splits:
            raise VitrailError(f"the dataset has no split {split!r}; try one of {', '.join(splits)}")
        total = len(splits[split])
        return [self.data_id(int(number[1]), split, at) for at in range(start, min(start + count, total))], total

    def _find(self, id: str) -> Upload | tuple[Source, int]:
        parts = ID.fullmatch(id)
        if parts is None:
            raise VitrailError(
                f"no image has the id {id[:40]!r}; ids are like sample-0, d0-test-17 and upload-0123456789abcdef"
            )
        sample, number, split, index, upload = parts.groups()
        if upload is not None:
            return self._uploads.find(id)
        source: Source = self._samples if sample is not None else self.data(int(number)).splits[split]
        at = int(sample if sample is not None else index)
        if at >= len(source):
            last = f"the last is {id.rpartition('-')[0]}-{len(source) - 1}" if len(source) else "the split is empty"
            raise VitrailError(f"there is no image {id}; {last}")
        return source, at


def _album(id: str, title: str, counts: dict[str, int]) -> dict[str, Any]:
    return {"id": id, "title": title, "splits": [{"name": name, "count": count} for name, count in counts.items() if count]}


def _name(source: Source, index: int) -> str:
    """Return the title of an image: for a file only its name, since a browser must not see paths."""
    while isinstance(source, Part):
        index, source = int(source.indices[index]), source.whole
    if isinstance(source, Files):
        return shortened(PurePosixPath(source.paths[index]).name)
    if isinstance(source, Shards):
        return shortened(PurePosixPath(source.keys[index]).name)
    where = source.where(index)
    numbered = re.match(r"(?:image|row) \d+ of ", where)  # the rest may be a path
    return shortened(where if numbered is None else f"{numbered[0]}{Path(where[numbered.end() :]).name}")


def _within(whole: tuple[int, int], size: int) -> tuple[int, int]:
    """Return height and width, scaled down so that neither exceeds ``size``."""
    scale = min(1.0, size / max(whole))
    return max(1, round(whole[0] * scale)), max(1, round(whole[1] * scale))


def _png(content: bytes | ndarray, size: int) -> bytes:
    if isinstance(content, bytes):
        picture = Image.fromarray(pixels(content, least=lambda whole: _within(whole, size)))
    else:
        picture = as_picture(content)
    picture = picture if picture.mode in ("L", "RGB") else picture.convert("RGB")
    high, wide = _within((picture.height, picture.width), size)
    if (wide, high) != picture.size:
        picture = picture.resize((wide, high), Image.Resampling.BICUBIC, reducing_gap=3)
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()
