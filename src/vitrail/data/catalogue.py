"""Index of every image of a dataset: hashes of its file and of its pixels, its size and format, or why it cannot be used.

Cached: a file of the same name, size and times is not read twice, nor a shard that has not changed. n images.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from vitrail.data import cache
from vitrail.data.decode import decode, kind
from vitrail.data.sources.identity import identity
from vitrail.data.sources.source import Arrays, Files, Part, Progress, Source
from vitrail.data.threads import cores
from vitrail.errors import VitrailError

HASH = 16  # bytes
FORMAT = 2  # version of the cached arrays
CHUNK = 256  # images between two progress reports
LITTLE = 2**14  # bytes: smaller images in memory are hashed faster without threads
UNREADABLE = "cannot be read"  # a transient error, such as a missing permission: never cached


@dataclass(frozen=True)
class Catalogue:
    """One row per image; an image without an error can be used."""

    hashes: ndarray  # n 16, uint8: of the encoded file
    pixels: ndarray  # n 16, uint8: of the decoded pixels, whatever the format and metadata
    sizes: ndarray  # n 2, int32: height, width
    kinds: ndarray  # n, str: "JPEG RGB"
    problems: ndarray  # n, str

    @property
    def bad(self) -> ndarray:
        return np.flatnonzero(self.problems != "")

    def keys(self) -> ndarray:
        """Return the file hashes as one item each, to sort and compare."""
        return _items(self.hashes)

    def looks(self) -> ndarray:
        """Return the pixel hashes as one item each, to sort and compare."""
        return _items(self.pixels)

    def rows(self, chosen: ndarray) -> "Catalogue":
        return Catalogue(*(column[chosen] for column in vars(self).values()))


def examine(source: Source, progress: Progress | None = None, workers: int | None = None) -> Catalogue:
    """Read and decode every image in threads; cached rows are reused."""
    if isinstance(source, Part):
        return examine(source.whole, progress, workers).rows(source.indices)
    if isinstance(source, Files):
        return _of_files(source, progress, workers)
    if isinstance(source, Arrays):
        everything = range(len(source))
        if not everything or source.images[0].nbytes <= LITTLE:
            return _table([_row(source, index) for index in everything])
        return _table(list(_look(source, everything, progress, workers)))
    key = f"{FORMAT} {hashlib.sha256(identity(source)).hexdigest()}"
    known = _recall(key)
    if known is None or len(known[1]) != len(source):
        rows = list(_look(source, range(len(source)), progress, workers))
        if not any(row.problem.startswith(UNREADABLE) for row in rows):
            _remember(key, [""] * len(rows), np.zeros((len(rows), 3), np.int64), rows)
        return _table(rows)
    return _table(known[1])


@dataclass(frozen=True, slots=True)
class Row:
    hash: bytes
    pixels: bytes
    size: tuple[int, int]
    kind: str
    problem: str


def _look(source: Source, indices: Sequence[int], progress: Progress | None, workers: int | None) -> Iterator[Row]:
    with ThreadPoolExecutor(workers or cores()) as pool:
        for start in range(0, len(indices), CHUNK):
            yield from pool.map(lambda index: _row(source, index), indices[start : start + CHUNK])
            if progress:
                progress("checking", min(start + CHUNK, len(indices)), len(indices))


def _row(source: Source, index: int) -> Row:
    try:
        content = source.content(index)
    except (OSError, VitrailError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Row(bytes(HASH), bytes(HASH), (0, 0), "", f"{UNREADABLE}: {reason}")
    if isinstance(content, ndarray):
        seen = _of_pixels(content)
        return Row(seen, seen, (content.shape[0], content.shape[1]), "pixels", "")
    of_file = hashlib.blake2b(content, digest_size=HASH).digest()
    try:
        picture = np.asarray(decode(content))
        return Row(of_file, _of_pixels(picture), (picture.shape[0], picture.shape[1]), kind(content), "")
    except MemoryError:
        return Row(of_file, of_file, (0, 0), "", f"{UNREADABLE}: not enough memory")
    except VitrailError as error:
        return Row(of_file, of_file, (0, 0), "", str(error).removeprefix("the image "))


def _of_pixels(picture: ndarray) -> bytes:
    digest = hashlib.blake2b(str(picture.shape).encode(), digest_size=HASH)
    digest.update(np.ascontiguousarray(picture).data)
    return digest.digest()


def _items(hashes: ndarray) -> ndarray:
    return np.ascontiguousarray(hashes).view(f"V{HASH}").reshape(-1)


def _table(rows: Sequence[Row]) -> Catalogue:
    def hashes(column: str) -> ndarray:
        return np.frombuffer(b"".join(getattr(row, column) for row in rows), np.uint8).reshape(-1, HASH)

    sizes: ndarray = np.array([row.size for row in rows], np.int32).reshape(-1, 2)
    # object arrays: one long reason must not make every row as long
    kinds, problems = (np.array([getattr(row, column) for row in rows], object) for column in ("kind", "problem"))
    return Catalogue(hashes("hash"), hashes("pixels"), sizes, kinds, problems)


def _of_files(files: Files, progress: Progress | None, workers: int | None) -> Catalogue:
    stamps = np.array([_stamp(files.where(index)) for index in range(len(files))], np.int64).reshape(-1, 3)
    key = f"{FORMAT} {files.root.resolve()}"
    known = _recalled_files(key)
    rows = [known.get(stamped) for stamped in _stamped(files.paths, stamps)]
    missing = [index for index, row in enumerate(rows) if row is None]
    try:
        for index, row in zip(missing, _look(files, missing, progress, workers), strict=False):
            rows[index] = row
    finally:  # what was read before an interruption is not read twice
        if missing:
            _remember_files(key, files, stamps, rows, known)
    return _table([row for row in rows if row is not None])


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        known = os.stat(path)
        return known.st_size, known.st_mtime_ns, known.st_ctime_ns
    except OSError:
        return -1, -1, -1


Stamped = tuple[str, tuple[int, ...]]
Known = dict[Stamped, Row]


def _stamped(paths: Sequence[str], stamps: ndarray) -> list[Stamped]:
    return [(path, tuple(stamp)) for path, stamp in zip(paths, stamps.tolist(), strict=True)]


def _remember_files(key: str, files: Files, stamps: ndarray, rows: Sequence[Row | None], known: Known) -> None:
    """Store the rows, together with those cached for other files of the same folder, which another table may list."""
    now = set(files.paths)
    kept = {stamped: row for stamped, row in known.items() if stamped[0] not in now and (files.root / stamped[0]).exists()}
    for stamped, row in zip(_stamped(files.paths, stamps), rows, strict=True):
        if row is not None and not row.problem.startswith(UNREADABLE):
            kept[stamped] = row
    _remember(key, [path for path, _ in kept], np.array([stamp for _, stamp in kept], np.int64), list(kept.values()))


def _recalled_files(key: str) -> Known:
    known = _recall(key)
    if known is None:
        return {}
    names, rows, stamps = known
    return dict(zip(_stamped(names, stamps), rows, strict=True))


def _remember(key: str, names: list[str], stamps: ndarray, rows: list[Row]) -> None:
    table = _table(rows)
    kinds, kind_of = np.unique(table.kinds.astype(str), return_inverse=True)
    arrays = {
        "names": _joined(names),
        "stamps": stamps.reshape(-1, 3),
        "hashes": table.hashes,
        "pixels": table.pixels,
        "sizes": table.sizes,
        "kinds": kinds,
        "kind_of": kind_of.astype(np.int16),
        "bad": table.bad,
        "reasons": _joined(table.problems[table.bad].tolist()),
    }
    cache.remember("image_index", key, arrays)


def _recall(key: str) -> tuple[list[str], list[Row], ndarray] | None:
    known = cache.recall("image_index", key)
    try:
        if not known or not len(known["kind_of"]):
            return None
        problems = [""] * len(known["kind_of"])
        for index, reason in zip(known["bad"].tolist(), _parted(known["reasons"]), strict=bool(len(known["bad"]))):
            problems[index] = reason
        kinds = known["kinds"][known["kind_of"]].tolist()
        sizes = [(high, wide) for high, wide in known["sizes"].tolist()]
        hashes, pixels = ([row.tobytes() for row in known[name]] for name in ("hashes", "pixels"))
        rows = [Row(*row) for row in zip(hashes, pixels, sizes, kinds, problems, strict=True)]
        return _parted(known["names"]), rows, known["stamps"]
    except (KeyError, ValueError, IndexError):
        return None


def _joined(texts: list[str]) -> ndarray:
    return np.frombuffer(b"\0".join(os.fsencode(text) for text in texts), np.uint8)


def _parted(joined: ndarray) -> list[str]:
    return [os.fsdecode(text) for text in joined.tobytes().split(b"\0")]
