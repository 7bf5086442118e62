"""Tar shards as webdataset writes them, read by number: each tar is walked once, then any picture is one seek away.

Members that share a key (the name up to the first dot of its last part) are a sample: a picture, and its label in ``.cls``
(a number or a name) or ``.json`` (``{"label": ...}``). Nothing is ever unpacked. Each picture's CRC-32 is kept in the index
and checked whenever it is read, so a shard that is damaged or replaced afterwards is noticed. The split stands in the file's
name (``imagenet1k-train-0000.tar``) or its folder's (``train/0000.tar``).
"""

import glob
import itertools
import json
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy import ndarray

from vitrail.data.cache import recall, remember
from vitrail.data.source import LARGEST_FILE, Progress, Source
from vitrail.data.table import by_name, by_split, split_name
from vitrail.errors import VitrailError

PICTURES = ("jpg", "jpeg", "png", "webp", "ppm", "bmp", "gif", "tif", "tiff")  # the first of them where a sample has several
CLASSES = ("classes.txt", "classnames.txt")  # beside the shards: a name a line, for labels that are numbers
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
BLOCK = 512
EXTENSIONS = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE)
OFTEN = 1000  # samples between two signs of progress
LARGEST_LABEL = 2**20  # bytes of a .cls or .json, and of a header's own text
MOST_SHARDS = 100_000
MOST_CLASSES = 100_000  # numbers beyond are names


def read_shards(
    what: str | Path | Sequence[str | Path], *, classes: Path | None = None, progress: Progress | None = None
) -> dict[str, Source]:
    """The splits of a tar, of several, of a folder of them or of a pattern such as ``shards-{000..009}.tar`` or ``a/*.tar``.

    ``classes``: a file with a class name a line; else ``classes.txt`` beside the shards, where there is one.
    """
    paths = _paths(what)
    total, done, indexes = sum(path.stat().st_size for path in paths), 0, []
    for path in paths:
        tick = partial(_tell, progress, done, total)
        indexes.append(_index(path, tick))
        done += path.stat().st_size
        tick(path.stat().st_size)
    splits = _splits(paths)
    if "" in splits and any(splits):
        named, bare = next(path for path, split in zip(paths, splits, strict=True) if split), paths[splits.index("")]
        raise VitrailError(
            f"{named.name} names its split and {bare.name} does not; name all shards train-, val- or test-, or none"
        )
    return _joined(what, paths, indexes, splits, classes)


def _tell(progress: Progress | None, before: int, total: int, here: int) -> None:
    if progress:
        progress("indexing", before + here, total)


@dataclass(frozen=True)
class Shards:
    """Pictures in tar files."""

    paths: tuple[Path, ...]
    shards: ndarray  # which of them each picture is in
    keys: Sequence[str]
    offsets: ndarray
    sizes: ndarray
    checksums: ndarray
    labels: ndarray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.keys)

    def where(self, index: int) -> str:
        return f"{self.keys[index]} in {self.paths[self.shards[index]]}"

    def content(self, index: int) -> bytes:
        size = int(self.sizes[index])
        if size > LARGEST_FILE:
            raise VitrailError(f"{self.where(index)} is no picture: it has {size:,} bytes")
        with open(self.paths[self.shards[index]], "rb") as file:  # opened anew: safe in threads, forks and pickles
            file.seek(int(self.offsets[index]))
            content = file.read(size)
        if zlib.crc32(content) != self.checksums[index]:
            raise VitrailError(
                f"{self.where(index)} is not what was indexed: the shard was damaged or replaced; fetch it again or start again"
            )
        return content


# Which tars ----------------------------------------------------------------------------------------------------------


def _paths(what: str | Path | Sequence[str | Path]) -> list[Path]:
    named = [what] if isinstance(what, str | Path) else list(what)
    paths = [path for one in named for path in _matching(str(one))]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        several = f"{len(missing)} of {len(paths)} shards are missing, first" if len(paths) > 1 else "there is no shard"
        raise VitrailError(
            f"{several} {missing[0]}; name tar files, a folder of them or a pattern such as shards-{{000..009}}.tar"
        )
    return list(dict.fromkeys(paths))


def _matching(name: str) -> list[Path]:
    if Path(name).is_dir():
        found = [path for path in sorted(Path(name).rglob("*.tar")) if not path.name.startswith(".")]
    elif Path(name).exists():
        return [Path(name)]
    else:
        expanded = list(itertools.islice(_expanded(name), MOST_SHARDS + 1))
        if len(expanded) > MOST_SHARDS:
            raise VitrailError(f"{name} stands for more than {MOST_SHARDS:,} shards; name fewer")
        found = [Path(path) for one in expanded for path in (sorted(glob.glob(one)) if glob.has_magic(one) else [one])]
    if not found:
        raise VitrailError(
            f"{name} has no .tar files; name tar files, a folder of them or a pattern such as shards-{{000..009}}.tar"
        )
    return found


def _expanded(name: str) -> Iterator[str]:
    """Braces as a shell reads them: {000..009} and {a,b}."""
    match = re.search(r"\{(?:(\d{1,9})\.\.(\d{1,9})|([^{}]*,[^{}]*))\}", name, re.ASCII)
    if not match:
        yield name
        return
    first, last, listed = match.groups()
    if listed is None:
        wide = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
        step = 1 if int(first) <= int(last) else -1
        words: Iterator[str] = (f"{number:0{wide}d}" for number in range(int(first), int(last) + step, step))
    else:
        words = iter(listed.split(","))
    for word in words:
        yield from _expanded(name[: match.start()] + word + name[match.end() :])


def _splits(paths: list[Path]) -> list[str]:
    """Out of the words of each file's name, or else its folder's whole name where the folders differ."""
    found = []
    for path in paths:
        words = [split for word in re.split(r"[^a-z]+", path.name.split(".")[0].lower()) if (split := split_name(word))]
        found.append(words[-1] if words else "")
    folders = [path.absolute().parent.name for path in paths]
    return [split_name(name) or "" for name in folders] if not any(found) and len(set(folders)) > 1 else found


# One tar -------------------------------------------------------------------------------------------------------------


@dataclass
class Index:
    """Where the pictures of one tar are and what they show."""

    keys: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)  # "" where there is none
    numbers: list[tuple[int, int, int]] = field(default_factory=list)  # offset, size, checksum


def _index(path: Path, tick: Callable[[int], None]) -> Index:
    status = path.stat()
    key = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    known = recall("shards", key)
    index = _recalled(known, status.st_size) if known else None
    if index is None:
        with open(path, "rb") as file:
            index = _walked(path, file, status.st_size, tick)
        texts = {"keys": index.keys, "labels": index.labels}
        arrays = {
            name: np.frombuffer("\0".join(text).encode("utf-8", "surrogateescape"), np.uint8) for name, text in texts.items()
        }
        remember("shards", key, {**arrays, "numbers": np.array(index.numbers, dtype=np.int64).reshape(-1, 3)})
    return index


def _recalled(arrays: dict[str, ndarray], size: int) -> Index | None:
    try:
        keys, labels = (arrays[name].tobytes().decode("utf-8", "surrogateescape").split("\0") for name in ("keys", "labels"))
        numbers = [(int(at), int(length), int(checksum)) for at, length, checksum in arrays["numbers"]]
    except (KeyError, ValueError, TypeError):
        return None
    inside = all(0 <= at <= at + length <= size for at, length, _ in numbers)
    keys, labels = (keys, labels) if numbers else ([], [])
    return Index(keys, labels, numbers) if len(keys) == len(labels) == len(numbers) and inside else None


def _walked(path: Path, file: BinaryIO, size: int, tick: Callable[[int], None]) -> Index:
    index = Index()
    for key, members in itertools.groupby(_members(path, file, size), key=lambda member: member[0]):
        parts: dict[str, tuple[int, int]] = {}
        for _, kind, offset, length in members:
            if kind in parts:
                raise VitrailError(f"{path} has {key}.{kind} twice; write it again with a name a sample")
            parts[kind] = (offset, length)
        picture = next((parts[kind] for kind in PICTURES if kind in parts), None)
        if picture:
            index.keys.append(key)
            index.labels.append(_label(path, file, key, parts))
            index.numbers.append((*picture, _checksum(file, *picture)))
            if len(index.keys) % OFTEN == 0:
                tick(sum(picture))
    return index


def _members(path: Path, file: BinaryIO, size: int) -> Iterator[tuple[str, str, int, int]]:
    """Key, ending, offset and size of each plain file. Strict, where tarfile takes damage for the archive's end."""
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
            raise VitrailError(f"{path} is cut off at byte {size:,}, inside of {info.name}; fetch it again")
        if extends:
            long |= _extended(path, info.type, _part(path, file, start, length))
            continue
        name, sparse, long = long.get("path", info.name), "sparse" in long or info.type == tarfile.GNUTYPE_SPARSE, {}
        if info.isreg():
            if sparse or name.startswith("/") or "\0" in name:
                raise VitrailError(f"{path} holds {name}, a sparse file or an absolute name; write it again with plain tar")
            folder, slash, last = name.rpartition("/")
            stem, dot, kind = last.partition(".")
            if stem and dot and not re.match(r"__[^/]*__($|/)", name):
                yield folder + slash + stem, kind.lower(), start, length


def _header(path: Path, block: bytes, offset: int) -> tarfile.TarInfo:
    packed = next((name for magic, name in COMPRESSED.items() if not offset and block.startswith(magic)), None)
    if packed:
        raise VitrailError(
            f"{path} is compressed ({packed}), so that nothing in it can be found by number; unpack it to a plain .tar"
        )
    if not block:
        raise VitrailError(f"{path} is {'cut off: it has no end mark' if offset else 'empty'}; fetch it again")
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        problem = f"is damaged or cut off at byte {offset:,}" if offset else "is no tar file"
        raise VitrailError(f"{path} {problem}; fetch it again") from None


def _ends(path: Path, file: BinaryIO, offset: int) -> None:
    """After the end mark come zeros alone; what comes after a tar that was joined to another would be lost."""
    while rest := file.read(2**20):
        if any(rest):
            raise VitrailError(
                f"{path} goes on after its end mark at byte {offset:,}; join tars with tar --concatenate, or fetch it again"
            )


def _extended(path: Path, kind: bytes, text: bytes) -> dict[str, str]:
    """A name too long for a header, GNU's way or in pax records: "length key=value\\n"."""
    if kind in (tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE):
        return {}
    if kind == tarfile.GNUTYPE_LONGNAME:
        return {"path": text.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    found: dict[str, str] = {}
    while text.rstrip(b"\0"):
        size, _, _ = text.partition(b" ")
        if not re.fullmatch(rb"\d{1,7}", size) or not len(size) + 3 < int(size) <= len(text):
            raise VitrailError(f"{path} has a damaged header; fetch it again")
        key, _, value = text[len(size) + 1 : int(size) - 1].decode("utf-8", "surrogateescape").partition("=")
        if key == "size" and not re.fullmatch(r"\d{1,18}", value, re.ASCII):
            raise VitrailError(f"{path} has a damaged header; fetch it again")
        found["sparse" if key.startswith("GNU.sparse") else key] = value
        text = text[int(size) :]
    return found


def _part(path: Path, file: BinaryIO, offset: int, size: int) -> bytes:
    if size > LARGEST_LABEL:
        raise VitrailError(f"{path} has a label or a name of {size:,} bytes at byte {offset:,}; fetch it again")
    file.seek(offset)
    return file.read(size)


def _checksum(file: BinaryIO, offset: int, size: int) -> int:
    file.seek(offset)
    checksum = 0
    while size > 0 and (part := file.read(min(size, 2**20))):
        checksum, size = zlib.crc32(part, checksum), size - len(part)
    return checksum


# Labels --------------------------------------------------------------------------------------------------------------


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
        raise VitrailError(f"{key}.{kind} in {path} holds no label; it needs a number or a name") from None
    return "" if label is None else str(label)


def _joined(
    what: object, paths: list[Path], indexes: list[Index], splits: list[str], classes: Path | None
) -> dict[str, Source]:
    keys = [key for index in indexes for key in index.keys]
    if not keys:
        raise VitrailError(f"{what} holds no pictures; a sample is a picture (KEY.jpg) and its label (KEY.cls)")
    texts = [label for index in indexes for label in index.labels]
    shards = np.repeat(np.arange(len(paths)), [len(index.keys) for index in indexes])
    if "" in texts and any(texts):
        bare = texts.index("")
        raise VitrailError(f"{keys[bare]} in {paths[shards[bare]]} has no label but others have; add {keys[bare]}.cls")
    labels, names = _numbered(texts, classes or _classes(paths))
    numbers = np.array([number for index in indexes for number in index.numbers], dtype=np.int64)
    source = Shards(tuple(paths), shards, keys, numbers[:, 0], numbers[:, 1], numbers[:, 2], labels, names)
    return by_split(source, [splits[shard] for shard in shards])


def _classes(paths: list[Path]) -> Path | None:
    folders = dict.fromkeys(folder for path in paths for folder in (path.absolute().parent, path.absolute().parent.parent))
    return next((folder / name for folder in folders for name in CLASSES if (folder / name).is_file()), None)


def _numbered(texts: list[str], classes: Path | None) -> tuple[ndarray, tuple[str, ...]]:
    """A number is its own label, so that it means the same in every shard; names are numbered in their order."""
    if not any(texts):
        return np.full(len(texts), -1, dtype=np.int64), ()
    if not all(re.fullmatch(r"\d{1,6}", text, re.ASCII) and int(text) < MOST_CLASSES for text in set(texts)):
        return by_name(texts)
    labels = np.array([int(text) for text in texts], dtype=np.int64)
    if classes is None:
        return labels, tuple(str(number) for number in range(int(labels.max()) + 1))
    names = tuple(classes.read_text(encoding="utf-8-sig").split("\n"))
    names = tuple(name.strip() for name in (names[:-1] if names[-1].strip() == "" else names))
    if labels.max() >= len(names):
        raise VitrailError(f"{classes} must name {labels.max() + 1} classes, a line each, got {len(names)} lines")
    return labels, names
