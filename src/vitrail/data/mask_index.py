"""Index of the masks of a dataset: the pixels of each class, or why a mask cannot be used. Cached as a whole. n images.

A mask is read as for training, so that whatever is wrong with it is found: its file, its size, a value that is no class.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Int, Int16
from numpy import ndarray

from vitrail.data import cache
from vitrail.data.sources.dataset import IGNORED, Dataset, Progress
from vitrail.data.sources.packed_strings import join_strings
from vitrail.errors import VitrailError
from vitrail.system import available_cores

HASH_BYTES = 16  # bytes
CACHE_FORMAT = 1  # version of the cached arrays
UNREADABLE = "cannot be read"  # a transient error, such as a missing permission: never cached
CHUNK = 256  # masks between two progress reports
_indexes: WeakKeyDictionary[Dataset, "MaskIndex"] = WeakKeyDictionary()  # of datasets that cannot be cached on disk


@dataclass(frozen=True)
class MaskIndex:
    """One row per image, and one number of pixels for each class of a mask, also for ``IGNORED``; without an error it can be
    used."""

    hashes: ndarray  # n 16, uint8: of the mask
    sizes: ndarray  # n 2, int32: height, width
    errors: ndarray  # n, str
    rows: ndarray  # of each number of pixels: the row of its mask, rising
    classes: ndarray  # and its class, int16
    pixels: ndarray  # int64

    def select(self, indices: Int[ndarray, " m"]) -> "MaskIndex":
        """Return the index of some masks, each of them once."""
        place = np.full(len(self.errors), -1, np.int64)
        place[indices] = np.arange(len(indices))
        kept = place[self.rows] >= 0
        rows, classes, pixels = place[self.rows[kept]], self.classes[kept], self.pixels[kept]
        order = np.argsort(rows, kind="stable")
        columns = self.hashes[indices], self.sizes[indices], self.errors[indices]
        return MaskIndex(*columns, rows[order], classes[order], pixels[order])

    def pixels_per_class(self, num_classes: int) -> Int[ndarray, " k"]:
        counted = self.classes != IGNORED
        return np.bincount(self.classes[counted], self.pixels[counted], num_classes).astype(np.int64)

    def masks_per_class(self, num_classes: int) -> Int[ndarray, " k"]:
        """Count the masks in which each class occurs."""
        return np.bincount(self.classes[self.classes != IGNORED], minlength=num_classes)

    def classes_per_mask(self) -> Int[ndarray, " n"]:
        """Count the classes of each mask."""
        return np.bincount(self.rows[self.classes != IGNORED], minlength=len(self.errors))

    def ignored_pixels(self) -> int:
        return int(self.pixels[self.classes == IGNORED].sum())


def index_masks(dataset: Dataset, progress: Progress | None = None) -> MaskIndex:
    """Read every mask in threads."""
    cache_key = dataset.cache_key()
    if cache_key is None:
        if dataset not in _indexes:
            _indexes[dataset] = _to_mask_index(_read_all(dataset, progress))
        return _indexes[dataset]
    key = f"{CACHE_FORMAT} {hashlib.sha256(cache_key + repr(dataset.class_names).encode()).hexdigest()}"
    cached = _load(key, len(dataset))
    if cached is not None:
        return cached
    index = _to_mask_index(_read_all(dataset, progress))
    if not any(UNREADABLE in error for error in index.errors):
        _store(key, index)
    return index


@dataclass(frozen=True, slots=True)
class _Record:
    hash: bytes
    size: tuple[int, int]
    error: str
    classes: Int16[ndarray, " k"]
    pixels: ndarray


def _read_all(dataset: Dataset, progress: Progress | None) -> list[_Record]:
    records: list[_Record] = []
    with ThreadPoolExecutor(available_cores()) as pool:
        for start in range(0, len(dataset), CHUNK):
            stop = min(start + CHUNK, len(dataset))
            records += pool.map(lambda index: _read_one(dataset, index), range(start, stop))
            if progress:
                progress("checking masks", stop, len(dataset))
    return records


def _read_one(dataset: Dataset, index: int) -> _Record:
    try:
        mask = dataset.mask(index)
    except (OSError, VitrailError, MemoryError) as error:
        reason = "not enough memory for its mask" if isinstance(error, MemoryError) else str(error)
        return _Record(bytes(HASH_BYTES), (0, 0), reason, np.zeros(0, np.int16), np.zeros(0, np.int64))
    digest = hashlib.blake2b(repr(mask.shape).encode(), digest_size=HASH_BYTES)
    digest.update(np.ascontiguousarray(mask).data)
    counts = np.bincount(mask.ravel() + 1)  # the first are those of ignored pixels
    present = np.flatnonzero(counts)
    return _Record(digest.digest(), (mask.shape[0], mask.shape[1]), "", (present - 1).astype(np.int16), counts[present])


def _to_mask_index(records: Sequence[_Record]) -> MaskIndex:
    hashes = np.frombuffer(b"".join(record.hash for record in records), np.uint8).reshape(-1, HASH_BYTES)
    sizes = np.array([record.size for record in records], np.int32).reshape(-1, 2)
    errors = np.array([record.error for record in records], object)
    rows = np.repeat(np.arange(len(records)), [len(record.classes) for record in records])
    classes = np.concatenate([np.zeros(0, np.int16), *(record.classes for record in records)])
    pixels = np.concatenate([np.zeros(0, np.int64), *(record.pixels for record in records)])
    return MaskIndex(hashes, sizes, errors, rows, classes, pixels)


def _store(key: str, index: MaskIndex) -> None:
    arrays = {name: column for name, column in vars(index).items() if name != "errors"}
    cache.store_cached("mask_index", key, {**arrays, "errors": np.frombuffer(join_strings(index.errors.tolist()), np.uint8)})


def _load(key: str, count: int) -> MaskIndex | None:
    cached = cache.load_cached("mask_index", key)
    try:
        if cached is None or len(cached["hashes"]) != count:
            return None
        errors = np.array(cached.pop("errors").tobytes().decode().split("\0"), object) if count else np.zeros(0, object)
        return MaskIndex(errors=errors, **cached)
    except (KeyError, ValueError, TypeError):
        return None
