"""Read a table of images: CSV, JSON lines or Parquet, with paths or encoded images, targets and splits.

A column of train, validation and test makes the splits. Whether the files exist is for the dataset check to report.
"""

import csv
import io
import itertools
import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from vitrail.data.sources.coded_column import CodedColumn, ColumnBuilder, to_cell
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import Dataset, ImageFileDataset, Progress, SourceSplits, select_images
from vitrail.data.sources.packed_strings import PackedStrings
from vitrail.data.sources.parquet import ParquetTable, read_parquet
from vitrail.data.sources.table_boxes import BoxRows, find_box_columns, read_box_rows
from vitrail.data.sources.table_columns import (
    IMAGE_COLUMNS,
    MAX_INDICATOR_VALUES,
    SPLIT_COLUMNS,
    find_column,
    parse_splits,
    require_column,
    target_columns,
)
from vitrail.data.sources.table_targets import TargetColumns, missing_positives
from vitrail.errors import VitrailError

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".pq")
CHUNK_ROWS = 2**9  # rows read at a time: few, or Python's garbage collector scans them again and again
NO_ROWS = "has no rows; it needs a header such as path,label and one line per image"


@dataclass(frozen=True, eq=False)
class ListedImages:
    """A table that lists image files: their paths, the other columns, and the line of each row."""

    path: Path
    header: list[str]
    images: PackedStrings
    columns: dict[str, CodedColumn]
    lines: ndarray
    unit: str = "line"
    declared: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    def row_name(self, row: int) -> str:
        return f"{self.unit} {self.lines[row]}"

    def dataset(self, labels: ndarray, class_names: tuple[str, ...]) -> Dataset:
        return ImageFileDataset(self.path.parent, self.images, labels, class_names)


def read_table(
    path: str | Path,
    columns: Columns | None = None,
    labelled: bool = True,
    *,
    image: str | None = None,
    split: str | None = None,
    progress: Progress | None = None,
) -> SourceSplits:
    """Read a .csv, .tsv, .jsonl or .parquet file. ``columns`` names those of the targets, ``image`` and ``split`` columns with
    unusual names. If it need not be ``labelled``, a table without targets is read too."""
    path, options = Path(path), columns or Columns()
    if not path.is_file():
        raise VitrailError(f"{path} is not a file; a table is a .csv, .tsv, .jsonl or .parquet file")
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        table: ListedImages | ParquetTable = read_parquet(path, image, split, options)
        if isinstance(table.images, list):
            table = _listed_in_parquet(table, table.images)
    else:
        table = _read_text(path, image, split, options, is_json=suffix in (".jsonl", ".ndjson"))
    return _build_splits(table, options, labelled, split, progress)


def _build_splits(
    table: "ListedImages | ParquetTable", options: Columns, labelled: bool, split: str | None, progress: Progress | None
) -> SourceSplits:
    columns = dict(table.columns)
    split_name = find_column(table.path, list(columns), split, SPLIT_COLUMNS, "split")
    splits = None
    if split_name is not None and split_name not in (options.labels, *options.targets):
        splits = parse_splits(table.path, columns.pop(split_name), table.row_name, split)
    if isinstance(table, ListedImages) and (found := find_box_columns(table.path, list(columns), options)) is not None:
        box_rows = BoxRows(table.path, table.images, columns, splits, table.row_name, table.declared)
        return read_box_rows(box_rows, found, labelled or bool(options.boxes), progress)
    targets = TargetColumns(table.path, table.header, columns, table.row_name, len(table), table.declared).find(
        options, labelled
    )
    dataset = targets.attach(table.dataset(targets.single_labels, targets.class_names))
    if splits is None:
        return SourceSplits({"": dataset}, targets.notes, targets.columns)
    parts = {}
    for name in ("train", "validation", "test", ""):
        codes = [code for code, value in enumerate(splits.values) if value == name]
        if len(rows := np.flatnonzero(np.isin(splits.codes, codes))):
            parts[name] = select_images(dataset, rows)
    in_train = np.array([value == "train" for value in splits.values])[splits.codes]
    missing = missing_positives(targets, in_train, table.row_name)
    return SourceSplits(parts, (*targets.notes, *missing), targets.columns)


def _listed_in_parquet(table: ParquetTable, paths: list[Any]) -> ListedImages:
    if (empty := _find_empty_path(paths)) is not None:
        raise VitrailError(f"{table.path}, {table.row_name(empty)}: the path is empty; fill it in or remove the line")
    images = PackedStrings.from_strings(paths)
    return ListedImages(table.path, table.header, images, table.columns, np.arange(1, len(paths) + 1), "row", table.declared)


# Text ----------------------------------------------------------------------------------------------------------------


def _read_text(path: Path, image: str | None, split: str | None, options: Columns, is_json: bool) -> ListedImages:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            header, rows = _json_rows(path, file) if is_json else _csv_rows(path, file)
            return _read_rows(path, header, rows, image, split, options)
    except UnicodeDecodeError:
        raise VitrailError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except csv.Error as error:
        raise VitrailError(f"{path} is not a readable CSV: {error}") from None


def _csv_rows(path: Path, file: io.TextIOWrapper) -> tuple[list[str], Iterator[tuple[int, list[Any]]]]:
    """Return the header, and line and cells of each row."""
    first = file.readline()
    delimiter = max(",;\t", key=first.count)  # on a tie the first: a comma
    file.seek(0)
    reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
    header = [cell.strip() for cell in next(reader, [])]
    width = len(header)
    missing = [""] * width

    def rows() -> Iterator[tuple[int, list[Any]]]:
        for cells in reader:
            if len(cells) == width:
                if any(cells):
                    yield reader.line_num, cells
            elif len(cells) < width:
                if any(cells):
                    yield reader.line_num, [*cells, *missing[len(cells) :]]
            elif any(cells[width:]):
                raise VitrailError(
                    f"{path}, line {reader.line_num}: there are {len(cells)} cells where the header has {width}; put a cell "
                    f"with {delimiter!r} in quotation marks"
                )
            else:
                yield reader.line_num, cells

    return header, rows()


def _json_rows(path: Path, file: io.TextIOWrapper) -> tuple[list[str], Iterator[tuple[int, list[Any]]]]:
    """Return the keys of all objects as the header, and line and values of each row; a missing key is empty."""
    header: dict[str, None] = {}
    for _, row in _json_objects(path, file):
        if row.keys() - header.keys():
            header.update(dict.fromkeys(row))
    file.seek(0)
    return list(header), ((line, [to_cell(row.get(name)) for name in header]) for line, row in _json_objects(path, file))


def _json_objects(path: Path, file: io.TextIOWrapper) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise VitrailError(f"{path}, line {line} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise VitrailError(f'{path}, line {line} must be an object such as {{"file": "a.jpg", "labels": ["hat"]}}')
        yield line, row


def _read_rows(
    path: Path,
    header: list[str],
    rows: Iterator[tuple[int, list[Any]]],
    image: str | None,
    split: str | None,
    options: Columns,
) -> ListedImages:
    """Read the rows once: the paths into one buffer, the columns of splits and targets into codes."""
    if not header:
        raise VitrailError(f"{path} {NO_ROWS}")
    image_name = require_column(path, header, image, IMAGE_COLUMNS, "image paths")
    images, others = header.index(image_name), [name for name in header if name and name != image_name]
    targets, split_name = target_columns(path, others, options), find_column(path, others, split, SPLIT_COLUMNS, "split")
    if (boxes := find_box_columns(path, others, options)) is not None:
        targets = boxes.names
    wanted = others if targets is None else [*targets, *([split_name] if split_name else [])]
    # without a column of labels, only those of zeros and ones matter
    builders = {
        name: ColumnBuilder(MAX_INDICATOR_VALUES if targets is None and name != split_name else None)
        for name in dict.fromkeys(wanted)
    }
    lines, buffers = array("q"), list[ndarray]()
    while chunk := list(itertools.islice(rows, CHUNK_ROWS)):
        lines.extend(line for line, _ in chunk)
        paths = [cells[images] for _, cells in chunk]
        if (empty := _find_empty_path(paths)) is not None:
            raise VitrailError(f"{path}, line {chunk[empty][0]}: the path is empty; fill it in or remove the line")
        buffers.append(PackedStrings.from_strings(paths).buffer)
        for name, builder in builders.items():
            position = header.index(name)
            builder.extend([cells[position] for _, cells in chunk])
    if not lines:
        raise VitrailError(f"{path} {NO_ROWS}")
    columns = {name: column for name, builder in builders.items() if (column := builder.build()) is not None}
    return ListedImages(path, header, PackedStrings(np.concatenate(buffers)), columns, np.frombuffer(lines, np.int64))


def _find_empty_path(paths: Sequence[Any]) -> int | None:
    return next((row for row, text in enumerate(paths) if not isinstance(text, str) or not text.strip() or "\0" in text), None)
