"""Read Parquet files of labels and paths, or of labels and encoded images. Needs pyarrow (the extra ``datasets``)."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from vitrail.data.sources.columns import IMAGES, LABELS, SPLITS, listed, need, pick, splits_of
from vitrail.data.sources.labels import by_name, by_split, unique
from vitrail.data.sources.source import Source, read_file
from vitrail.errors import VitrailError

LARGEST_GROUP = 2**30  # bytes: a row group is decoded whole, and some are cached


@dataclass(frozen=True)
class Cells:
    """Encoded images in a column of a Parquet file, read a row group at a time: fast in order, slow when shuffled."""

    path: Path
    column: str
    stamp: tuple[int, int]  # size and modification time of the file when it was opened
    starts: ndarray  # first row of each row group
    labels: ndarray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, index: int) -> str:
        return f"row {index + 1} of {self.path}"

    def content(self, index: int) -> bytes:
        group = int(np.searchsorted(self.starts, index, side="right")) - 1
        cell = _group(self.path, self.column, self.stamp, group)[index - int(self.starts[group])].as_py()
        return picture_of(cell, self.path.parent, self.where(index))


def picture_of(cell: Any, folder: Path, where: str) -> bytes:
    """Return the bytes of a cell: plain, or Hugging Face's struct of bytes and path."""
    if isinstance(cell, dict):
        path, cell = cell.get("path"), cell.get("bytes")
        if cell is None and isinstance(path, str) and "\0" not in path:
            return read_file(folder / path)
    if not isinstance(cell, bytes):
        raise VitrailError(f"{where} has no image")
    return cell


@lru_cache(maxsize=4)
def _group(path: Path, column: str, stamp: tuple[int, int], group: int) -> Any:
    if _stamp(path) != stamp:
        raise VitrailError(f"{path} has changed since it was opened; open it again")
    try:
        with _pyarrow().ParquetFile(path) as file:
            return file.read_row_group(group, columns=[column], use_threads=False).column(0)
    except Exception as error:  # pyarrow raises many types
        raise VitrailError(f"row group {group} of {path} cannot be read: {_line(error)}") from None


def read_parquet(path: Path, image: str | None, label: str | None, split: str | None) -> dict[str, Source]:
    """Return the splits of a Parquet file; the arguments name columns with unusual names."""
    pyarrow = _pyarrow()
    stamp = _stamp(path)
    try:
        with pyarrow.ParquetFile(path) as file:
            return _opened(path, file, stamp, image, label, split)
    except VitrailError:
        raise
    except Exception as error:
        raise VitrailError(f"{path} is not a readable Parquet file: {_line(error)}") from None


def _opened(
    path: Path, file: Any, stamp: tuple[int, int], image: str | None, label: str | None, split: str | None
) -> dict[str, Source]:
    schema = file.schema_arrow
    columns: list[str] = schema.names
    holds = [name for name in columns if str(schema.field(name).type).startswith(("binary", "large_binary", "struct<"))]
    images = pick(path, holds, None, IMAGES, "images") if image is None else None
    images = images or need(path, columns, image, IMAGES, "images")
    labels = need(path, columns, label, LABELS, "label")
    splits = pick(path, columns, split, SPLITS, "split")
    rows = [f"row {row + 1}" for row in range(file.metadata.num_rows)]
    if not rows:
        raise VitrailError(f"{path} has no rows; it needs one per image")
    words = splits_of(path, _texts(path, file, splits), rows, split) if splits else [""] * len(rows)
    texts = _texts(path, file, labels)
    if images not in holds:
        return listed(path, _texts(path, file, images), texts, words, rows)
    if "" in texts:
        raise VitrailError(f"{path}, {rows[texts.index('')]}: the label is empty; fill it in or remove the row")
    numbers, names = _declared(path, schema, labels, texts) or by_name(texts)
    return by_split(Cells(path, images, stamp, _starts(path, file, images), numbers, names), words)


def _texts(path: Path, file: Any, column: str) -> list[str]:
    values = file.read(columns=[column], use_threads=False).column(0).to_pylist()
    strange = next((value for value in values if not isinstance(value, str | int | float | None)), None)
    if strange is not None:
        raise VitrailError(f"the column {column} of {path} must hold text or numbers, got {type(strange).__name__}")
    return [_text(value) for value in values]


def _text(value: str | float | None) -> str:
    if isinstance(value, float):  # a column with missing values has integers as floats
        return "" if value != value else str(int(value)) if value.is_integer() else str(value)
    return "" if value is None else str(value).strip()


def _declared(path: Path, schema: Any, column: str, texts: list[str]) -> tuple[ndarray, tuple[str, ...]] | None:
    """Return labels and class names in their declared order, if Hugging Face's library wrote them into the schema."""
    try:
        feature = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][column]
        names = unique([str(name) for name in feature["names"]])
        labels = np.array([int(text) for text in texts], dtype=np.int64)
    except (KeyError, TypeError, ValueError):
        return None
    if labels.min() < -1 or labels.max() >= len(names):
        raise VitrailError(f"{path} names {len(names)} classes, but has labels from {labels.min()} to {labels.max()}")
    return labels, names


def _starts(path: Path, file: Any, column: str) -> ndarray:
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    for group in groups:
        parts = [group.column(index) for index in range(group.num_columns)]
        size = sum(part.total_uncompressed_size for part in parts if part.path_in_schema.split(".")[0] == column)
        if size > LARGEST_GROUP:
            raise VitrailError(f"{path} has row groups of {size / 2**30:.1f} GiB; rewrite it with row_group_size=1000")
    return np.cumsum([0, *(group.num_rows for group in groups)])[:-1]


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise VitrailError("a Parquet table needs pyarrow: pip install 'vitrail[datasets]'") from None
    return pyarrow.parquet


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
