"""Index of one tar shard: offsets, labels and CRC-32 of its images. Read header by header, nothing is unpacked."""

import itertools
import json
import re
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy import ndarray

from vitrail.data.cache import recall, remember
from vitrail.errors import VitrailError

PICTURES = ("jpg", "jpeg", "png", "webp", "ppm", "bmp", "gif", "tif", "tiff")  # the first of them if a sample has several
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
BLOCK = 512
EXTENSIONS = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE)
OFTEN = 1000  # samples between two progress reports
LARGEST_LABEL = 2**20  # bytes of a .cls or .json, or of an extended header


class Texts:
    """A sequence of strings in one buffer: a million of them are two arrays and no objects."""

    def __init__(self, joined: ndarray) -> None:
        """``buffer``: uint8, with a zero after each string."""
        self.joined, self.ends = joined, np.flatnonzero(joined == 0)

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Texts":
        return cls(np.frombuffer("".join(f"{text}\0" for text in texts).encode("utf-8", "surrogateescape"), np.uint8))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:
        start = self.ends[index - 1] + 1 if index else 0
        return self.joined[start : self.ends[index]].tobytes().decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Index:
    """Offsets and labels of the images of one tar."""

    keys: Texts
    labels: list[str]  # "" if there is none; interned
    numbers: ndarray  # n 3: offset, size, checksum


def index_of(path: Path, tick: Callable[[int], None]) -> Index:
    """Index a tar file, or load its index from the cache."""
    status = path.stat()
    key = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    known = recall("shards", key)
    index = _recalled(known, status.st_size) if known else None
    if index is None:
        with open(path, "rb") as file:
            index = _walked(path, file, status.st_size, tick)
        # stored without the last zero
        texts = {"keys": index.keys.joined[:-1], "labels": Texts.of(index.labels).joined[:-1]}
        remember("shards", key, {**texts, "numbers": index.numbers})
    return index


def _recalled(arrays: dict[str, ndarray], size: int) -> Index | None:
    try:
        numbers = arrays["numbers"].astype(np.int64, casting="safe").reshape(-1, 3)
        keys = Texts(np.append(arrays["keys"], np.uint8(0)) if len(numbers) else np.zeros(0, np.uint8))
        labels = arrays["labels"].tobytes().decode("utf-8", "surrogateescape").split("\0") if len(numbers) else []
    except (KeyError, ValueError, TypeError):
        return None
    offsets, lengths = numbers[:, 0], numbers[:, 1]
    inside = (offsets >= 0).all() and (lengths >= 0).all() and (offsets + lengths <= size).all()
    return Index(keys, _shared(labels), numbers) if len(keys) == len(labels) == len(numbers) and inside else None


def _shared(labels: Iterable[str]) -> list[str]:
    return [sys.intern(label) for label in labels]


def _walked(path: Path, file: BinaryIO, size: int, tick: Callable[[int], None]) -> Index:
    keys, labels, numbers = list[str](), list[str](), list[tuple[int, int, int]]()
    for key, members in itertools.groupby(_members(path, file, size), key=lambda member: member[0]):
        parts: dict[str, tuple[int, int]] = {}
        for _, kind, offset, length in members:
            if kind in parts:
                raise VitrailError(f"{path} has {key}.{kind} twice; rewrite it with unique sample names")
            parts[kind] = (offset, length)
        picture = next((parts[kind] for kind in PICTURES if kind in parts), None)
        if picture:
            keys.append(key)
            labels.append(_label(path, file, key, parts))
            numbers.append((*picture, _checksum(file, *picture)))
            if len(keys) % OFTEN == 0:
                tick(sum(picture))
    return Index(Texts.of(keys), _shared(labels), np.array(numbers, np.int64).reshape(-1, 3))


def _members(path: Path, file: BinaryIO, size: int) -> Iterator[tuple[str, str, int, int]]:
    """Yield key, extension, offset and size of each regular file. Strict, where tarfile takes damage for the archive's end."""
    offset, long = 0, dict[str, str]()
    while True:
        file.seek(offset)
        block = file.read(BLOCK)
        if len(block) == BLOCK and not any(block):
            return _ends(path, file, offset)
        info = _header(path, block, offset)
        extends = info.type in EXTENSIONS
        length = int(long["size"]) if "size" in long and not extends else info.size
        start = offset = offset + BLOCK
        if extends or info.isreg() or info.type not in tarfile.SUPPORTED_TYPES:  # links, folders and devices have no content
            offset += -(-length // BLOCK) * BLOCK
        if length < 0 or offset > size:
            raise VitrailError(f"{path} is truncated at byte {size:,}, inside {info.name}; download it again")
        if extends:
            long |= _extended(path, info.type, _part(path, file, start, length))
            continue
        name, sparse, long = long.get("path", info.name), "sparse" in long or info.type == tarfile.GNUTYPE_SPARSE, {}
        if info.isreg():
            if sparse or name.startswith("/") or "\0" in name:
                raise VitrailError(f"{path} has {name}, a sparse file or an absolute path; rewrite it with plain tar")
            folder, slash, last = name.rpartition("/")
            stem, dot, kind = last.partition(".")
            if stem and dot and not re.match(r"__[^/]*__($|/)", name):
                yield folder + slash + stem, kind.lower(), start, length


def _header(path: Path, block: bytes, offset: int) -> tarfile.TarInfo:
    packed = next((name for magic, name in COMPRESSED.items() if not offset and block.startswith(magic)), None)
    if packed:
        raise VitrailError(f"{path} is compressed ({packed}), which rules out random access; unpack it to a plain .tar")
    if not block:
        raise VitrailError(f"{path} is {'truncated: it has no end marker' if offset else 'empty'}; download it again")
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        problem = f"is damaged or truncated at byte {offset:,}" if offset else "is not a tar file"
        raise VitrailError(f"{path} {problem}; download it again") from None


def _ends(path: Path, file: BinaryIO, offset: int) -> None:
    """Check that only zeros follow the end marker; a second tar appended to the first would be lost."""
    while rest := file.read(2**20):
        if any(rest):
            raise VitrailError(
                f"{path} continues after its end marker at byte {offset:,}; join tars with tar --concatenate or download again"
            )


def _extended(path: Path, kind: bytes, text: bytes) -> dict[str, str]:
    """Parse a name too long for a header, as GNU tar writes it or in pax records: "length key=value\\n"."""
    if kind in (tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE):
        return {}
    if kind == tarfile.GNUTYPE_LONGNAME:
        return {"path": text.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    found: dict[str, str] = {}
    while text.rstrip(b"\0"):
        size, _, _ = text.partition(b" ")
        if not re.fullmatch(rb"\d{1,7}", size) or not len(size) + 3 < int(size) <= len(text):
            raise VitrailError(f"{path} has a damaged header; download it again")
        key, _, value = text[len(size) + 1 : int(size) - 1].decode("utf-8", "surrogateescape").partition("=")
        if key == "size" and not re.fullmatch(r"\d{1,18}", value, re.ASCII):
            raise VitrailError(f"{path} has a damaged header; download it again")
        found["sparse" if key.startswith("GNU.sparse") else key] = value
        text = text[int(size) :]
    return found


def _part(path: Path, file: BinaryIO, offset: int, size: int) -> bytes:
    if size > LARGEST_LABEL:
        raise VitrailError(f"{path} has a label or a name of {size:,} bytes at byte {offset:,}; download it again")
    file.seek(offset)
    return file.read(size)


def _checksum(file: BinaryIO, offset: int, size: int) -> int:
    file.seek(offset)
    checksum = 0
    while size > 0 and (part := file.read(min(size, 2**20))):
        checksum, size = zlib.crc32(part, checksum), size - len(part)
    return checksum


def _label(path: Path, file: BinaryIO, key: str, parts: dict[str, tuple[int, int]]) -> str:
    kind = next((kind for kind in ("cls", "json") if kind in parts), None)
    if kind is None:
        return ""
    text = _part(path, file, *parts[kind])
    try:
        label = text.decode("utf-8").strip() if kind == "cls" else json.loads(text).get("label")
        if "\0" in str(label) or not isinstance(label, str | int | None):
            raise ValueError
    except (ValueError, AttributeError, RecursionError):
        raise VitrailError(f"{key}.{kind} in {path} has no valid label; it needs a number or a name") from None
    return "" if label is None else str(label)
