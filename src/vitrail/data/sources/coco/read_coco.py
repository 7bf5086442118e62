"""Read COCO files as a dataset whose targets are masks, of polygons and run lengths or panoptic segments, or boxes.

Boxes are the targets if they are chosen, or if there are no regions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Int16
from numpy import ndarray

from vitrail.data.sources.coco.coco_boxes import read_coco_boxes
from vitrail.data.sources.coco.coco_dataset import CocoImages, CocoRegions
from vitrail.data.sources.coco.coco_files import BOX_KINDS, choose_files
from vitrail.data.sources.coco.coco_index import CocoIndex, index_coco, is_coco
from vitrail.data.sources.coco.listed_images import (
    LeftOutImages,
    category_note,
    count_noun,
    file_notes,
    left_out_files,
    listed_images,
    unlisted_notes,
    used_categories,
)
from vitrail.data.sources.coco.panoptic import PanopticDataset
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import IGNORED, Dataset, ImageFileDataset, LeftOutFile, Progress, SourceSplits
from vitrail.errors import VitrailError

BACKGROUND = "background"
MAX_CLASSES = 32767  # of an int16


def read_coco_folder(
    root: Path, files: Sequence[Path], masks: bool = True, boxes: bool = True, progress: Progress | None = None
) -> SourceSplits:
    """Return the splits of a folder with these COCO files, with ``masks`` or ``boxes`` as targets, whichever there are."""
    chosen, unused = choose_files(root, files) if masks else choose_files(root, files, BOX_KINDS)
    source = _read({split: _index(path, progress) for split, path in chosen.items()}, masks, boxes, progress)
    if not unused:
        return source
    shown = ", ".join(str(path.relative_to(root)) for path in unused[:6])
    return replace(source, notes=(*source.notes, f"not read: {shown}; to read one instead, name it"))


def read_coco_file(path: Path, masks: bool = True, boxes: bool = True, progress: Progress | None = None) -> SourceSplits:
    """Return the images of a COCO file, without splits, with ``masks`` or ``boxes`` as targets or without any."""
    if not is_coco(path):
        raise VitrailError(
            f"{path} is not a COCO file, an object with images, annotations and categories; lines of JSON are named .jsonl"
        )
    index = _index(path, progress)
    return _read({"": index}, masks, boxes, progress) if masks or boxes else SourceSplits({"": listed_images(index)[0]})


def _read(indexes: dict[str, CocoIndex], masks: bool, boxes: bool, progress: Progress | None) -> SourceSplits:
    has_boxes = any(index.flags[:, 0].any() or index.counts.invalid_box for index in indexes.values())
    if boxes and not (masks and (not has_boxes or any(map(_has_regions, indexes.values())))):
        return read_coco_boxes(indexes, progress)
    for index in indexes.values():
        _check_has_regions(index)
    names, numbers = _number_classes(list(indexes.values()))
    splits, left_out, notes = dict[str, Dataset](), list[LeftOutFile](), list[str]()
    first = next(iter(indexes.values()))
    rest = "pixels of no segment are ignored" if first.is_panoptic else f"pixels of no region are {names[_background(names)]}"
    notes += category_note(first, len(names), f", and {rest}")
    for (split, index), classes in zip(indexes.items(), numbers, strict=True):
        images, rows, left_out_images = listed_images(index)
        splits[split] = _with_masks(images, rows, index, names, classes)
        left_out += left_out_files(left_out_images, split)
        notes += _notes(index, rows, left_out_images)
    return SourceSplits(splits, (*notes, *unlisted_notes(splits, left_out)), Columns(masks=True), tuple(left_out))


def _index(path: Path, progress: Progress | None) -> CocoIndex:
    total = path.stat().st_size
    index = index_coco(path, lambda done: progress("indexing", done, total) if progress else None)
    if not len(index.names):
        raise VitrailError(f"{path} has no images; name a file with images, annotations and categories")
    return index


def _has_regions(index: CocoIndex) -> bool:
    return index.counts.annotations > index.counts.boxes + index.counts.captions


def _check_has_regions(index: CocoIndex) -> None:
    counts = index.counts
    if _has_regions(index):
        return
    if counts.boxes:
        has = f"{counts.boxes:,} boxes in {len(index.categories):,} categories and no segmentations"
    else:
        has = f"{len(index.names):,} images and {counts.annotations:,} annotations without a region"
    raise VitrailError(
        f"{index.path} has {has}, and a mask is drawn from polygons or run lengths; name a file whose annotations have a "
        "segmentation, such as instances_train2017.json"
    )


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
    names = used_categories(indexes)
    if not panoptic and not any(name.lower() == BACKGROUND for name in names):
        names = (BACKGROUND, *names)
    if len(names) > MAX_CLASSES:
        raise VitrailError(f"{indexes[0].path} has {len(names):,} categories, and {MAX_CLASSES:,} classes are allowed")
    number = {name: place for place, name in enumerate(names)}
    classes = [[number.get(each.name, IGNORED) for each in index.categories] for index in indexes]
    return names, [np.array([*of_file, IGNORED], np.int16) for of_file in classes]


def _background(names: tuple[str, ...]) -> int:
    return next(place for place, name in enumerate(names) if name.lower() == BACKGROUND)


def _notes(index: CocoIndex, rows: ndarray, left_out: LeftOutImages) -> Iterator[str]:
    counts, name = index.counts, index.path.name
    yield from file_notes(index, left_out)
    empty = rows[np.diff(index.starts)[rows] == 0]
    if len(empty):
        images = count_noun(len(empty), "image")
        yield f"{name}: {images} without annotations, all background, first {index.names[int(empty[0])]}"
    if counts.degenerate:
        example, annotations = counts.degenerate_example, count_noun(counts.degenerate, "annotation")
        yield f"{name}: {annotations} with a polygon of fewer than three points, first {example}"
    if without := counts.boxes + counts.captions:
        yield f"{name}: {count_noun(without, 'annotation')} without a segmentation, left out"
    if counts.crowds:
        yield f"{name}: {count_noun(counts.crowds, 'annotation')} of crowds, whose pixels are ignored"
