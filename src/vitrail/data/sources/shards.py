"""Tar shards as webdataset writes them, with random access: each tar is indexed once, then any image is one seek away.

Members that share a key (the path up to the first dot of its base name) are a sample: an image, and its label in ``.cls`` (a
number or a name) or ``.json`` (``{"label": ...}``). Nothing is ever unpacked. Each image's CRC-32 is stored in the index and
verified whenever it is read, so a shard that is damaged or replaced later is noticed. The split is part of the file name
(``imagenet1k-train-0000.tar``) or of the folder's (``train/0000.tar``).
"""

import glob
import itertools
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy import ndarray

from vitrail.data.sources.labels import by_name, split_name, unique
from vitrail.data.sources.source import LARGEST_FILE, Progress, Source, chosen
from vitrail.data.sources.tar import Index, Texts, index_of
from vitrail.errors import VitrailError

CLASSES = ("classes.txt", "classnames.txt")  # next to the shards: one name per line, for labels that are numbers
MOST_SHARDS = 100_000
MOST_CLASSES = 100_000  # larger numbers are taken as names


def read_shards(
    what: str | Path | Sequence[str | Path], *, classes: Path | None = None, progress: Progress | None = None
) -> dict[str, Source]:
    """Return the splits of tar files, a folder of them or a pattern such as ``shards-{000..009}.tar`` or ``a/*.tar``.

    ``classes``: a file with one class name per line; by default ``classes.txt`` next to the shards, if there is one.
    """
    paths = _paths(what)
    total, done, indexes = sum(path.stat().st_size for path in paths), 0, []
    for path in paths:
        tick = partial(_tell, progress, done, total)
        indexes.append(index_of(path, tick))
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
    """Images in tar files."""

    paths: tuple[Path, ...]
    shards: ndarray  # index of the shard of each image
    keys: Texts
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
            raise VitrailError(f"{self.where(index)} is not an image: it has {size:,} bytes")
        with open(self.paths[self.shards[index]], "rb") as file:
            # opened for each read: safe in threads, forks and pickles, and thousands of shards keep no file open
            file.seek(int(self.offsets[index]))
            content = file.read(size)
        if zlib.crc32(content) != self.checksums[index]:
            raise VitrailError(
                f"{self.where(index)} is not what was indexed: the shard was damaged or replaced; download it again or restart"
            )
        return content


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
    """Expand braces as a shell does: {000..009} and {a,b}."""
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
    """Return the split of each shard, from the words of its file name, else from its folder's name if the folders differ."""
    found = []
    for path in paths:
        words = [split for word in re.split(r"[^a-z]+", path.name.split(".")[0].lower()) if (split := split_name(word))]
        found.append(words[-1] if words else "")
    folders = [path.absolute().parent.name for path in paths]
    return [split_name(name) or "" for name in folders] if not any(found) and len(set(folders)) > 1 else found


def _joined(
    what: object, paths: list[Path], indexes: list[Index], splits: list[str], classes: Path | None
) -> dict[str, Source]:
    keys = Texts(np.concatenate([index.keys.joined for index in indexes]))
    if not len(keys):
        raise VitrailError(f"{what} has no images; a sample is an image (KEY.jpg) and its label (KEY.cls)")
    texts = [label for index in indexes for label in index.labels]
    shards = np.repeat(np.arange(len(paths), dtype=np.int32), [len(index.keys) for index in indexes])
    if "" in texts and any(texts):
        bare = texts.index("")
        raise VitrailError(f"{keys[bare]} in {paths[shards[bare]]} has no label but others have; add {keys[bare]}.cls")
    labels, names = _numbered(texts, classes or _classes(paths))
    numbers = np.concatenate([index.numbers for index in indexes])
    source = Shards(tuple(paths), shards, keys, numbers[:, 0], numbers[:, 1], numbers[:, 2], labels, names)
    full = {splits[shard] for shard, index in enumerate(indexes) if len(index.keys)}
    found = [name for name in ("train", "validation", "test", "") if name in full]
    return {name: chosen(source, np.flatnonzero(np.array([split == name for split in splits])[shards])) for name in found}


def _classes(paths: list[Path]) -> Path | None:
    folders = dict.fromkeys(folder for path in paths for folder in (path.absolute().parent, path.absolute().parent.parent))
    return next((folder / name for folder in folders for name in CLASSES if (folder / name).is_file()), None)


def _numbered(texts: list[str], classes: Path | None) -> tuple[ndarray, tuple[str, ...]]:
    """Encode labels: a number is its own label, so that it means the same in every shard; names are sorted."""
    if not any(texts):
        return np.full(len(texts), -1, dtype=np.int64), ()
    if not all(re.fullmatch(r"\d{1,6}", text, re.ASCII) and int(text) < MOST_CLASSES for text in set(texts)):
        return by_name(texts)
    labels: ndarray = np.fromiter(map(int, texts), np.int64, len(texts))
    if classes is None:
        return labels, tuple(str(number) for number in range(int(labels.max()) + 1))
    names = class_names(classes.read_text(encoding="utf-8-sig"))
    if labels.max() >= len(names):
        raise VitrailError(f"{classes} must name {labels.max() + 1} classes, one per line, got {len(names)} lines")
    return labels, names


def class_names(text: str) -> tuple[str, ...]:
    """Parse class names, one per line."""
    lines = text.split("\n")
    return unique([line.strip() for line in (lines[:-1] if lines[-1].strip() == "" else lines)])
