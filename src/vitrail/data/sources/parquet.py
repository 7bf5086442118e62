"""Read Parquet files of labels and paths, or of labels and encoded images. Needs pyarrow (the extra ``datasets``)."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from vitrail.data.class_names import deduplicate
from vitrail.data.sources.dataset import Dataset, read_image_file
from vitrail.data.sources.labels import encode_labels, group_by_split
from vitrail.data.sources.table_columns import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    SPLIT_COLUMNS,
    build_listed_splits,
    find_column,
    parse_splits,
    require_column,
)
from vitrail.errors import VitrailError, first_line

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


def read_parquet(path: Path, image: str | None, label: str | None, split: str | None) -> dict[str, Dataset]:
    """Return the splits of a Parquet file; the arguments name columns with unusual names."""
    pyarrow = _import_pyarrow()
    stamp = _file_stamp(path)
    try:
        with pyarrow.ParquetFile(path) as file:
            return _build_splits(path, file, stamp, image, label, split)
    except VitrailError:
        raise
    except Exception as error:
        raise VitrailError(f"{path} is not a readable Parquet file: {first_line(error)}") from None


def _build_splits(
    path: Path, file: Any, stamp: tuple[int, int], image: str | None, label: str | None, split: str | None
) -> dict[str, Dataset]:
    schema = file.schema_arrow
    columns: list[str] = schema.names
    binary_columns = [
        name for name in columns if str(schema.field(name).type).startswith(("binary", "large_binary", "struct<"))
    ]
    images = find_column(path, binary_columns, None, IMAGE_COLUMNS, "images") if image is None else None
    images = images or require_column(path, columns, image, IMAGE_COLUMNS, "images")
    labels = require_column(path, columns, label, LABEL_COLUMNS, "label")
    splits = find_column(path, columns, split, SPLIT_COLUMNS, "split")
    rows = [f"row {row + 1}" for row in range(file.metadata.num_rows)]
    if not rows:
        raise VitrailError(f"{path} has no rows; it needs one per image")
    row_splits = parse_splits(path, _column_texts(path, file, splits), rows, split) if splits else [""] * len(rows)
    texts = _column_texts(path, file, labels)
    if images not in binary_columns:
        return build_listed_splits(path, _column_texts(path, file, images), texts, row_splits, rows)
    if "" in texts:
        raise VitrailError(f"{path}, {rows[texts.index('')]}: the label is empty; fill it in or remove the row")
    encoded, class_names = _declared_labels(path, schema, labels, texts) or encode_labels(texts)
    return group_by_split(
        ParquetDataset(path, images, stamp, _row_group_starts(path, file, images), encoded, class_names), row_splits
    )


def _column_texts(path: Path, file: Any, column: str) -> list[str]:
    values = file.read(columns=[column], use_threads=False).column(0).to_pylist()
    invalid = next((value for value in values if not isinstance(value, str | int | float | None)), None)
    if invalid is not None:
        raise VitrailError(f"the column {column} of {path} must hold text or numbers, got {type(invalid).__name__}")
    return [_cell_text(value) for value in values]


def _cell_text(value: str | float | None) -> str:
    if isinstance(value, float):  # a column with missing values has integers as floats
        return "" if value != value else str(int(value)) if value.is_integer() else str(value)
    return "" if value is None else str(value).strip()


def _declared_labels(path: Path, schema: Any, column: str, texts: list[str]) -> tuple[ndarray, tuple[str, ...]] | None:
    """Return labels and class names in their declared order, if Hugging Face's library wrote them into the schema."""
    try:
        feature = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][column]
        class_names = deduplicate([str(name) for name in feature["names"]])
        labels = np.array([int(text) for text in texts], dtype=np.int64)
    except (KeyError, TypeError, ValueError):
        return None
    if labels.min() < -1 or labels.max() >= len(class_names):
        raise VitrailError(f"{path} names {len(class_names)} classes, but has labels from {labels.min()} to {labels.max()}")
    return labels, class_names


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
