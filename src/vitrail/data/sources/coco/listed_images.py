"""Images that a COCO file lists, and notes about them, whatever their targets are."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from vitrail.data.sources.coco.coco_files import find_images, is_below
from vitrail.data.sources.coco.coco_index import Category, CocoIndex
from vitrail.data.sources.dataset import Dataset, ImageFileDataset, LeftOutFile
from vitrail.data.sources.packed_strings import PackedStrings
from vitrail.data.sources.scan_folder import IMAGE_SUFFIXES
from vitrail.errors import VitrailError

NO_FILE, NO_SEGMENTS = "does not exist", "has no segments"
ROOT_PARENTS = ("none", "")  # supercategory of a category that only groups the others
LeftOutImages = Sequence[tuple[Path, str]]  # with the reason


def listed_images(index: CocoIndex) -> tuple[ImageFileDataset, ndarray, LeftOutImages]:
    """Return the images of a file that can be used, their rows in the index, and the others with the reason."""
    folder = find_images(index.path, index.names)
    names = [folder.name_of(name) for name in index.names]
    reasons = np.full(len(names), "", object)
    reasons[[not is_below(name) or not os.path.isfile(os.path.join(folder.path, name)) for name in names]] = NO_FILE
    if index.is_panoptic:
        reasons[(np.diff(index.starts) == 0) & (reasons == "")] = NO_SEGMENTS
    rows = np.flatnonzero(reasons == "")
    if not len(rows):
        raise VitrailError(f"none of the {len(names):,} images of {index.path} can be used; the first one {reasons[0]}")
    paths = PackedStrings.from_strings(names[row] for row in rows.tolist())
    images = ImageFileDataset(folder.path, paths, np.full(len(rows), -1, np.int64), ())
    return images, rows, [(folder.path / names[row], str(reasons[row])) for row in np.flatnonzero(reasons != "").tolist()]


def left_out_files(left_out: LeftOutImages, split: str) -> list[LeftOutFile]:
    return [LeftOutFile(str(path), reason, split) for path, reason in left_out]


def used_categories(indexes: Sequence[CocoIndex]) -> tuple[str, ...]:
    """Return the names of the categories in the order of their ids, without those that only group others."""
    used = {each.name for index in indexes for each in index.categories if each.has_annotations}
    parents = {each.parent for index in indexes for each in index.categories}
    names = (each.name for index in indexes for each in index.categories if not _is_group(each, used, parents))
    return tuple(dict.fromkeys(names))


def _is_group(category: Category, used: set[str], parents: set[str]) -> bool:
    """Whether a category only groups the others, as the first one in files of Roboflow."""
    return category.name not in used and category.name in parents and category.parent in ROOT_PARENTS


def category_note(index: CocoIndex, num_classes: int, rest: str = "") -> Iterator[str]:
    """Say how the ids number the classes."""
    ids: list[Any] = [category.id for category in index.categories]
    if not all(isinstance(id_, int) for id_ in ids):
        return
    gaps = ids[-1] - ids[0] + 1 - len(ids)
    which = f"id {ids[0]}" if len(ids) == 1 else f"ids {ids[0]} to {ids[-1]}{f' with {gaps} gaps' if gaps else ''}"
    yield f"{count_noun(len(ids), 'category')}, {which}; their order numbers the {num_classes:,} classes from 0{rest}"
    repeated = len(ids) - len({category.name for category in index.categories})
    if repeated:
        yield f"{repeated:,} categories have the name of another, and are of its class"


def file_notes(index: CocoIndex, left_out: LeftOutImages) -> Iterator[str]:
    """Say which images are not there, and which annotations are of no image or category."""
    counts, name = index.counts, index.path.name
    for reason in (NO_FILE, NO_SEGMENTS):
        if paths := [path for path, found in left_out if found == reason]:
            yield f"{name}: {count_noun(len(paths), 'image')} left out, first {paths[0].name}, which {reason}"
    if counts.without_image:
        first = counts.without_image_example
        yield f"{name}: {count_noun(counts.without_image, 'annotation')} of no image in the file, first {first}"
    if counts.without_category:
        ids = ", ".join(counts.without_category_ids)
        yield f"{name}: {count_noun(counts.without_category, 'annotation')} of no category in the file (ids {ids}), ignored"


def unlisted_notes(splits: Mapping[str, Dataset], left_out: Sequence[LeftOutFile]) -> Iterator[str]:
    """Say which images are in the same folders and in no file: they are not used, where those without annotations are."""
    listed, folders = {file.location for file in left_out}, dict[str, None]()
    for dataset in splits.values():
        for index in range(len(dataset)):
            path = dataset.describe(index)
            listed.add(path)
            folders[os.path.dirname(path)] = None
    others = [
        os.path.join(folder, name)
        for folder in folders
        for name in sorted(os.listdir(folder))
        if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not name.startswith(".")
    ]
    if unlisted := [path for path in others if path not in listed]:
        yield f"{count_noun(len(unlisted), 'image')} in no COCO file, not used, first {unlisted[0]}"


def count_noun(count: int, noun: str) -> str:
    return f"{count:,} {noun if count == 1 else noun.removesuffix('y') + 'ies' if noun.endswith('y') else noun + 's'}"
