"""Boxes in a table: a row for each box, with columns that are found by their names. m rows, n images.

A row whose box is empty stands for an image without objects. An image has as many rows as objects, all in one split.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from vitrail.data.sources.annotated_boxes import SPLITS, AnnotatedBoxes, Annotations, are_fractions, box_notes, with_annotations
from vitrail.data.sources.coded_column import CodedColumn
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import ImageFileDataset, Progress, SourceSplits
from vitrail.data.sources.labels import natural_sorted
from vitrail.data.sources.packed_strings import PackedStrings
from vitrail.data.sources.table_columns import LABEL_COLUMNS, find_column
from vitrail.errors import VitrailError

CORNERS = (
    ("xmin", "ymin", "xmax", "ymax"), ("left", "top", "right", "bottom"), ("x0", "y0", "x1", "y1"), ("x1", "y1", "x2", "y2"),
)  # fmt: skip
SIDES = tuple(
    (*start, *sides) for start in (("x", "y"), ("left", "top"), ("xmin", "ymin")) for sides in (("width", "height"), ("w", "h"))
)
CLASS_COLUMNS = (*LABEL_COLUMNS, "name", "class_id", "category_id", "category_name", "label_id")
CROWD_COLUMNS = ("crowd", "iscrowd", "is_crowd", "difficult", "isgroupof", "is_group_of")
SIZE_COLUMNS = (("height", "width"), ("image_height", "image_width"), ("img_height", "img_width"))
TRUE = ("1", "1.0", "true", "yes")
ONLY_CLASS = "object"


@dataclass(frozen=True)
class BoxColumns:
    """Names of the columns of boxes."""

    corners: tuple[str, str, str, str]
    have_sides: bool  # whether the last two are width and height
    label: str | None
    crowd: str | None
    size: tuple[str, str] | None  # height and width of the image

    @property
    def names(self) -> list[str]:
        return [name for name in (*self.corners, self.label, self.crowd, *(self.size or ())) if name is not None]


def find_box_columns(path: object, header: Sequence[str], options: Columns) -> BoxColumns | None:
    """Return the columns of boxes if boxes may be the targets; raise if they are to be and there are none."""
    if not options.allow_boxes:
        return None
    by_name = {_plain(name): name for name in reversed(header)}
    found = next((names for names in (*CORNERS, *SIDES) if all(name in by_name for name in names)), None)
    if found is None:
        if not options.boxes:
            return None
        raise VitrailError(
            f"{path} has no columns of boxes, only {', '.join(header)}; name four of them {', '.join(CORNERS[0])}, or "
            f"{', '.join(SIDES[0])}"
        )
    left, top, right, bottom = (by_name[name] for name in found)
    rest = [name for name in header if name not in (left, top, right, bottom)]
    sizes = ((find_column(path, rest, None, [name], "size") for name in names) for names in SIZE_COLUMNS)
    return BoxColumns(
        (left, top, right, bottom),
        found in SIDES,
        find_column(path, rest, options.labels, CLASS_COLUMNS, "labels"),
        find_column(path, rest, None, CROWD_COLUMNS, "crowd"),
        next(((height, width) for height, width in sizes if height is not None and width is not None), None),
    )


def _plain(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return plain.removeprefix("bbox") if plain.startswith("bbox") else plain.removeprefix("box")


@dataclass(frozen=True, eq=False)
class BoxRows:
    """The rows of a table of boxes."""

    path: Path
    images: PackedStrings  # file of each row
    columns: Mapping[str, CodedColumn]
    splits: CodedColumn | None
    row_name: Callable[[int], str]
    declared: Mapping[str, tuple[str, ...]]  # class names of a column of numbers


def read_box_rows(rows: BoxRows, box_columns: BoxColumns, labelled: bool, progress: Progress | None = None) -> SourceSplits:
    """Return the images of a table by split, each once, with boxes as targets; without any if they need not be labelled."""
    names, first, image_of = np.unique(np.array(list(rows.images), object), return_index=True, return_inverse=True)
    order = np.argsort(first)  # images are in the order of their first rows
    place = np.argsort(order)
    image_of, first, images = place[image_of], first[order], names[order].tolist()
    split_of = _split_of_images(rows, images, image_of, first)
    selected = {split: np.flatnonzero(split_of == split) for split in SPLITS}
    datasets = {
        split: ImageFileDataset(
            rows.path.parent, PackedStrings.from_strings(images[index] for index in of_split), np.full(len(of_split), -1), ()
        )
        for split, of_split in selected.items()
        if len(of_split)
    }
    if not labelled:
        return SourceSplits(dict(datasets))
    boxes, is_box = _boxes(rows, box_columns)
    labels, class_names = _labels(rows, box_columns, is_box)
    in_fractions = are_fractions(boxes[is_box])
    crowd = _flags(rows, box_columns)
    sizes = _sizes(rows, box_columns, first)
    splits = dict[str, AnnotatedBoxes]()
    for split, dataset in datasets.items():
        index_of = np.full(len(images), -1, np.int64)
        index_of[selected[split]] = np.arange(len(dataset))
        used = np.flatnonzero(is_box & (index_of[image_of] >= 0))
        annotations = Annotations(
            index_of[image_of[used]], boxes[used], labels[used], None if in_fractions else sizes[selected[split]],
            crowd=crowd[used], numbers=used,
        )  # fmt: skip
        splits[split] = with_annotations(
            dataset, annotations, class_names, lambda _, row: f"{rows.path}, {rows.row_name(row)}", progress
        )
    notes = (*box_notes(rows.path, splits), *_notes(box_columns, in_fractions))
    return SourceSplits(dict(splits), notes, Columns(labels=box_columns.label, boxes=True))


def _split_of_images(rows: BoxRows, images: list[str], image_of: ndarray, first: ndarray) -> ndarray:
    """Return the split of each image; raise if its rows have different ones."""
    if rows.splits is None:
        return np.full(len(images), "")
    codes = rows.splits.codes
    if len(other := np.flatnonzero(codes != codes[first][image_of])):
        row, before = int(other[0]), int(first[image_of[other[0]]])
        one, two = (rows.splits.values[codes[each]] for each in (before, row))
        raise VitrailError(
            f"{rows.path}, {rows.row_name(row)}: {images[image_of[row]]} is in {two}, and in {rows.row_name(before)} in {one}; "
            "give all rows of an image one split"
        )
    return np.array(rows.splits.values)[codes[first]]


def _boxes(rows: BoxRows, box_columns: BoxColumns) -> tuple[Float[ndarray, "m 4"], ndarray]:
    """Return left, top, right and bottom of each row, and whether it has a box."""
    columns = [_numbers(rows, name) for name in box_columns.corners]
    is_empty = np.stack([empty for _, empty in columns], axis=1)
    if len(partly := np.flatnonzero(is_empty.any(axis=1) & ~is_empty.all(axis=1))):
        row = int(partly[0])
        name = box_columns.corners[int(np.argmax(is_empty[row]))]
        raise VitrailError(
            f"{rows.path}, {rows.row_name(row)}: the box has no {name}; fill it in, or leave all four empty for an image "
            "without objects"
        )
    boxes = np.stack([numbers for numbers, _ in columns], axis=1)
    if box_columns.have_sides:
        boxes[:, 2:] += boxes[:, :2]
    return boxes, ~is_empty[:, 0]


def _numbers(rows: BoxRows, name: str) -> tuple[Float[ndarray, " m"], ndarray]:
    """Return the numbers of a column, and which of its cells are empty."""
    column = rows.columns[name]
    values = np.full(len(column.values), np.nan)
    is_empty = np.zeros(len(column.values), bool)
    for code, value in enumerate(column.values):
        text = "" if value is None else value.strip() if isinstance(value, str) else value
        is_empty[code] = text == ""
        if is_empty[code]:
            continue
        try:
            values[code] = float(text)
        except (TypeError, ValueError, OverflowError):
            where = rows.row_name(column.row_of(code))
            raise VitrailError(f"{rows.path}, {where}: {name} must be a number, got {str(value)[:40]!r}") from None
    return values[column.codes], is_empty[column.codes]


def _labels(rows: BoxRows, box_columns: BoxColumns, is_box: ndarray) -> tuple[Int[ndarray, " m"], tuple[str, ...]]:
    """Return the class of each row, and the names of the classes."""
    if box_columns.label is None:
        return np.zeros(len(is_box), np.int64), (ONLY_CLASS,)
    column = rows.columns[box_columns.label]
    used = np.unique(column.codes[is_box]).tolist()
    names = [_text(value) for value in column.values]
    if (unnamed := next((code for code in used if not names[code]), None)) is not None:
        row = int(np.flatnonzero(is_box & (column.codes == unnamed))[0])
        raise VitrailError(
            f"{rows.path}, {rows.row_name(row)}: the box has no {box_columns.label}; fill it in or remove the line"
        )
    if (declared := rows.declared.get(box_columns.label)) is not None:
        invalid = next((code for code in used if not names[code].isdecimal() or int(names[code]) >= len(declared)), None)
        if invalid is not None:
            where = rows.row_name(column.row_of(invalid))
            raise VitrailError(
                f"{rows.path}, {where}: {box_columns.label} must be a class from 0 to {len(declared) - 1}, got {names[invalid]}"
            )
        names = [declared[int(name)] if code in used else "" for code, name in enumerate(names)]
    class_names = declared or natural_sorted({names[code] for code in used})
    number = {name: label for label, name in enumerate(class_names)}
    return np.array([number.get(name, -1) for name in names], np.int64)[column.codes], class_names


def _text(value: Any) -> str:
    """Return a cell as the name of a class; a whole number that was stored as a float is written as one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value).strip()


def _flags(rows: BoxRows, box_columns: BoxColumns) -> ndarray:
    if box_columns.crowd is None:
        return np.zeros(len(rows.images), bool)
    column = rows.columns[box_columns.crowd]
    return np.array([_text(value).lower() in TRUE for value in column.values], bool)[column.codes]


def _sizes(rows: BoxRows, box_columns: BoxColumns, first: ndarray) -> Int[ndarray, "n 2"]:
    """Return height and width of each image as its first row has them, 0 if there are none."""
    if box_columns.size is None:
        return np.zeros((len(first), 2), np.int64)
    sides = np.stack([_numbers(rows, name)[0][first] for name in box_columns.size], axis=1)
    return np.where(np.isfinite(sides).all(axis=1, keepdims=True) & (sides > 0), sides, 0).astype(np.int64)


def _notes(box_columns: BoxColumns, in_fractions: bool) -> Iterator[str]:
    sides = ", the last two its width and height" if box_columns.have_sides else ""
    unit = "fractions of the image" if in_fractions else "pixels"
    yield f"boxes are in the columns {', '.join(box_columns.corners)}{sides}, in {unit}"
    if box_columns.label is None:
        yield f"no column names a class, so all boxes are of one, {ONLY_CLASS!r}"
