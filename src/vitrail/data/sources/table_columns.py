"""Columns of a table: named explicitly or found by their usual names; paths are relative to the table's folder."""

from collections.abc import Sequence
from pathlib import Path

from vitrail.data.sources.dataset import Dataset, ImageFileDataset
from vitrail.data.sources.labels import canonical_split, encode_labels, group_by_split
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
LABEL_COLUMNS = ("label", "class", "target", "category", "y", "labels", "label_name", "class_name", "fine_label")
SPLIT_COLUMNS = ("split", "set", "subset", "fold", "partition")


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


def build_listed_splits(
    path: Path, paths: list[str], labels: list[str], splits: list[str], lines: list[str]
) -> dict[str, Dataset]:
    """Build the splits of a table that lists image files."""
    for purpose, cells in (("path", paths), ("label", labels)):
        empty = next((line for line, cell in zip(lines, cells, strict=True) if not cell.strip() or "\0" in cell), None)
        if empty is not None:
            raise VitrailError(f"{path}, {empty}: the {purpose} is empty; fill it in or remove the line")
    encoded, class_names = encode_labels(labels)
    return group_by_split(ImageFileDataset(path.parent, paths, encoded, class_names), splits)


def parse_splits(path: Path, values: Sequence[str], lines: Sequence[str], requested: str | None) -> list[str]:
    """Return the split of each row. A column of other values under a usual name (such as fold numbers) is ignored."""
    parsed = [canonical_split(value) for value in values]
    if not requested and all(name is None for name in parsed):
        return [""] * len(lines)
    for name, value, line in zip(parsed, values, lines, strict=True):
        if name is None:
            raise VitrailError(f"{path}, {line}: the split must be train, validation or test, got {value!r}")
    return [name or "" for name in parsed]
