"""A table of pictures: a CSV of paths and labels, or a Parquet file of paths, or of the pictures themselves, and labels.

Columns are found by their usual names, or named; paths are relative to the table's folder. A column of train, validation and
test makes the splits. Whether the files are there is the data check's affair. Parquet needs pyarrow (the extra ``datasets``).
"""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from vitrail.data.folder import SPLITS as WORDS
from vitrail.data.folder import natural
from vitrail.data.source import LARGEST_FILE, Files, Source, chosen
from vitrail.errors import VitrailError, suggestion

IMAGES = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img", "img_path", "picture")
LABELS = ("label", "class", "target", "category", "y", "labels", "label_name", "class_name", "fine_label")
SPLITS = ("split", "set", "subset", "fold", "partition")
LARGEST_GROUP = 2**30  # bytes: a row group is decoded whole, and some are kept


def read_table(
    path: str | Path, *, image: str | None = None, label: str | None = None, split: str | None = None
) -> dict[str, Source]:
    """The splits of a .csv, .tsv or .parquet file; ``image``, ``label`` and ``split`` name columns that have unusual names."""
    path = Path(path)
    if not path.is_file():
        raise VitrailError(f"{path} is no file; a table is a .csv, .tsv or .parquet file")
    if path.suffix.lower() in (".parquet", ".pq"):
        return _parquet(path, image, label, split)
    return _csv(path, image, label, split)


def split_name(word: str) -> str | None:
    """``train``, ``validation`` or ``test``, whatever it is called; nothing when it is no split."""
    return WORDS.get(word.strip().lower())


def by_name(values: Sequence[str]) -> tuple[ndarray, tuple[str, ...]]:
    """Labels and the class names they number."""
    names = natural(set(values))
    number = {name: index for index, name in enumerate(names)}
    return np.array([number[value] for value in values], dtype=np.int64), names


def by_split(source: Source, splits: Sequence[str]) -> dict[str, Source]:
    """One source cut by the name of the split of each of its pictures."""
    where = np.array(splits)
    found = [name for name in ("train", "validation", "test", "") if name in set(splits)]
    return {name: chosen(source, np.flatnonzero(where == name)) for name in found}


def pick(path: object, columns: Sequence[str], wish: str | None, known: Sequence[str], what: str) -> str | None:
    """The column that was wished for, or the first that has one of the usual names."""
    by_lower = {column.strip().lower(): column for column in reversed(columns)}
    if wish is not None and wish.strip().lower() not in by_lower:
        raise VitrailError(
            f"{path} has no column {wish!r} for the {what}; it has {', '.join(columns)}{suggestion(wish, columns)}"
        )
    return next((by_lower[name] for name in ([wish.strip().lower()] if wish else known) if name in by_lower), None)


def need(path: object, columns: Sequence[str], wish: str | None, known: Sequence[str], what: str) -> str:
    column = pick(path, columns, wish, known, what)
    if column is None:
        raise VitrailError(
            f"{path} has no column for the {what}, only {', '.join(columns)}; rename one to any of {', '.join(known)}"
        )
    return column


# CSV -----------------------------------------------------------------------------------------------------------------


def _csv(path: Path, image: str | None, label: str | None, split: str | None) -> dict[str, Source]:
    try:
        header, rows = _rows(path)
    except UnicodeDecodeError:
        raise VitrailError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except csv.Error as error:
        raise VitrailError(f"{path} is no CSV that can be read: {error}") from None
    images, labels = need(path, header, image, IMAGES, "pictures' paths"), need(path, header, label, LABELS, "label")
    splits = pick(path, header, split, SPLITS, "split")

    def cells(column: str) -> list[str]:
        at = header.index(column)
        return [row[at] if at < len(row) else "" for _, row in rows]

    lines = [f"line {line}" for line, _ in rows]
    words = _splits(path, cells(splits), lines, split) if splits else [""] * len(rows)
    return _listed(path, cells(images), [name.strip() for name in cells(labels)], words, lines)


def _rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        delimiter = max(",;\t", key=first.count)  # of equally many the first: a comma
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
        header = [cell.strip() for cell in next(reader, [])]
        rows = [(reader.line_num, cells) for cells in reader if any(cells)]
    if not rows:
        raise VitrailError(f"{path} has no rows; it needs a header such as path,label and a line a picture")
    return header, rows


def _listed(path: Path, paths: list[str], labels: list[str], splits: list[str], lines: list[str]) -> dict[str, Source]:
    for what, cells in (("path", paths), ("label", labels)):
        empty = next((line for line, cell in zip(lines, cells, strict=True) if not cell.strip() or "\0" in cell), None)
        if empty is not None:
            raise VitrailError(f"{path}, {empty}: the {what} is empty; fill it in or take the line out")
    numbers, names = by_name(labels)
    return by_split(Files(path.parent, paths, numbers, names), splits)


def _splits(path: Path, words: Sequence[str], lines: Sequence[str], wish: str | None) -> list[str]:
    """The split of each row. A column of other words that merely has a split's usual name (a fold's number) is left alone."""
    found = [split_name(word) for word in words]
    if not wish and all(name is None for name in found):
        return [""] * len(lines)
    for name, word, line in zip(found, words, lines, strict=True):
        if name is None:
            raise VitrailError(f"{path}, {line}: the split must be train, validation or test, got {word!r}")
    return [name or "" for name in found]


# Parquet -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cells:
    """Encoded pictures in a column of a Parquet file, decoded a row group at a time: quick in order, slow when shuffled."""

    path: Path
    column: str
    stamp: tuple[int, int]  # size and time of the file that the rows were counted in
    starts: ndarray  # of each row group
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
    """The bytes of a cell: plain, or Hugging Face's pair of bytes and path."""
    if isinstance(cell, dict):
        path, cell = cell.get("path"), cell.get("bytes")
        if cell is None and isinstance(path, str) and "\0" not in path:
            with open(folder / path, "rb") as file:
                return file.read(LARGEST_FILE)
    if not isinstance(cell, bytes):
        raise VitrailError(f"{where} holds no picture")
    return cell


@lru_cache(maxsize=4)
def _group(path: Path, column: str, stamp: tuple[int, int], group: int) -> Any:
    if _stamp(path) != stamp:
        raise VitrailError(f"{path} has changed since it was opened; start again")
    try:
        with _pyarrow().ParquetFile(path) as file:
            return file.read_row_group(group, columns=[column], use_threads=False).column(0)
    except Exception as error:  # pyarrow has many kinds
        raise VitrailError(f"row group {group} of {path} cannot be read: {_line(error)}") from None


def _parquet(path: Path, image: str | None, label: str | None, split: str | None) -> dict[str, Source]:
    pyarrow = _pyarrow()
    stamp = _stamp(path)
    try:
        with pyarrow.ParquetFile(path) as file:
            return _opened(path, file, stamp, image, label, split)
    except VitrailError:
        raise
    except Exception as error:
        raise VitrailError(f"{path} is no Parquet file that can be read: {_line(error)}") from None


def _opened(
    path: Path, file: Any, stamp: tuple[int, int], image: str | None, label: str | None, split: str | None
) -> dict[str, Source]:
    schema = file.schema_arrow
    columns: list[str] = schema.names
    holds = [name for name in columns if str(schema.field(name).type).startswith(("binary", "large_binary", "struct<"))]
    images = pick(path, holds, None, IMAGES, "pictures") if image is None else None
    images = images or need(path, columns, image, IMAGES, "pictures")
    labels = need(path, columns, label, LABELS, "label")
    splits = pick(path, columns, split, SPLITS, "split")
    rows = [f"row {row + 1}" for row in range(file.metadata.num_rows)]
    if not rows:
        raise VitrailError(f"{path} has no rows; it needs one a picture")
    words = _splits(path, _texts(path, file, splits), rows, split) if splits else [""] * len(rows)
    texts = _texts(path, file, labels)
    if images not in holds:
        return _listed(path, _texts(path, file, images), texts, words, rows)
    if "" in texts:
        raise VitrailError(f"{path}, {rows[texts.index('')]}: the label is empty; fill it in or take the row out")
    numbers, names = _declared(path, schema, labels, texts) or by_name(texts)
    return by_split(Cells(path, images, stamp, _starts(path, file, images), numbers, names), words)


def _texts(path: Path, file: Any, column: str) -> list[str]:
    values = file.read(columns=[column], use_threads=False).column(0).to_pylist()
    strange = next((value for value in values if not isinstance(value, str | int | float | None)), None)
    if strange is not None:
        raise VitrailError(f"the column {column} of {path} must hold text or numbers, got {type(strange).__name__}")
    return [_text(value) for value in values]


def _text(value: str | float | None) -> str:
    if isinstance(value, float):  # a table with a gap has whole numbers as floats
        return "" if value != value else str(int(value)) if value.is_integer() else str(value)
    return "" if value is None else str(value).strip()


def _declared(path: Path, schema: Any, column: str, texts: list[str]) -> tuple[ndarray, tuple[str, ...]] | None:
    """Class names in their own order, where Hugging Face's library wrote them beside the schema."""
    try:
        feature = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][column]
        names = tuple(str(name) for name in feature["names"])
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
            raise VitrailError(f"{path} has row groups of {size / 2**30:.1f} GiB; write it again with row_group_size=1000")
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
