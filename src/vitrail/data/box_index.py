"""Index of the boxes of a dataset: every object of every image, or why those of an image cannot be used. Cached as a whole.
n images, m objects of all images.

Objects are read as for training, so that whatever is wrong with them is found.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from vitrail.data import cache
from vitrail.data.sources.dataset import Dataset, Progress
from vitrail.data.sources.objects import NO_OBJECTS, Objects, concat_objects
from vitrail.data.sources.packed_strings import join_strings
from vitrail.errors import VitrailError
from vitrail.system import available_cores

HASH_BYTES = 16  # bytes
CACHE_FORMAT = 1  # version of the cached arrays
UNREADABLE = "cannot be read"  # a transient error, such as a missing permission: never cached
CHUNK = 256  # images between two progress reports
_indexes: WeakKeyDictionary[Dataset, "BoxIndex"] = WeakKeyDictionary()  # of datasets that cannot be cached on disk


@dataclass(frozen=True)
class BoxIndex:
    """The objects of all images, one image after the other; without an error those of an image can be used."""

    errors: ndarray  # n, str
    counts: Int[ndarray, " n"]  # objects of each image
    objects: Objects  # m

    @cached_property
    def images(self) -> Int[ndarray, " m"]:
        """The image of each object."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def starts(self) -> ndarray:
        """n + 1: the first object of each image, and the number of all."""
        return np.append(0, np.cumsum(self.counts))

    def of_image(self, index: int) -> Objects:
        return self.objects[np.arange(self.starts[index], self.starts[index + 1])]

    def select(self, indices: Int[ndarray, " k"]) -> "BoxIndex":
        """Return the index of some images, in any order."""
        ranges = [np.arange(self.starts[index], self.starts[index + 1]) for index in indices.tolist()]
        objects = self.objects[np.concatenate([np.zeros(0, np.int64), *ranges])]
        return BoxIndex(self.errors[indices], self.counts[indices], objects)

    def hashes(self) -> ndarray:
        """Return a hash of the objects of each image, n 16."""
        rows = np.column_stack(list(vars(self.objects).values())).astype("<f8")
        parts = (rows[start:stop] for start, stop in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True))
        digests = b"".join(hashlib.blake2b(part.tobytes(), digest_size=HASH_BYTES).digest() for part in parts)
        return np.frombuffer(digests, np.uint8).reshape(-1, HASH_BYTES)


def index_boxes(dataset: Dataset, progress: Progress | None = None) -> BoxIndex:
    """Read the objects of every image in threads."""
    cache_key = dataset.cache_key()
    if cache_key is None:
        if dataset not in _indexes:
            _indexes[dataset] = _read_all(dataset, progress)
        return _indexes[dataset]
    key = f"{CACHE_FORMAT} {hashlib.sha256(cache_key + repr(dataset.class_names).encode()).hexdigest()}"
    cached = _load(key, len(dataset))
    if cached is not None:
        return cached
    index = _read_all(dataset, progress)
    if not any(UNREADABLE in error for error in index.errors):
        _store(key, index)
    return index


def _read_all(dataset: Dataset, progress: Progress | None) -> BoxIndex:
    rows: list[tuple[Objects, str]] = []
    with ThreadPoolExecutor(available_cores()) as pool:
        for start in range(0, len(dataset), CHUNK):
            stop = min(start + CHUNK, len(dataset))
            rows += pool.map(lambda index: _read_one(dataset, index), range(start, stop))
            if progress:
                progress("checking boxes", stop, len(dataset))
    errors = np.array([error for _, error in rows], object)
    counts = np.array([len(objects) for objects, _ in rows], np.int64)
    return BoxIndex(errors, counts, concat_objects([objects for objects, _ in rows]))


def _read_one(dataset: Dataset, index: int) -> tuple[Objects, str]:
    try:
        return dataset.objects(index), ""
    except (OSError, VitrailError) as error:
        return NO_OBJECTS, str(error)


def _store(key: str, index: BoxIndex) -> None:
    errors = np.frombuffer(join_strings(index.errors.tolist()), np.uint8)
    cache.store_cached("box_index", key, {"errors": errors, "counts": index.counts, **vars(index.objects)})


def _load(key: str, count: int) -> BoxIndex | None:
    cached = cache.load_cached("box_index", key)
    try:
        if cached is None or len(cached["counts"]) != count:
            return None
        errors = np.array(cached.pop("errors").tobytes().decode().split("\0"), object) if count else np.zeros(0, object)
        counts = cached.pop("counts")
        return BoxIndex(errors, counts, Objects(**cached))
    except (KeyError, ValueError, TypeError):
        return None
