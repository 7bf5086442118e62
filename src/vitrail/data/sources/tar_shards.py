"""Tar shards as webdataset writes them, with random access: each tar is indexed once, then any image is one seek away.

Members that share a key (the path up to the first dot of its base name) are a sample: an image, and its label in ``.cls`` (a
number or a name) or ``.json`` (``{"label": ...}``; ``{"labels": [...]}`` if images have several or none; ``{"targets": {"age":
30.5}}`` for numbers), its masks in ``.mask.png`` and ``.objects.png`` (``stored_masks.py``), whose classes are named in
``mask_classes.txt``, and its boxes in ``.boxes.json`` (``stored_boxes.py``), with ``box_classes.txt``. Nothing is unpacked.
The CRC-32 of each image, mask and file of boxes is stored in the index and verified whenever it is read, so a shard that is
damaged or replaced later is noticed. The split is part of the file name (``imagenet1k-train-0000.tar``) or of the folder's
(``train/0000.tar``).
"""

import glob
import itertools
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy import ndarray

from vitrail.data.class_names import deduplicate
from vitrail.data.sources.coded_column import Numbering
from vitrail.data.sources.dataset import MAX_FILE_BYTES, Dataset, Progress, select_images, with_label_sets, with_numbers
from vitrail.data.sources.label_sets import LabelSets
from vitrail.data.sources.labels import canonical_split, encode_labels
from vitrail.data.sources.objects import Objects
from vitrail.data.sources.packed_strings import PackedStrings
from vitrail.data.sources.stored_boxes import decode_objects, with_stored_boxes
from vitrail.data.sources.stored_masks import with_stored_masks
from vitrail.data.sources.tar_index import BOXES_EXTENSION, JSON_MARK, MASK_EXTENSION, TARGETS_WIDTH, TarIndex, index_tar
from vitrail.errors import VitrailError

CLASS_FILES = ("classes.txt", "classnames.txt")  # next to the shards: one name per line, for labels that are numbers
MASK_CLASS_FILE = "mask_classes.txt"  # next to the shards: one name of a class of pixels per line
BOX_CLASS_FILE = "box_classes.txt"  # likewise of boxes
MAX_SHARDS = 100_000
MAX_CLASSES = 100_000  # larger numbers are taken as names


def read_shards(
    location: str | Path | Sequence[str | Path], *, classes: Path | None = None, progress: Progress | None = None
) -> dict[str, Dataset]:
    """Return the splits of tar files, a folder of them or a pattern such as ``shards-{000..009}.tar`` or ``a/*.tar``.

    ``classes``: a file with one class name per line; by default ``classes.txt`` next to the shards, if there is one.
    """
    paths = _paths(location)
    total, done, indexes = sum(path.stat().st_size for path in paths), 0, []
    for path in paths:
        tick = partial(_report_progress, progress, done, total)
        indexes.append(index_tar(path, tick))
        done += path.stat().st_size
        tick(path.stat().st_size)
    splits = _shard_splits(paths)
    if "" in splits and any(splits):
        named, unnamed = paths[next(index for index, split in enumerate(splits) if split)], paths[splits.index("")]
        raise VitrailError(
            f"{named.name} names its split and {unnamed.name} does not; name all shards train-, val- or test-, or none"
        )
    return _build_splits(location, paths, indexes, splits, classes)


def _report_progress(progress: Progress | None, before: int, total: int, in_shard: int) -> None:
    if progress:
        progress("indexing", before + in_shard, total)


@dataclass(frozen=True, eq=False)
class TarDataset(Dataset):
    """Images in tar files."""

    paths: tuple[Path, ...]
    shard_indices: ndarray  # index of the shard of each image
    keys: PackedStrings
    offsets: ndarray
    num_bytes: ndarray
    checksums: ndarray
    labels: ndarray
    class_names: tuple[str, ...]

    def describe(self, index: int) -> str:
        return f"{self.keys[index]} in {self.paths[self.shard_indices[index]]}"

    def read(self, index: int) -> bytes:
        size = int(self.num_bytes[index])
        if size > MAX_FILE_BYTES:
            raise VitrailError(f"{self.describe(index)} is not an image: it has {size:,} bytes")
        return self.read_part(index, int(self.offsets[index]), size, int(self.checksums[index]))

    def read_part(self, index: int, offset: int, size: int, checksum: int) -> bytes:
        """Read a file of a sample and verify its checksum."""
        with open(self.paths[self.shard_indices[index]], "rb") as file:
            # opened for each read: safe in threads, forks and pickles, and thousands of shards keep no file open
            file.seek(offset)
            content = file.read(size)
        if zlib.crc32(content) != checksum:
            problem = "is not what was indexed: the shard was damaged or replaced; download it again or restart"
            raise VitrailError(f"{self.describe(index)} {problem}")
        return content

    def title(self, index: int) -> str:
        return PurePosixPath(self.keys[index]).name

    def groups(self) -> ndarray:
        return self.shard_indices

    def content_key(self) -> bytes:
        return self.checksums.tobytes()

    def cache_key(self) -> bytes:
        return self.checksums.tobytes()


@dataclass(frozen=True, eq=False)
class TarMasks:
    """The PNGs of masks in tar files: of each image offset, size and checksum of its mask, then of its objects."""

    dataset: TarDataset
    entries: ndarray  # n 6

    def read_mask(self, index: int) -> bytes:
        return self.dataset.read_part(index, *self.entries[index, :3].tolist())

    def read_objects(self, index: int) -> bytes | None:
        offset, size, checksum = self.entries[index, 3:].tolist()
        return self.dataset.read_part(index, offset, size, checksum) if size else None

    def key(self) -> bytes:
        return self.entries[:, 2::3].astype("<i8").tobytes()


@dataclass(frozen=True, eq=False)
class TarBoxes:
    """The boxes of images in tar files, as JSON: of each image offset, size and checksum."""

    dataset: TarDataset
    entries: ndarray  # n 3

    def read_objects(self, index: int) -> Objects:
        return decode_objects(self.dataset.read_part(index, *self.entries[index].tolist()))

    def key(self) -> bytes:
        return self.entries[:, 2].astype("<i8").tobytes()


def _paths(location: str | Path | Sequence[str | Path]) -> list[Path]:
    patterns = [location] if isinstance(location, str | Path) else list(location)
    paths = [path for pattern in patterns for path in _expand_location(str(pattern))]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        several = f"{len(missing)} of {len(paths)} shards are missing, first" if len(paths) > 1 else "there is no shard"
        raise VitrailError(
            f"{several} {missing[0]}; name tar files, a folder of them or a pattern such as shards-{{000..009}}.tar"
        )
    return list(dict.fromkeys(paths))


def _expand_location(name: str) -> list[Path]:
    if Path(name).is_dir():
        paths = [path for path in sorted(Path(name).rglob("*.tar")) if not path.name.startswith(".")]
    elif Path(name).exists():
        return [Path(name)]
    else:
        expanded = list(itertools.islice(_expand_braces(name), MAX_SHARDS + 1))
        if len(expanded) > MAX_SHARDS:
            raise VitrailError(f"{name} stands for more than {MAX_SHARDS:,} shards; name fewer")
        paths = [
            Path(path)
            for pattern in expanded
            for path in (sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern])
        ]
    if not paths:
        raise VitrailError(
            f"{name} has no .tar files; name tar files, a folder of them or a pattern such as shards-{{000..009}}.tar"
        )
    return paths


def _expand_braces(name: str) -> Iterator[str]:
    """Expand braces as a shell does: {000..009} and {a,b}."""
    match = re.search(r"\{(?:(\d{1,9})\.\.(\d{1,9})|([^{}]*,[^{}]*))\}", name, re.ASCII)
    if not match:
        yield name
        return
    first, last, alternatives = match.groups()
    if alternatives is None:
        num_digits = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
        step = 1 if int(first) <= int(last) else -1
        words: Iterator[str] = (f"{number:0{num_digits}d}" for number in range(int(first), int(last) + step, step))
    else:
        words = iter(alternatives.split(","))
    for word in words:
        yield from _expand_braces(name[: match.start()] + word + name[match.end() :])


def _shard_splits(paths: list[Path]) -> list[str]:
    """Return the split of each shard, from the words of its file name, else from its folder's name if the folders differ."""
    splits = []
    for path in paths:
        words = [split for word in re.split(r"[^a-z]+", path.name.split(".")[0].lower()) if (split := canonical_split(word))]
        splits.append(words[-1] if words else "")
    folders = [path.absolute().parent.name for path in paths]
    return [canonical_split(name) or "" for name in folders] if not any(splits) and len(set(folders)) > 1 else splits


def _build_splits(
    location: object, paths: list[Path], indexes: list[TarIndex], splits: list[str], classes: Path | None
) -> dict[str, Dataset]:
    keys = PackedStrings(np.concatenate([index.keys.buffer for index in indexes]))
    if not len(keys):
        raise VitrailError(f"{location} has no images; a sample is an image (KEY.jpg) and its label (KEY.cls)")
    texts = [label for index in indexes for label in index.labels]
    shard_indices = np.repeat(np.arange(len(paths), dtype=np.int32), [len(index.keys) for index in indexes])
    if "" in texts and any(texts):
        unlabelled = texts.index("")
        raise VitrailError(
            f"{keys[unlabelled]} in {paths[shard_indices[unlabelled]]} has no label but others have; add {keys[unlabelled]}.cls"
        )
    entries = np.concatenate([index.entries for index in indexes])
    columns = tuple(paths), shard_indices, keys, entries[:, 0], entries[:, 1], entries[:, 2]
    if any(text.startswith(JSON_MARK) for text in texts):
        unlabelled_dataset = TarDataset(*columns, np.full(len(texts), -1, np.int64), ())
        dataset = _with_json_targets(unlabelled_dataset, texts, classes or _find_class_file(paths))
    else:
        dataset = TarDataset(*columns, *_encode_texts(texts, classes or _find_class_file(paths)))
    tar = TarDataset(*columns, np.full(len(texts), -1, np.int64), ())
    dataset = _with_boxes(_with_masks(dataset, tar, indexes, any(texts)), tar, indexes, any(texts))
    in_split = {name: np.flatnonzero((np.array(splits) == name)[shard_indices]) for name in ("train", "validation", "test", "")}
    return {name: select_images(dataset, indices) for name, indices in in_split.items() if len(indices)}


def _with_masks(dataset: Dataset, tar: TarDataset, indexes: list[TarIndex], labelled: bool) -> Dataset:
    """Return the dataset with its masks, if the shards have any; they are the targets if the images are not labelled."""
    entries = _target_entries(indexes)[:, :6]
    names = _target_names(tar, entries, labelled, ("mask", "masks"), MASK_EXTENSION, MASK_CLASS_FILE)
    return dataset if names is None else with_stored_masks(dataset, TarMasks(tar, entries), names, are_targets=not labelled)


def _with_boxes(dataset: Dataset, tar: TarDataset, indexes: list[TarIndex], labelled: bool) -> Dataset:
    """Likewise with its boxes."""
    entries = _target_entries(indexes)[:, 6:]
    names = _target_names(tar, entries, labelled, ("file of boxes", "boxes"), BOXES_EXTENSION, BOX_CLASS_FILE)
    are_targets = not labelled and not dataset.has_mask_targets
    return dataset if names is None else with_stored_boxes(dataset, TarBoxes(tar, entries), names, are_targets)


def _target_entries(indexes: list[TarIndex]) -> ndarray:
    return np.concatenate(
        [np.zeros((len(each.keys), TARGETS_WIDTH), np.int64) if each.targets is None else each.targets for each in indexes]
    )


def _target_names(
    tar: TarDataset, entries: ndarray, labelled: bool, nouns: tuple[str, str], extension: str, file_name: str
) -> tuple[str, ...] | None:
    """Return the names of the classes of masks or boxes, which all images must have or none; None if there are none."""
    if not entries[:, 1].any():
        return None
    class_file = _find_class_file(list(tar.paths), (file_name,))
    if class_file is None:
        if labelled:  # the shards of others may have some that are not of classes
            return None
        wanted = tar.paths[0].parent / file_name
        raise VitrailError(f"the {nouns[1]} in {tar.paths[0]} have no names of their classes; write one per line into {wanted}")
    if len(without := np.flatnonzero(entries[:, 1] == 0)):
        index = int(without[0])
        raise VitrailError(f"{tar.describe(index)} has no {nouns[0]} but others have; add {tar.keys[index]}.{extension}")
    return parse_class_names(class_file.read_text(encoding="utf-8-sig"))


def _find_class_file(paths: list[Path], names: Sequence[str] = CLASS_FILES) -> Path | None:
    folders = dict.fromkeys(folder for path in paths for folder in (path.absolute().parent, path.absolute().parent.parent))
    return next((folder / name for folder in folders for name in names if (folder / name).is_file()), None)


def _with_json_targets(dataset: Dataset, texts: list[str], classes: Path | None) -> Dataset:
    """Return the dataset with several labels per image, or with numbers to predict."""
    values: list[Any] = [json.loads(text[1:]) if text.startswith(JSON_MARK) else text for text in texts]
    kinds = [type(value) if isinstance(value, list | dict) else str for value in values]
    if (other := next((index for index, kind in enumerate(kinds) if kind is not kinds[0]), None)) is not None:
        raise VitrailError(
            f"{dataset.describe(other)} has a target of another kind than {dataset.describe(0)}; give all samples a list of "
            "labels, or all numbers"
        )
    if kinds[0] is dict:
        names = tuple(values[0])
        if (other := next((index for index, value in enumerate(values) if value.keys() != set(names)), None)) is not None:
            raise VitrailError(
                f"{dataset.describe(other)} must have the targets {', '.join(names)}, got {', '.join(values[other])}; give all "
                "samples the same"
            )
        return with_numbers(dataset, np.array([[value[name] for name in names] for value in values], np.float64), names)
    labels = Numbering()
    sizes = np.array([len(value) for value in values], np.int64)
    members = np.array([labels[str(label)] for value in values for label in value], np.int64)
    numbers, class_names = _encode_texts(list(labels), classes)
    if not labels and classes is not None:
        class_names = parse_class_names(classes.read_text(encoding="utf-8-sig"))
    return with_label_sets(dataset, LabelSets.from_members(numbers[members], sizes, len(class_names)), class_names)


def _encode_texts(texts: list[str], classes: Path | None) -> tuple[ndarray, tuple[str, ...]]:
    """Encode labels: a number is its own label, so that it means the same in every shard; names are sorted."""
    if not any(texts):
        return np.full(len(texts), -1, dtype=np.int64), ()
    if not all(re.fullmatch(r"\d{1,6}", text, re.ASCII) and int(text) < MAX_CLASSES for text in set(texts)):
        return encode_labels(texts)
    labels: ndarray = np.fromiter(map(int, texts), np.int64, len(texts))
    if classes is None:
        return labels, tuple(str(number) for number in range(int(labels.max()) + 1))
    names = parse_class_names(classes.read_text(encoding="utf-8-sig"))
    if labels.max() >= len(names):
        raise VitrailError(f"{classes} must name {labels.max() + 1} classes, one per line, got {len(names)} lines")
    return labels, names


def parse_class_names(text: str) -> tuple[str, ...]:
    """Parse class names, one per line."""
    lines = text.split("\n")
    return deduplicate([line.strip() for line in (lines[:-1] if lines[-1].strip() == "" else lines)])
