"""Index of every image of a dataset: hashes of its file and of its pixels, its size and format, or why it cannot be used.

Cached: a file of the same name, size and times is not read twice, nor a shard that has not changed. n images.
"""

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
from numpy import ndarray

from vitrail.data import cache
from vitrail.data.band_files import array_format
from vitrail.data.decode import decode_bands, image_format
from vitrail.data.sources.dataset import Dataset, Progress
from vitrail.errors import VitrailError
from vitrail.system import available_cores

HASH_BYTES = 16  # bytes
CACHE_FORMAT = 3  # version of the cached arrays
CHUNK = 256  # images between two progress reports
SMALL_IMAGE_BYTES = 2**14  # bytes: smaller images in memory are hashed faster without threads
_indexes: WeakKeyDictionary[Dataset, "ImageIndex"] = WeakKeyDictionary()  # of datasets that cannot be cached on disk
UNREADABLE = "cannot be read"  # a transient error, such as a missing permission: never cached


@dataclass(frozen=True)
class ImageIndex:
    """One row per image; an image without an error can be used."""

    file_hashes: ndarray  # n 16, uint8: of the encoded file
    pixel_hashes: ndarray  # n 16, uint8: of the decoded pixels, whatever the format and metadata
    sizes: ndarray  # n 2, int32: height, width
    image_formats: ndarray  # n, str: "JPEG RGB"
    bands: ndarray  # n, int16: their number; 0 for an 8-bit grey or RGB image
    errors: ndarray  # n, str

    @property
    def good(self) -> ndarray:
        return np.flatnonzero(self.errors == "")

    @property
    def bad(self) -> ndarray:
        return np.flatnonzero(self.errors != "")

    def file_keys(self) -> ndarray:
        """Return the file hashes as one item each, to sort and compare."""
        return _as_items(self.file_hashes)

    def pixel_keys(self) -> ndarray:
        """Return the pixel hashes as one item each, to sort and compare."""
        return _as_items(self.pixel_hashes)

    def select(self, indices: ndarray) -> "ImageIndex":
        return ImageIndex(*(column[indices] for column in vars(self).values()))


def index_images(dataset: Dataset, progress: Progress | None = None) -> ImageIndex:
    """Read and decode every image in threads; cached rows are reused."""
    datasets, positions = dataset.flatten()
    columns = zip(*(vars(_index_stored(each, progress)).values() for each in datasets), strict=True)
    return ImageIndex(*map(np.concatenate, columns)).select(positions)


def _index_stored(dataset: Dataset, progress: Progress | None) -> ImageIndex:
    indices = range(len(dataset))
    if (files := dataset.files()) is not None:
        return _index_files(dataset, *files, progress)
    if (shape := dataset.array_shape) is not None and math.prod(shape) <= SMALL_IMAGE_BYTES:
        return _to_image_index([_index_image(dataset, index) for index in indices])
    if shape is not None or (cache_key := dataset.cache_key()) is None:
        if dataset not in _indexes:
            _indexes[dataset] = _to_image_index(list(_index_in_threads(dataset, indices, progress)))
        return _indexes[dataset]
    key = f"{CACHE_FORMAT} {hashlib.sha256(cache_key).hexdigest()}"
    cached = _load_records(key)
    if cached is None or len(cached[1]) != len(dataset):
        rows = list(_index_in_threads(dataset, indices, progress))
        if not any(row.error.startswith(UNREADABLE) for row in rows):
            _store_records(key, [""] * len(rows), np.zeros((len(rows), 3), np.int64), rows)
        return _to_image_index(rows)
    return _to_image_index(cached[1])


@dataclass(frozen=True, slots=True)
class ImageRecord:
    file_hash: bytes
    pixel_hash: bytes
    size: tuple[int, int]
    image_format: str
    bands: int
    error: str


def _index_in_threads(dataset: Dataset, indices: Sequence[int], progress: Progress | None) -> Iterator[ImageRecord]:
    with ThreadPoolExecutor(available_cores()) as pool:
        for start in range(0, len(indices), CHUNK):
            yield from pool.map(lambda index: _index_image(dataset, index), indices[start : start + CHUNK])
            if progress:
                progress("checking", min(start + CHUNK, len(indices)), len(indices))


def _index_image(dataset: Dataset, index: int) -> ImageRecord:
    try:
        content = dataset.read(index)
    except (OSError, VitrailError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return ImageRecord(bytes(HASH_BYTES), bytes(HASH_BYTES), (0, 0), "", 0, f"{UNREADABLE}: {reason}")
    if isinstance(content, ndarray):
        pixel_hash = _hash_pixels(content)
        bands = array_format(content)
        kind, count = ("pixels", 0) if bands is None else (str(bands), bands.bands)
        return ImageRecord(pixel_hash, pixel_hash, (content.shape[0], content.shape[1]), kind, count, "")
    file_hash = hashlib.blake2b(content, digest_size=HASH_BYTES).digest()
    try:
        image = decode_bands(content)
        count = 0 if array_format(image) is None else image.shape[2]
        return ImageRecord(file_hash, _hash_pixels(image), (image.shape[0], image.shape[1]), image_format(content), count, "")
    except MemoryError:
        return ImageRecord(file_hash, file_hash, (0, 0), "", 0, f"{UNREADABLE}: not enough memory")
    except VitrailError as error:
        return ImageRecord(file_hash, file_hash, (0, 0), "", 0, str(error).removeprefix("the image "))


def _hash_pixels(image: ndarray) -> bytes:
    digest = hashlib.blake2b(str(image.shape).encode(), digest_size=HASH_BYTES)
    digest.update(np.ascontiguousarray(image).data)
    return digest.digest()


def _as_items(hashes: ndarray) -> ndarray:
    return np.ascontiguousarray(hashes).view(f"V{HASH_BYTES}").reshape(-1)


def _to_image_index(rows: Sequence[ImageRecord]) -> ImageIndex:
    def hashes(column: str) -> ndarray:
        return np.frombuffer(b"".join(getattr(row, column) for row in rows), np.uint8).reshape(-1, HASH_BYTES)

    sizes: ndarray = np.array([row.size for row in rows], np.int32).reshape(-1, 2)
    # object arrays: one long reason must not make every row as long
    image_formats, errors = (np.array([getattr(row, column) for row in rows], object) for column in ("image_format", "error"))
    bands: ndarray = np.array([row.bands for row in rows], np.int16)
    return ImageIndex(hashes("file_hash"), hashes("pixel_hash"), sizes, image_formats, bands, errors)


def _index_files(dataset: Dataset, root: Path, paths: Sequence[str], progress: Progress | None) -> ImageIndex:
    stamps = np.array([_file_stamp(root / path) for path in paths], np.int64).reshape(-1, 3)
    key = f"{CACHE_FORMAT} {root.resolve()}"
    cached = _load_file_records(key)
    rows = [cached.get(stamped) for stamped in _with_stamps(paths, stamps)]
    missing = [index for index, row in enumerate(rows) if row is None]
    try:
        for index, row in zip(missing, _index_in_threads(dataset, missing, progress), strict=False):
            rows[index] = row
    finally:  # what was read before an interruption is not read twice
        if missing:
            _store_file_records(key, root, paths, stamps, rows, cached)
    return _to_image_index([row for row in rows if row is not None])


def _file_stamp(path: Path) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns, status.st_ctime_ns
    except OSError:
        return -1, -1, -1


StampedPath = tuple[str, tuple[int, ...]]
CachedRecords = dict[StampedPath, ImageRecord]


def _with_stamps(paths: Sequence[str], stamps: ndarray) -> list[StampedPath]:
    return [(path, tuple(stamp)) for path, stamp in zip(paths, stamps.tolist(), strict=True)]


def _store_file_records(
    key: str, root: Path, paths: Sequence[str], stamps: ndarray, rows: Sequence[ImageRecord | None], cached: CachedRecords
) -> None:
    """Store the rows, together with those cached for other files of the same folder, which another table may list."""
    listed = set(paths)
    records = {stamped: row for stamped, row in cached.items() if stamped[0] not in listed and (root / stamped[0]).exists()}
    for stamped, row in zip(_with_stamps(paths, stamps), rows, strict=True):
        if row is not None and not row.error.startswith(UNREADABLE):
            records[stamped] = row
    _store_records(
        key, [path for path, _ in records], np.array([stamp for _, stamp in records], np.int64), list(records.values())
    )


def _load_file_records(key: str) -> CachedRecords:
    cached = _load_records(key)
    if cached is None:
        return {}
    names, rows, stamps = cached
    return dict(zip(_with_stamps(names, stamps), rows, strict=True))


def _store_records(key: str, names: list[str], stamps: ndarray, rows: list[ImageRecord]) -> None:
    table = _to_image_index(rows)
    kinds, kind_of = np.unique(table.image_formats.astype(str), return_inverse=True)
    arrays = {
        "names": _join_strings(names),
        "stamps": stamps.reshape(-1, 3),
        "hashes": table.file_hashes,
        "pixels": table.pixel_hashes,
        "sizes": table.sizes,
        "kinds": kinds,
        "kind_of": kind_of.astype(np.int16),
        "bands": table.bands,
        "bad": table.bad,
        "reasons": _join_strings(table.errors[table.bad].tolist()),
    }
    cache.store_cached("image_index", key, arrays)


def _load_records(key: str) -> tuple[list[str], list[ImageRecord], ndarray] | None:
    cached = cache.load_cached("image_index", key)
    try:
        if not cached or not len(cached["kind_of"]):
            return None
        errors = [""] * len(cached["kind_of"])
        for index, reason in zip(cached["bad"].tolist(), _split_strings(cached["reasons"]), strict=bool(len(cached["bad"]))):
            errors[index] = reason
        kinds = cached["kinds"][cached["kind_of"]].tolist()
        sizes = [(height, width) for height, width in cached["sizes"].tolist()]
        hashes, pixels = ([row.tobytes() for row in cached[name]] for name in ("hashes", "pixels"))
        rows = [ImageRecord(*row) for row in zip(hashes, pixels, sizes, kinds, cached["bands"].tolist(), errors, strict=True)]
        return _split_strings(cached["names"]), rows, cached["stamps"]
    except (KeyError, ValueError, IndexError):
        return None


def _join_strings(texts: list[str]) -> ndarray:
    return np.frombuffer(b"\0".join(os.fsencode(text) for text in texts), np.uint8)


def _split_strings(buffer: ndarray) -> list[str]:
    return [os.fsdecode(text) for text in buffer.tobytes().split(b"\0")]
