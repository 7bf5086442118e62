"""Columns of a table: named explicitly or found by their usual names; paths are relative to the table's folder."""

from collections.abc import Sequence
from pathlib import Path

from vitrail.data.sources.labels import by_name, by_split, split_name
from vitrail.data.sources.source import Files, Source
from vitrail.errors import VitrailError, suggestion

IMAGES = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img", "img_path", "picture")
LABELS = ("label", "class", "target", "category", "y", "labels", "label_name", "class_name", "fine_label")
SPLITS = ("split", "set", "subset", "fold", "partition")


def pick(path: object, columns: Sequence[str], wish: str | None, known: Sequence[str], what: str) -> str | None:
    """Return the requested column, or the first with one of the usual names, or None."""
    by_lower = {column.strip().lower(): column for column in reversed(columns)}
    if wish is not None and wish.strip().lower() not in by_lower:
        raise VitrailError(
            f"{path} has no column {wish!r} for the {what}; it has {', '.join(columns)}{suggestion(wish, columns)}"
        )
    return next((by_lower[name] for name in ([wish.strip().lower()] if wish else known) if name in by_lower), None)


def need(path: object, columns: Sequence[str], wish: str | None, known: Sequence[str], what: str) -> str:
    """Return the requested or usual column; raise if there is none."""
    column = pick(path, columns, wish, known, what)
    if column is None:
        raise VitrailError(
            f"{path} has no column for the {what}, only {', '.join(columns)}; rename one to any of {', '.join(known)}"
        )
    return column


def listed(path: Path, paths: list[str], labels: list[str], splits: list[str], lines: list[str]) -> dict[str, Source]:
    """Build the splits of a table that lists image files."""
    for what, cells in (("path", paths), ("label", labels)):
        empty = next((line for line, cell in zip(lines, cells, strict=True) if not cell.strip() or "\0" in cell), None)
        if empty is not None:
            raise VitrailError(f"{path}, {empty}: the {what} is empty; fill it in or remove the line")
    numbers, names = by_name(labels)
    return by_split(Files(path.parent, paths, numbers, names), splits)


def splits_of(path: Path, words: Sequence[str], lines: Sequence[str], wish: str | None) -> list[str]:
    """Return the split of each row. A column of other values under a usual name (such as fold numbers) is ignored."""
    found = [split_name(word) for word in words]
    if not wish and all(name is None for name in found):
        return [""] * len(lines)
    for name, word, line in zip(found, words, lines, strict=True):
        if name is None:
            raise VitrailError(f"{path}, {line}: the split must be train, validation or test, got {word!r}")
    return [name or "" for name in found]
