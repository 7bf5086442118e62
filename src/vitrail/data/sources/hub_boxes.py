"""Boxes in a column of a dataset of Hugging Face's library: for each image its objects, as lists or dictionaries. m boxes.

Boxes are left, top, width and height, as COCO's, unless all of them fit into their images as corners and some do not as that.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from vitrail.data.class_names import deduplicate
from vitrail.data.sources.annotated_boxes import (
    AnnotatedBoxes,
    Annotations,
    are_fractions,
    box_notes,
    known_sizes,
    with_annotations,
)
from vitrail.data.sources.box_faults import TOLERANCE
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import Dataset, Progress, SourceSplits
from vitrail.data.sources.labels import natural_sorted
from vitrail.errors import VitrailError

OBJECT_COLUMNS = ("objects", "object", "annotations", "detections")
BOX_KEYS = ("bbox", "bboxes", "box", "boxes")
CLASS_KEYS = (
    "category", "categories", "label", "labels", "class", "classes", "category_id", "category_ids", "class_id", "name",
)  # fmt: skip
CROWD_KEYS, AREA_KEYS = ("iscrowd", "is_crowd", "crowd", "difficult"), ("area", "areas")
ONLY_CLASS = "object"


@dataclass(frozen=True)
class ObjectsColumn:
    """A column of objects, and the keys of what each of them has."""

    name: str
    box: str
    label: str | None
    crowd: str | None
    area: str | None
    class_names: tuple[str, ...] | None  # of a class that is a number


def find_objects_column(features: Mapping[str, Any]) -> ObjectsColumn | None:
    """Return the column of objects with boxes, if there is one."""
    for name in OBJECT_COLUMNS:
        feature = features.get(name)
        fields = getattr(feature, "feature", feature)  # of a list of dictionaries, or a dictionary of lists
        if not isinstance(fields, Mapping) or (box := _find_key(fields, BOX_KEYS)) is None:
            continue
        label = _find_key(fields, CLASS_KEYS)
        of_label = None if label is None else fields[label]
        declared = getattr(getattr(of_label, "feature", of_label), "names", None)
        names = None if declared is None else deduplicate([str(each) for each in declared])
        return ObjectsColumn(name, box, label, _find_key(fields, CROWD_KEYS), _find_key(fields, AREA_KEYS), names)
    return None


def _find_key(fields: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    return next((key for key in keys if key in fields), None)


@dataclass(frozen=True, eq=False)
class _Objects:
    """The objects of a split: the image of each, its numbers, and its class as the dataset has it."""

    images: Int[ndarray, " m"]
    boxes: Float[ndarray, "m 4"]
    classes: list[Any]
    crowd: ndarray
    areas: Float[ndarray, " m"]


def read_hub_boxes(
    address: object,
    splits: Mapping[str, tuple[Dataset, Any]],
    column: ObjectsColumn,
    sizes: Mapping[str, Int[ndarray, "n 2"]],
    progress: Progress | None = None,
) -> SourceSplits:
    """Return splits with boxes as targets. ``splits``: images and the library's rows of each. ``sizes``: of the images, 0 if
    they are not known."""
    found = {split: _read_objects(dataset, rows, column) for split, (dataset, rows) in splits.items()}
    names = _class_names(column, [name for objects in found.values() for name in objects.classes])
    every = np.concatenate([objects.boxes for objects in found.values()])
    in_fractions = are_fractions(every)
    known = {
        split: np.ones_like(sizes[split]) if in_fractions else known_sizes(dataset, sizes[split], found[split].images, progress)
        for split, (dataset, _) in splits.items()
    }
    of_images = np.concatenate([known[split][objects.images] for split, objects in found.items()])
    are_corners = _are_corners(every, of_images)
    boxed = dict[str, AnnotatedBoxes]()
    for split, (dataset, _) in splits.items():
        objects = found[split]
        boxes = objects.boxes.copy()
        if not are_corners:
            boxes[:, 2:] += boxes[:, :2]
        labels = _labels(objects, column, names, dataset)
        annotations = Annotations(
            objects.images, boxes, labels, None if in_fractions else sizes[split], objects.crowd, objects.areas
        )
        boxed[split] = with_annotations(dataset, annotations, names, _object_names(dataset), progress)
    meaning = "left, top, right and bottom" if are_corners else "left, top, width and height, as COCO's"
    unit = "fractions of the image" if in_fractions else "pixels"
    note = f"{column.box} of the column {column.name} is taken as {meaning}, in {unit}"
    return SourceSplits(dict(boxed), (*box_notes(address, boxed), note), Columns(boxes=True))


def _object_names(dataset: Dataset) -> Callable[[int, int], str]:
    return lambda index, number: f"{dataset.describe(index)}, object {number}"


def _read_objects(dataset: Dataset, rows: Any, column: ObjectsColumn) -> _Objects:
    images, boxes, classes, crowd, areas = list[int](), list[list[float]](), list[Any](), list[bool](), list[float]()
    for index, cell in enumerate(rows.with_format(None)[column.name]):
        try:
            for number, each in enumerate(_objects_of_cell(cell), start=1):
                images.append(index)
                boxes.append(_box(each.get(column.box), number))
                classes.append(None if column.label is None else each.get(column.label))
                crowd.append(bool(column.crowd and each.get(column.crowd)))
                area = each.get(column.area) if column.area else None
                areas.append(float("nan") if area is None else float(area))
        except (TypeError, ValueError) as error:
            raise VitrailError(f"{dataset.describe(index)}: {column.name} {error}") from None
    return _Objects(
        np.array(images, np.int64),
        np.array(boxes, np.float64).reshape(-1, 4),
        classes,
        np.array(crowd, bool),
        np.array(areas, np.float64),
    )


def _objects_of_cell(cell: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a cell: a list of them, or a dictionary of lists."""
    if isinstance(cell, Mapping):
        lists = {key: values for key, values in cell.items() if isinstance(values, list)}
        counts = {len(values) for values in lists.values()}
        if len(counts) > 1:
            found = ", ".join(f"{len(values)} {key}" for key, values in lists.items())
            raise ValueError(f"must have as many of each for an image, got {found}")
        yield from (dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True))
    else:
        yield from cell or ()


def _box(value: Any, number: int) -> list[float]:
    if not isinstance(value, list) or len(value) != 4 or not all(isinstance(each, int | float) for each in value):
        raise ValueError(f"must have four numbers for each box, got {str(value)[:60]} for object {number}")
    return [float(each) for each in value]


def _are_corners(boxes: Float[ndarray, "m 4"], sizes: Int[ndarray, "m 2"]) -> bool:
    """Whether boxes fit into images of these heights and widths as left, top, right and bottom, and not all as width and
    height."""
    sides, limits = boxes[:, 2:], np.where(sizes > 0, sizes, np.inf)[:, ::-1] + TOLERANCE
    fit_as_corners = (sides > boxes[:, :2]).all() and (sides <= limits).all()
    return bool(len(boxes) and fit_as_corners and (boxes[:, :2] + sides > limits).any())


def _class_names(column: ObjectsColumn, classes: Sequence[Any]) -> tuple[str, ...]:
    """Return the declared names; else of numbers those from 0 to the largest, of text the sorted ones."""
    if column.class_names is not None:
        return column.class_names
    if column.label is None:
        return (ONLY_CLASS,)
    if all(type(each) is int and each >= 0 for each in classes):
        return tuple(str(number) for number in range(max(classes, default=-1) + 1))
    return natural_sorted({str(each).strip() for each in classes if each is not None})


def _labels(objects: _Objects, column: ObjectsColumn, names: tuple[str, ...], dataset: Dataset) -> Int[ndarray, " m"]:
    if column.label is None:
        return np.zeros(len(objects.images), np.int64)
    number = {name: label for label, name in enumerate(names)}
    labels = np.array([each if type(each) is int else number.get(str(each).strip(), -1) for each in objects.classes], np.int64)
    invalid = np.flatnonzero((labels < 0) | (labels >= len(names)))
    if len(invalid):
        row = int(invalid[0])
        raise VitrailError(
            f"{dataset.describe(int(objects.images[row]))}: {column.name} has the {column.label} {objects.classes[row]!r}, and "
            f"there are {len(names)} classes"
        )
    return labels
