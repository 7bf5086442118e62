"""Index of one tar shard: offsets, labels and CRC-32 of its images. Read header by header, nothing is unpacked.

The headers are parsed by ``tarfile`` but walked here: its own walk takes damage for the end, and keeps an object per member.
"""

import itertools
import json
import math
import re
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy import ndarray

from vitrail.data.cache import load_cached, store_cached
from vitrail.data.sources.packed_strings import PackedStrings
from vitrail.errors import VitrailError

IMAGE_EXTENSIONS = (
    "jpg",
    "jpeg",
    "png",
    "webp",
    "ppm",
    "bmp",
    "gif",
    "tif",
    "tiff",
    "npy",
)  # the first if a sample has several
MASK_EXTENSION, OBJECTS_EXTENSION, BOXES_EXTENSION = "mask.png", "objects.png", "boxes.json"
TARGET_EXTENSIONS = (MASK_EXTENSION, OBJECTS_EXTENSION, BOXES_EXTENSION)
TARGETS_WIDTH = 3 * len(TARGET_EXTENSIONS)  # offset, size and checksum of each
COMPRESSION_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
TAR_BLOCK = 512
GNU_HEADER_TYPES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
EXTENDED_HEADER_TYPES = (*GNU_HEADER_TYPES, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE)
SAMPLES_PER_REPORT = 1000  # samples between two progress reports
INDEX_FORMAT = 4  # version of the cached arrays
JSON_MARK = "\x1d"  # before several labels (a list) or numbers (a dictionary)
MAX_LABEL_BYTES = 2**20  # bytes of a .cls or .json, or of an extended header


@dataclass(frozen=True)
class TarIndex:
    """Offsets and labels of the images of one tar."""

    keys: PackedStrings
    labels: list[str]  # "" if there is none; several, or numbers, are JSON after a mark; interned
    entries: ndarray  # n 3: offset, size, checksum
    targets: ndarray | None = None  # n 9: of the mask, of its objects and of boxes, 0 if there is none; None if there are none


def index_tar(path: Path, report: Callable[[int], None]) -> TarIndex:
    """Index a tar file, or load its index from the cache."""
    status = path.stat()
    key = f"{INDEX_FORMAT} {path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    cached = load_cached("shards", key)
    index = _load_index(cached, status.st_size) if cached else None
    if index is None:
        with open(path, "rb") as file:
            index = _walk_tar(path, file, status.st_size, report)
        # stored without the last zero
        texts = {"keys": index.keys.buffer[:-1], "labels": PackedStrings.from_strings(index.labels).buffer[:-1]}
        targets = {} if index.targets is None else {"targets": index.targets}
        store_cached("shards", key, {**texts, "numbers": index.entries, **targets})
    return index


def _load_index(arrays: dict[str, ndarray], size: int) -> TarIndex | None:
    try:
        entries = arrays["numbers"].astype(np.int64, casting="safe").reshape(-1, 3)
        keys = PackedStrings(np.append(arrays["keys"], np.uint8(0)) if len(entries) else np.zeros(0, np.uint8))
        labels = arrays["labels"].tobytes().decode("utf-8", "surrogateescape").split("\0") if len(entries) else []
        targets = arrays["targets"].astype(np.int64, casting="safe").reshape(-1, TARGETS_WIDTH) if "targets" in arrays else None
    except (KeyError, ValueError, TypeError):
        return None
    files = entries if targets is None else np.concatenate([entries, targets.reshape(-1, 3)])
    inside = (files[:, :2] >= 0).all() and (files[:, 0] + files[:, 1] <= size).all()
    is_whole = len(keys) == len(labels) == len(entries) and (targets is None or len(targets) == len(entries))
    return TarIndex(keys, _intern(labels), entries, targets) if is_whole and inside else None


def _intern(labels: Iterable[str]) -> list[str]:
    return [sys.intern(label) for label in labels]


def _walk_tar(path: Path, file: BinaryIO, size: int, report: Callable[[int], None]) -> TarIndex:
    keys, labels, entries, targets = list[str](), list[str](), list[tuple[int, int, int]](), list[tuple[int, ...]]()
    for key, members in itertools.groupby(_members(path, file, size), key=lambda member: member[0]):
        parts: dict[str, tuple[int, int]] = {}
        for _, extension, offset, length in members:
            if extension in parts:
                raise VitrailError(f"{path} has {key}.{extension} twice; rewrite it with unique sample names")
            parts[extension] = (offset, length)
        image = next((parts[extension] for extension in IMAGE_EXTENSIONS if extension in parts), None)
        if image:
            keys.append(key)
            labels.append(_read_label(path, file, key, parts))
            entries.append((*image, _checksum(file, *image)))
            files = [parts.get(extension, (0, 0)) for extension in TARGET_EXTENSIONS]
            targets.append(tuple(number for each in files for number in (*each, _checksum(file, *each) if each[1] else 0)))
            if len(keys) % SAMPLES_PER_REPORT == 0:
                report(sum(image))
    of_targets = np.array(targets, np.int64).reshape(-1, TARGETS_WIDTH)
    columns = PackedStrings.from_strings(keys), _intern(labels), np.array(entries, np.int64).reshape(-1, 3)
    return TarIndex(*columns, of_targets if of_targets.any() else None)


def _members(path: Path, file: BinaryIO, size: int) -> Iterator[tuple[str, str, int, int]]:
    """Yield key, extension, offset and size of each regular file. Strict, where tarfile takes damage for the archive's end."""
    offset, extended = 0, dict[str, str]()
    while True:
        file.seek(offset)
        block = file.read(TAR_BLOCK)
        if len(block) == TAR_BLOCK and not any(block):
            return _check_end(path, file, offset)
        info = _header(path, block, offset)
        is_extended = info.type in EXTENDED_HEADER_TYPES
        length = int(extended["size"]) if "size" in extended and not is_extended else info.size
        start = offset = offset + TAR_BLOCK
        # links, folders and devices have no content
        if is_extended or info.isreg() or info.type not in tarfile.SUPPORTED_TYPES:
            offset += -(-length // TAR_BLOCK) * TAR_BLOCK
        if length < 0 or offset > size:
            raise VitrailError(f"{path} is truncated at byte {size:,}, inside {info.name}; download it again")
        if is_extended:
            extended |= _parse_extended_header(path, info.type, _read_limited(path, file, start, length))
            continue
        name, sparse = extended.get("path", info.name), "sparse" in extended or info.type == tarfile.GNUTYPE_SPARSE
        extended = {}
        if info.isreg():
            if sparse or name.startswith("/") or "\0" in name:
                raise VitrailError(f"{path} has {name}, a sparse file or an absolute path; rewrite it with plain tar")
            folder, slash, last = name.rpartition("/")
            stem, dot, extension = last.partition(".")
            if stem and dot and not re.match(r"__[^/]*__($|/)", name):
                yield folder + slash + stem, extension.lower(), start, length


def _header(path: Path, block: bytes, offset: int) -> tarfile.TarInfo:
    compression = next((name for magic, name in COMPRESSION_MAGIC.items() if not offset and block.startswith(magic)), None)
    if compression:
        raise VitrailError(f"{path} is compressed ({compression}), which rules out random access; unpack it to a plain .tar")
    if not block:
        raise VitrailError(f"{path} is {'truncated: it has no end marker' if offset else 'empty'}; download it again")
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        problem = f"is damaged or truncated at byte {offset:,}" if offset else "is not a tar file"
        raise VitrailError(f"{path} {problem}; download it again") from None


def _check_end(path: Path, file: BinaryIO, offset: int) -> None:
    """Check that only zeros follow the end marker; a second tar appended to the first would be lost."""
    while rest := file.read(2**20):
        if any(rest):
            raise VitrailError(
                f"{path} continues after its end marker at byte {offset:,}; join tars with tar --concatenate or download again"
            )


def _parse_extended_header(path: Path, kind: bytes, text: bytes) -> dict[str, str]:
    """Parse a name too long for a header, as GNU tar writes it or in pax records: "length key=value\\n"."""
    if kind in (tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE):
        return {}
    if kind == tarfile.GNUTYPE_LONGNAME:
        return {"path": text.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    fields: dict[str, str] = {}
    while text.rstrip(b"\0"):
        size, _, _ = text.partition(b" ")
        if not re.fullmatch(rb"\d{1,7}", size) or not len(size) + 3 < int(size) <= len(text):
            raise VitrailError(f"{path} has a damaged header; download it again")
        key, _, value = text[len(size) + 1 : int(size) - 1].decode("utf-8", "surrogateescape").partition("=")
        if key == "size" and not re.fullmatch(r"\d{1,18}", value, re.ASCII):
            raise VitrailError(f"{path} has a damaged header; download it again")
        fields["sparse" if key.startswith("GNU.sparse") else key] = value
        text = text[int(size) :]
    return fields


def _read_limited(path: Path, file: BinaryIO, offset: int, size: int) -> bytes:
    if size > MAX_LABEL_BYTES:
        raise VitrailError(f"{path} has a label or a name of {size:,} bytes at byte {offset:,}; download it again")
    file.seek(offset)
    return file.read(size)


def _checksum(file: BinaryIO, offset: int, size: int) -> int:
    file.seek(offset)
    checksum = 0
    while size > 0 and (part := file.read(min(size, 2**20))):
        checksum, size = zlib.crc32(part, checksum), size - len(part)
    return checksum


def _read_label(path: Path, file: BinaryIO, key: str, parts: dict[str, tuple[int, int]]) -> str:
    extension = next((extension for extension in ("cls", "json") if extension in parts), None)
    if extension is None:
        return ""
    text = _read_limited(path, file, *parts[extension])
    try:
        if extension == "json":
            return _read_json_label(json.loads(text))
        label = text.decode("utf-8").strip()
        if "\0" in label or label.startswith(JSON_MARK):
            raise ValueError
        return label
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise VitrailError(
            f"{key}.{extension} in {path} has no valid label; it needs a number or a name, a list of them as labels, or "
            "numbers by name as targets"
        ) from None


def _read_json_label(sample: dict[str, Any]) -> str:
    if (targets := sample.get("targets")) is not None:
        if not targets or not all(type(value) in (int, float) and math.isfinite(value) for value in targets.values()):
            raise ValueError
        return JSON_MARK + json.dumps(targets)
    label = sample.get("label") if sample.get("labels") is None else sample["labels"]
    if isinstance(label, list):
        if {type(each) for each in label} not in ({str}, {int}, set()) or any(
            str(each).strip() in ("", "\0") for each in label
        ):
            raise ValueError
        return JSON_MARK + json.dumps(label)
    if isinstance(label, float | dict) or "\0" in str(label) or str(label).startswith(JSON_MARK):
        raise ValueError
    return "" if label is None else str(label)
