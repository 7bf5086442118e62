"""Columns of a table: named explicitly or found by their usual names."""

from collections.abc import Callable, Sequence
from typing import Any

from vitrail.data.sources.coded_column import CodedColumn, to_cell
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.labels import canonical_split
from vitrail.errors import VitrailError, did_you_mean

IMAGE_COLUMNS = (
    "path",
    "file",
    "filename",
    "file_name",
    "filepath",
    "file_path",
    "image",
    "image_path",
    "img",
    "img_path",
    "picture",
)
LABEL_COLUMNS = (
    "label",
    "class",
    "target",
    "category",
    "y",
    "labels",
    "tags",
    "classes",
    "categories",
    "label_name",
    "class_name",
    "fine_label",
)
SPLIT_COLUMNS = ("split", "set", "subset", "fold", "partition")
MAX_INDICATOR_VALUES = 8  # distinct values of a column of zeros and ones: 0, 1, 0.0, 1.0, true, True ...


def find_column(
    path: object, columns: Sequence[str], requested: str | None, usual_names: Sequence[str], purpose: str
) -> str | None:
    """Return the requested column, or the first with one of the usual names, or None."""
    by_lower = {column.strip().lower(): column for column in reversed(columns)}
    wanted = usual_names if requested is None else [requested.strip().lower()]
    if requested is not None and wanted[0] not in by_lower:
        raise VitrailError(
            f"{path} has no column {requested!r} for the {purpose}; it has "
            f"{', '.join(columns)}{did_you_mean(requested, columns)}"
        )
    return next((by_lower[name] for name in wanted if name in by_lower), None)


def require_column(
    path: object, columns: Sequence[str], requested: str | None, usual_names: Sequence[str], purpose: str
) -> str:
    """Return the requested or usual column; raise if there is none."""
    column = find_column(path, columns, requested, usual_names, purpose)
    if column is None:
        raise VitrailError(
            f"{path} has no column for the {purpose}, only {', '.join(columns)}; rename one to any of {', '.join(usual_names)}"
        )
    return column


def target_columns(path: object, columns: Sequence[str], options: Columns) -> list[str] | None:
    """Return the columns that the targets are in; None if only their values can tell."""
    if options.targets:
        return [require_column(path, columns, target, (), "target") for target in options.targets]
    name = find_column(path, columns, options.labels, LABEL_COLUMNS, "labels")
    return None if name is None else [name]


def to_cells(table: object, column: str, values: Sequence[Any]) -> list[Any]:
    """Return values of a column of Parquet or Hugging Face's library as cells; raise for a type that has no labels."""
    invalid = next((value for value in values if not isinstance(value, str | int | float | list | None)), None)
    if invalid is not None:
        raise VitrailError(
            f"the column {column} of {table} must hold text, numbers or lists of labels, got {type(invalid).__name__}"
        )
    return list(map(to_cell, values))


def parse_splits(path: object, column: CodedColumn, row_name: Callable[[int], str], requested: str | None) -> CodedColumn:
    """Return the split of each row. A column of other values under a usual name (such as fold numbers) is ignored."""
    parsed = [canonical_split(str(value)) for value in column.values]
    if not requested and all(name is None for name in parsed):
        return CodedColumn([""], column.codes * 0)
    if None in parsed:
        code = parsed.index(None)
        raise VitrailError(
            f"{path}, {row_name(column.row_of(code))}: the split must be train, validation or test, got {column.values[code]!r}"
        )
    return CodedColumn([str(name) for name in parsed], column.codes)
