"""Boxes of COCO files, with the areas of their objects and crowds. n images, m annotations.

An annotation without a box has one around its region, if it has one; whichever numbers categories have, their order is that of
the classes.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy import ndarray

from vitrail.data.sources.annotated_boxes import AnnotatedBoxes, Annotations, box_notes, with_annotations
from vitrail.data.sources.coco.coco_index import CocoIndex
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
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import LeftOutFile, Progress, SourceSplits
from vitrail.errors import VitrailError


def read_coco_boxes(indexes: dict[str, CocoIndex], progress: Progress | None = None) -> SourceSplits:
    """Return the splits of COCO files, with boxes as targets."""
    for index in indexes.values():
        _check_has_boxes(index)
    first, names = next(iter(indexes.values())), used_categories(list(indexes.values()))
    if not names:
        raise VitrailError(f"{first.path} has no categories; name the class of each number in them")
    splits, left_out, notes = dict[str, AnnotatedBoxes](), list[LeftOutFile](), list[str]()
    for split, index in indexes.items():
        images, rows, left_out_images = listed_images(index)
        annotations = _annotations(index, rows, names)
        splits[split] = with_annotations(images, annotations, names, _object_names(index, rows), progress)
        left_out += left_out_files(left_out_images, split)
        notes += _notes(index, left_out_images)
    notes = [*box_notes(first.path, splits), *category_note(first, len(names)), *notes, *unlisted_notes(splits, left_out)]
    return SourceSplits(dict(splits), tuple(notes), Columns(boxes=True), tuple(left_out))


def _check_has_boxes(index: CocoIndex) -> None:
    counts = index.counts
    if counts.invalid_box:
        raise VitrailError(f"{index.path}: {counts.invalid_box}; a box is [left, top, width, height], in pixels")
    if index.is_panoptic:
        raise VitrailError(
            f"{index.path} is panoptic, and has no boxes of its own; name a file such as instances_train2017.json"
        )
    if counts.annotations and not index.flags[:, 0].any():
        raise VitrailError(
            f"{index.path} has {len(index.names):,} images and {counts.annotations:,} annotations without a box; name a file "
            "whose annotations have a bbox, such as instances_train2017.json"
        )


def _annotations(index: CocoIndex, rows: ndarray, names: tuple[str, ...]) -> Annotations:
    """Return the boxes of the images of these rows, without those of no class."""
    number = {name: label for label, name in enumerate(names)}
    classes = np.array([*(number.get(category.name, -1) for category in index.categories), -1], np.int64)
    place = np.full(len(index.names), -1, np.int64)
    place[rows] = np.arange(len(rows))
    counts = np.diff(index.starts)
    images = place[np.repeat(np.arange(len(index.names)), counts)]
    numbers = np.arange(len(images)) - np.repeat(index.starts[:-1], counts) + 1
    labels, (has_box, is_crowd) = classes[index.annotations[:, 0]], index.flags.T
    used = (images >= 0) & (labels >= 0) & has_box
    return Annotations(
        images[used],
        index.boxes[used, :4],
        labels[used],
        index.sizes[rows],
        crowd=is_crowd[used],
        areas=index.boxes[used, 4],
        numbers=numbers[used],
    )


def _object_names(index: CocoIndex, rows: ndarray) -> Callable[[int, int], str]:
    def name_object(image: int, number: int) -> str:
        row = int(rows[image])
        return f"{index.path}, annotation id {index.read(row)[number - 1].get('id')} of {index.names[row]}"

    return name_object


def _notes(index: CocoIndex, left_out: LeftOutImages) -> Iterator[str]:
    counts, name = index.counts, index.path.name
    yield from file_notes(index, left_out)
    if counts.outlined:
        yield f"{name}: {count_noun(counts.outlined, 'annotation')} without a bbox, whose box is that around the segmentation"
    if counts.without_box:
        yield f"{name}: {count_noun(counts.without_box, 'annotation')} without a box, left out"
    if counts.crowds:
        crowds = count_noun(counts.crowds, "annotation")
        yield f"{name}: {crowds} of crowds: not learned, and detections inside count neither as right nor as wrong"
