"""Read COCO files as a dataset whose targets are masks: polygons and run lengths, or panoptic segments."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int16
from numpy import ndarray

from vitrail.data.sources.coco.coco_dataset import CocoImages, CocoRegions
from vitrail.data.sources.coco.coco_files import choose_files, find_images, is_below
from vitrail.data.sources.coco.coco_index import Category, CocoIndex, index_coco, is_coco
from vitrail.data.sources.coco.panoptic import PanopticDataset
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import IGNORED, Dataset, ImageFileDataset, LeftOutFile, Progress, SourceSplits
from vitrail.data.sources.packed_strings import PackedStrings
from vitrail.data.sources.scan_folder import IMAGE_SUFFIXES
from vitrail.errors import VitrailError

BACKGROUND = "background"
MAX_CLASSES = 32767  # of an int16
NO_FILE, NO_SEGMENTS = "does not exist", "has no segments"
ROOT_PARENTS = ("none", "")  # supercategory of a category that only groups the others


def read_coco_folder(root: Path, files: Sequence[Path], progress: Progress | None = None) -> SourceSplits:
    """Return the splits of a folder with these COCO files."""
    chosen, unused = choose_files(root, files)
    source = _read({split: _index(path, progress) for split, path in chosen.items()})
    if not unused:
        return source
    shown = ", ".join(str(path.relative_to(root)) for path in unused[:6])
    return replace(source, notes=(*source.notes, f"not read: {shown}; to read one instead, name it"))


def read_coco_file(path: Path, labelled: bool = True, progress: Progress | None = None) -> SourceSplits:
    """Return the images of a COCO file, without splits; if they need not be ``labelled``, without masks."""
    if not is_coco(path):
        raise VitrailError(
            f"{path} is not a COCO file, an object with images, annotations and categories; lines of JSON are named .jsonl"
        )
    index = _index(path, progress)
    return _read({"": index}) if labelled else SourceSplits({"": _images(index)[0]})


def _read(indexes: dict[str, CocoIndex]) -> SourceSplits:
    for index in indexes.values():
        _check_has_regions(index)
    names, numbers = _number_classes(list(indexes.values()))
    splits, left_out, notes = dict[str, Dataset](), list[LeftOutFile](), list[str]()
    notes += _class_notes(next(iter(indexes.values())), names)
    for (split, index), classes in zip(indexes.items(), numbers, strict=True):
        images, rows, left_out_images = _images(index)
        splits[split] = _with_masks(images, rows, index, names, classes)
        left_out += [LeftOutFile(str(path), reason, split) for path, reason in left_out_images]
        notes += _notes(index, rows, left_out_images)
    return SourceSplits(splits, (*notes, *_unlisted_notes(splits, left_out)), Columns(masks=True), tuple(left_out))


def _index(path: Path, progress: Progress | None) -> CocoIndex:
    total = path.stat().st_size
    index = index_coco(path, lambda done: progress("indexing", done, total) if progress else None)
    if not len(index.names):
        raise VitrailError(f"{path} has no images; name a file with images, annotations and categories")
    return index


def _check_has_regions(index: CocoIndex) -> None:
    counts = index.counts
    if counts.annotations > counts.boxes + counts.captions:
        return
    if counts.boxes:
        has = f"{counts.boxes:,} boxes in {len(index.categories):,} categories and no segmentations"
    else:
        has = f"{len(index.names):,} images and {counts.annotations:,} annotations without a region"
    raise VitrailError(
        f"{index.path} has {has}, and a mask is drawn from polygons or run lengths; name a file whose annotations have a "
        "segmentation, such as instances_train2017.json"
    )


def _images(index: CocoIndex) -> tuple[ImageFileDataset, ndarray, list[tuple[Path, str]]]:
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


def _with_masks(
    images: ImageFileDataset, rows: ndarray, index: CocoIndex, names: tuple[str, ...], classes: Int16[ndarray, " k"]
) -> CocoImages:
    columns = (images.root, images.paths, images.labels, names, index, rows, classes)
    if not index.is_panoptic:
        return CocoRegions(*columns, background=_background(names))
    ids = {category.id: place for place, category in enumerate(index.categories)}
    return PanopticDataset(*columns, segments_folder=_segments_folder(index), ids=ids)


def _segments_folder(index: CocoIndex) -> Path:
    """Return the folder of the PNGs: that of the file's name, in its folder or beside it."""
    first = next(row for row in range(len(index.names)) if len(index.rows(row)))
    name = str(index.read(first)[0]["file_name"])
    around = index.path.parent
    folders = [
        around / index.path.stem,
        around.parent / index.path.stem,
        around,
        around / "panoptic",
        around.parent / "panoptic",
    ]
    found = next((folder for folder in folders if (folder / name).is_file()), None)
    if found is None:
        raise VitrailError(f"the segments of {index.path}, such as {name}, are not in {folders[0]}; put the PNGs there")
    return found


def _number_classes(indexes: Sequence[CocoIndex]) -> tuple[tuple[str, ...], list[Int16[ndarray, " k"]]]:
    """Return the names of the classes, and for each file the class of each category, and ``IGNORED`` as the last."""
    panoptic = [index for index in indexes if index.is_panoptic]
    if panoptic and len(panoptic) < len(indexes):
        other = next(index for index in indexes if not index.is_panoptic)
        raise VitrailError(f"{panoptic[0].path} is panoptic and {other.path} is not; name two files of one kind")
    used = {each.name for index in indexes for each in index.categories if each.has_annotations}
    parents = {each.parent for index in indexes for each in index.categories}
    names = dict[str, None]()
    for index in indexes:
        names |= dict.fromkeys(each.name for each in index.categories if not _is_group(each, used, parents))
    if not panoptic and not any(name.lower() == BACKGROUND for name in names):
        names = {BACKGROUND: None} | names
    if len(names) > MAX_CLASSES:
        raise VitrailError(f"{indexes[0].path} has {len(names):,} categories, and {MAX_CLASSES:,} classes are allowed")
    number = {name: place for place, name in enumerate(names)}
    classes = [[number.get(each.name, IGNORED) for each in index.categories] for index in indexes]
    return tuple(names), [np.array([*of_file, IGNORED], np.int16) for of_file in classes]


def _is_group(category: Category, used: set[str], parents: set[str]) -> bool:
    """Whether a category only groups the others, as the first one in files of Roboflow."""
    return category.name not in used and category.name in parents and category.parent in ROOT_PARENTS


def _background(names: tuple[str, ...]) -> int:
    return next(place for place, name in enumerate(names) if name.lower() == BACKGROUND)


def _class_notes(index: CocoIndex, names: tuple[str, ...]) -> Iterator[str]:
    ids: list[Any] = [category.id for category in index.categories]
    if not all(isinstance(id_, int) for id_ in ids):
        return
    gaps = ids[-1] - ids[0] + 1 - len(ids)
    which = f"id {ids[0]}" if len(ids) == 1 else f"ids {ids[0]} to {ids[-1]}{f' with {gaps} gaps' if gaps else ''}"
    rest = "pixels of no segment are ignored" if index.is_panoptic else f"pixels of no region are {names[_background(names)]}"
    yield f"{_count(len(ids), 'category')}, {which}; their order numbers the {len(names):,} classes from 0, and {rest}"
    repeated = len(ids) - len({category.name for category in index.categories})
    if repeated:
        yield f"{repeated:,} categories have the name of another, and are of its class"


def _notes(index: CocoIndex, rows: ndarray, left_out: Sequence[tuple[Path, str]]) -> Iterator[str]:
    counts, name = index.counts, index.path.name
    for reason in (NO_FILE, NO_SEGMENTS):
        if paths := [path for path, found in left_out if found == reason]:
            yield f"{name}: {_count(len(paths), 'image')} left out, first {paths[0].name}, which {reason}"
    empty = rows[np.diff(index.starts)[rows] == 0]
    if len(empty):
        yield f"{name}: {_count(len(empty), 'image')} without annotations, all background, first {index.names[int(empty[0])]}"
    if counts.without_image:
        first = counts.without_image_example
        yield f"{name}: {_count(counts.without_image, 'annotation')} of no image in the file, first {first}"
    if counts.without_category:
        ids = ", ".join(counts.without_category_ids)
        yield f"{name}: {_count(counts.without_category, 'annotation')} of no category in the file (ids {ids}), ignored"
    if counts.degenerate:
        example = counts.degenerate_example
        yield f"{name}: {_count(counts.degenerate, 'annotation')} with a polygon of fewer than three points, first {example}"
    if without := counts.boxes + counts.captions:
        yield f"{name}: {_count(without, 'annotation')} without a segmentation, left out"
    if counts.crowds:
        yield f"{name}: {_count(counts.crowds, 'annotation')} of crowds, whose pixels are ignored"


def _unlisted_notes(splits: Mapping[str, Dataset], left_out: Sequence[LeftOutFile]) -> Iterator[str]:
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
        yield f"{_count(len(unlisted), 'image')} in no COCO file, not used, first {unlisted[0]}"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun if count == 1 else noun.removesuffix('y') + 'ies' if noun.endswith('y') else noun + 's'}"
