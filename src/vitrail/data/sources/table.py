"""Read a table of images: a CSV of paths and labels, or a Parquet file of labels and paths or encoded images.

A column of train, validation and test makes the splits. Whether the files exist is for the dataset check to report.
"""

import csv
from pathlib import Path

from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.parquet import read_parquet
from vitrail.data.sources.table_columns import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    SPLIT_COLUMNS,
    build_listed_splits,
    find_column,
    parse_splits,
    require_column,
)
from vitrail.errors import VitrailError


def read_table(
    path: str | Path, *, image: str | None = None, label: str | None = None, split: str | None = None
) -> dict[str, Dataset]:
    """Return the splits of a .csv, .tsv or .parquet file; ``image``, ``label``, ``split`` name columns with unusual names."""
    path = Path(path)
    if not path.is_file():
        raise VitrailError(f"{path} is not a file; a table is a .csv, .tsv or .parquet file")
    if path.suffix.lower() in (".parquet", ".pq"):
        return read_parquet(path, image, label, split)
    return _read_csv(path, image, label, split)


def _read_csv(path: Path, image: str | None, label: str | None, split: str | None) -> dict[str, Dataset]:
    try:
        header, rows = _read_rows(path)
    except UnicodeDecodeError:
        raise VitrailError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except csv.Error as error:
        raise VitrailError(f"{path} is not a readable CSV: {error}") from None
    images, labels = (
        require_column(path, header, image, IMAGE_COLUMNS, "image paths"),
        require_column(path, header, label, LABEL_COLUMNS, "label"),
    )
    splits = find_column(path, header, split, SPLIT_COLUMNS, "split")

    def cells(column: str) -> list[str]:
        position = header.index(column)
        return [row[position] if position < len(row) else "" for _, row in rows]

    lines = [f"line {line}" for line, _ in rows]
    row_splits = parse_splits(path, cells(splits), lines, split) if splits else [""] * len(rows)
    return build_listed_splits(path, cells(images), [name.strip() for name in cells(labels)], row_splits, lines)


def _read_rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        delimiter = max(",;\t", key=first.count)  # on a tie the first: a comma
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
        header = [cell.strip() for cell in next(reader, [])]
        rows = [(reader.line_num, cells) for cells in reader if any(cells)]
    if not rows:
        raise VitrailError(f"{path} has no rows; it needs a header such as path,label and one line per image")
    return header, rows
