"""What is in every picture of a source: a hash of its content, its size and kind, or why it cannot be used. Learned once:
a file of the same name, length and time of change is not read again. n pictures.
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
from vitrail.data.sources.source import Files, Part, Progress, Source
from vitrail.errors import VitrailError

HASH = 16  # bytes
FORMAT = 1  # of what is remembered
CHUNK = 256  # pictures between two signs of progress
UNREADABLE = "cannot be read"  # a fault of the moment, such as a missing right: never remembered


@dataclass(frozen=True)
class Catalogue:
    """One row a picture; a picture without a problem can be used."""

    hashes: ndarray  # n 16, uint8; of the file's bytes, or of shape and pixels
    sizes: ndarray  # n 2, int32: height, width
    kinds: ndarray  # n, str: "JPEG RGB"
    problems: ndarray  # n, str

    @property
    def bad(self) -> ndarray:
        return np.flatnonzero(self.problems != "")

    def keys(self) -> ndarray:
        """The hashes as one item each, to sort and compare."""
        return np.ascontiguousarray(self.hashes).view(f"V{HASH}").reshape(-1)

    def rows(self, chosen: ndarray) -> "Catalogue":
        return Catalogue(self.hashes[chosen], self.sizes[chosen], self.kinds[chosen], self.problems[chosen])


def examine(source: Source, progress: Progress | None = None, workers: int | None = None) -> Catalogue:
    """Read and decode every picture, in threads; what is known of files is taken from the last time."""
    if isinstance(source, Part):
        return examine(source.whole, progress, workers).rows(source.indices)
    if isinstance(source, Files):
        return _remembered(source, progress, workers)
    return _table(list(_look(source, range(len(source)), progress, workers)))


Row = tuple[bytes, tuple[int, int], str, str]


def content_keys(source: Source, progress: Progress | None = None) -> ndarray:
    """A hash of every picture as one item each; of files by way of the catalogue, which remembers them."""
    if isinstance(source, Files):
        return examine(source, progress).keys()
    hashes = []
    for index in range(len(source)):
        hashes.append(_hash(source.content(index)))
        if progress and (index % CHUNK == 0 or index == len(source) - 1):
            progress("reading", index + 1, len(source))
    return np.frombuffer(b"".join(hashes), f"V{HASH}")


def _hash(content: bytes | ndarray) -> bytes:
    if isinstance(content, ndarray):
        content = str(content.shape).encode() + np.ascontiguousarray(content).tobytes()
    return hashlib.blake2b(content, digest_size=HASH).digest()


def _look(source: Source, indices: Sequence[int], progress: Progress | None, workers: int | None) -> Iterator[Row]:
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        for start in range(0, len(indices), CHUNK):
            yield from pool.map(lambda index: _row(source, index), indices[start : start + CHUNK])
            if progress:
                progress("checking", min(start + CHUNK, len(indices)), len(indices))


def _row(source: Source, index: int) -> Row:
    try:
        content = source.content(index)
    except (OSError, VitrailError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return bytes(HASH), (0, 0), "", f"{UNREADABLE}: {reason}"
    if isinstance(content, ndarray):
        return _hash(content), (content.shape[0], content.shape[1]), "pixels", ""
    try:
        picture = decode(content)
        return _hash(content), (picture.height, picture.width), kind(content), ""
    except VitrailError as error:
        return _hash(content), (0, 0), "", str(error).removeprefix("the picture ")


def _table(rows: Sequence[Row]) -> Catalogue:
    hashes, sizes, kinds, problems = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Catalogue(
        np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, HASH),
        np.array(sizes, np.int32).reshape(-1, 2),
        np.array(kinds, str),
        np.array(problems, str),
    )


def _remembered(files: Files, progress: Progress | None, workers: int | None) -> Catalogue:
    stamps = np.array([_stamp(files.where(index)) for index in range(len(files))], np.int64).reshape(-1, 2)
    key = f"{FORMAT} {files.root.resolve()}"
    known = _recalled(key)
    rows = [known.get((path, length, time)) for path, (length, time) in zip(files.paths, stamps.tolist(), strict=True)]
    missing = [index for index, row in enumerate(rows) if row is None]
    try:
        for index, row in zip(missing, _look(files, missing, progress, workers), strict=False):
            rows[index] = row
    finally:  # what was read before an interruption need not be read again
        if missing or len(known) != len(files):
            _remember(key, files, stamps, rows)
    return _table([row for row in rows if row is not None])


def _stamp(path: str) -> tuple[int, int]:
    try:
        known = os.stat(path)
        return known.st_size, known.st_mtime_ns
    except OSError:
        return -1, -1


def _remember(key: str, files: Files, stamps: ndarray, rows: list[Row | None]) -> None:
    done = [index for index, row in enumerate(rows) if row is not None and not row[3].startswith(UNREADABLE)]
    table = _table([row for index in done if (row := rows[index]) is not None])
    names = np.frombuffer(b"\0".join(os.fsencode(files.paths[index]) for index in done), np.uint8)
    cache.remember("catalogue", key, {"paths": names, "stamps": stamps[done], **vars(table)})


def _recalled(key: str) -> dict[tuple[str, int, int], Row]:
    known = cache.recall("catalogue", key)
    if not known or not {"paths", "stamps", "hashes", "sizes", "kinds", "problems"} <= set(known) or not len(known["kinds"]):
        return {}
    paths = [os.fsdecode(path) for path in known["paths"].tobytes().split(b"\0")]
    hashes = [bytes(row) for row in known["hashes"]]
    sizes = [(high, wide) for high, wide in known["sizes"].tolist()]
    rows = zip(hashes, sizes, known["kinds"].tolist(), known["problems"].tolist(), strict=True)
    return {(path, length, time): row for path, (length, time), row in zip(paths, known["stamps"].tolist(), rows, strict=True)}
