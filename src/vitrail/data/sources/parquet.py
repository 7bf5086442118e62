"""Read Parquet files of targets and paths, or of targets and encoded images. Needs pyarrow (the extra ``datasets``)."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from vitrail.data.class_names import deduplicate
from vitrail.data.sources.coded_column import CodedColumn, ColumnBuilder
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import Dataset, read_image_file
from vitrail.data.sources.table_boxes import find_box_columns
from vitrail.data.sources.table_columns import (
    IMAGE_COLUMNS,
    MAX_INDICATOR_VALUES,
    SPLIT_COLUMNS,
    find_column,
    require_column,
    target_columns,
    to_cells,
)
from vitrail.errors import VitrailError, first_line

FLAG_TYPES = ("bool", "int", "uint", "float", "double", "string")  # of columns that may hold zeros and ones
BATCH_ROWS = 2**14
MAX_ROW_GROUP_BYTES = 2**30  # bytes: a row group is decoded whole, and some are cached


@dataclass(frozen=True, eq=False)
class ParquetDataset(Dataset):
    """Encoded images in a column of a Parquet file, read a row group at a time: fast in order, slow when shuffled."""

    table: Path
    column: str
    stamp: tuple[int, int]  # size and modification time of the file when it was opened
    row_group_starts: ndarray  # first row of each row group
    labels: ndarray
    class_names: tuple[str, ...]

    def describe(self, index: int) -> str:
        return f"row {index + 1} of {self.table}"

    def read(self, index: int) -> bytes:
        group = int(np.searchsorted(self.row_group_starts, index, side="right")) - 1
        cell = _read_row_group(self.table, self.column, self.stamp, group)[index - int(self.row_group_starts[group])].as_py()
        return image_bytes_of_cell(cell, self.table.parent, self.describe(index))

    def groups(self) -> ndarray:
        return np.searchsorted(self.row_group_starts, np.arange(len(self)), side="right")

    def content_key(self) -> bytes:
        return repr((str(self.table), self.stamp)).encode()

    def cache_key(self) -> bytes:
        return self.content_key()


def image_bytes_of_cell(cell: Any, folder: Path, description: str) -> bytes:
    """Return the bytes of a cell: plain, or Hugging Face's struct of bytes and path."""
    if isinstance(cell, dict):
        path, cell = cell.get("path"), cell.get("bytes")
        if cell is None and isinstance(path, str) and "\0" not in path:
            return read_image_file(folder / path)
    if not isinstance(cell, bytes):
        raise VitrailError(f"{description} has no image")
    return cell


@lru_cache(maxsize=4)
def _read_row_group(path: Path, column: str, stamp: tuple[int, int], group: int) -> Any:
    if _file_stamp(path) != stamp:
        raise VitrailError(f"{path} has changed since it was opened; open it again")
    try:
        with _import_pyarrow().ParquetFile(path) as file:
            return file.read_row_group(group, columns=[column], use_threads=False).column(0)
    except Exception as error:  # pyarrow raises many types
        raise VitrailError(f"row group {group} of {path} cannot be read: {first_line(error)}") from None


@dataclass(frozen=True, eq=False)
class ParquetTable:
    """A Parquet file: the column of encoded images, or the paths, and the columns of splits and targets."""

    path: Path
    header: list[str]
    images: str | list[Any]
    columns: dict[str, CodedColumn]
    num_rows: int
    stamp: tuple[int, int]
    row_group_starts: ndarray
    declared: dict[str, tuple[str, ...]]  # class names of columns of numbers

    def __len__(self) -> int:
        return self.num_rows

    def row_name(self, row: int) -> str:
        return f"row {row + 1}"

    def dataset(self, labels: ndarray, class_names: tuple[str, ...]) -> Dataset:
        assert isinstance(self.images, str)
        return ParquetDataset(self.path, self.images, self.stamp, self.row_group_starts, labels, class_names)


def read_parquet(path: Path, image: str | None, split: str | None, options: Columns) -> ParquetTable:
    """Read a Parquet file but for its images; ``image`` and ``split`` name columns with unusual names."""
    pyarrow = _import_pyarrow()
    stamp = _file_stamp(path)
    try:
        with pyarrow.ParquetFile(path) as file:
            return _read_columns(path, file, stamp, image, split, options)
    except VitrailError:
        raise
    except Exception as error:
        raise VitrailError(f"{path} is not a readable Parquet file: {first_line(error)}") from None


def _read_columns(
    path: Path, file: Any, stamp: tuple[int, int], image: str | None, split: str | None, options: Columns
) -> ParquetTable:
    schema = file.schema_arrow
    types: dict[str, str] = {name: str(schema.field(name).type) for name in schema.names}
    binary_columns = [name for name, kind in types.items() if kind.startswith(("binary", "large_binary", "struct<"))]
    images = find_column(path, binary_columns, None, IMAGE_COLUMNS, "images") if image is None else None
    images = images or require_column(path, list(types), image, IMAGE_COLUMNS, "images")
    is_encoded, num_rows = images in binary_columns, file.metadata.num_rows
    if not num_rows:
        raise VitrailError(f"{path} has no rows; it needs one per image")
    others = [name for name in types if name != images]
    targets, split_name = target_columns(path, others, options), find_column(path, others, split, SPLIT_COLUMNS, "split")
    if (boxes := None if is_encoded else find_box_columns(path, others, options)) is not None:
        targets = boxes.names
    # without a column of labels, only those of zeros and ones matter
    wanted = [name for name in others if types[name].startswith(FLAG_TYPES)] if targets is None else targets
    columns = {
        name: column
        for name in dict.fromkeys([*wanted, *([split_name] if split_name else [])])
        if (column := _read_column(path, file, name, MAX_INDICATOR_VALUES if targets is None and name != split_name else None))
        is not None
    }
    return ParquetTable(
        path,
        list(types),
        images if is_encoded else file.read(columns=[images], use_threads=False).column(0).to_pylist(),
        columns,
        num_rows,
        stamp,
        _row_group_starts(path, file, images) if is_encoded else np.zeros(1, np.int64),
        {name: names for name in columns if (names := _declared_names(schema, name)) is not None},
    )


def _read_column(path: Path, file: Any, name: str, max_values: int | None) -> CodedColumn | None:
    """Read a column, a batch of rows at a time; None if it has more distinct values."""
    builder = ColumnBuilder(max_values)
    for batch in file.iter_batches(BATCH_ROWS, columns=[name], use_threads=False):
        builder.extend(to_cells(path, name, batch.column(0).to_pylist()))
        if builder.is_dropped:
            break
    return builder.build()


def _declared_names(schema: Any, column: str) -> tuple[str, ...] | None:
    """Return the class names that Hugging Face's library wrote into the schema, of a column of numbers or of lists of them."""
    try:
        feature = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][column]
        names = feature["names"] if "names" in feature else feature["feature"]["names"]
        return deduplicate([str(name) for name in names])
    except (KeyError, TypeError, ValueError):
        return None


def _row_group_starts(path: Path, file: Any, column: str) -> ndarray:
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    for group in groups:
        parts = [group.column(index) for index in range(group.num_columns)]
        size = sum(part.total_uncompressed_size for part in parts if part.path_in_schema.split(".")[0] == column)
        if size > MAX_ROW_GROUP_BYTES:
            raise VitrailError(f"{path} has row groups of {size / 2**30:.1f} GiB; rewrite it with row_group_size=1000")
    return np.cumsum([0, *(group.num_rows for group in groups)])[:-1]


def _import_pyarrow() -> Any:
    try:
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise VitrailError("a Parquet table needs pyarrow; try pip install 'vitrail[datasets]'") from None
    return pyarrow.parquet


def _file_stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
