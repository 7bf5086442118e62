"""Targets of a user's own object that are several labels per image: lists, tuples or sets of names or of class numbers, or rows
of zeros and ones, one per class."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from vitrail.data.sources.image_like import is_tensor
from vitrail.data.sources.label_sets import LabelSets, is_multi_hot
from vitrail.data.sources.labels import natural_sorted
from vitrail.errors import VitrailError, did_you_mean

MAX_CLASSES = 100_000  # larger numbers are taken as names
Names = tuple[str, ...]


def find_label_sets(targets: Sequence[Any], names: Sequence[str] | None) -> tuple[LabelSets, Names] | None:
    """Return label sets and class names if the targets are sets of labels; None stands for an image without any. ``names``:
    those of the classes if they are known; else names are sorted, and numbers are their own names."""
    known = [target for target in targets if target is not None]
    if not any(_is_collection(target) for target in known):
        return None
    rows = [_plain_values(target) if _is_collection(target) else None for target in targets]
    if (matrix := _multi_hot(targets, rows, names)) is not None:
        return LabelSets.from_matrix(matrix), tuple(names or map(str, range(matrix.shape[1])))
    values = {type(value) for row in rows for value in row or ()}
    if not values or not values <= {str, int} or any(isinstance(target, ndarray) for target in known):
        return None
    if values == {int} and any(len(set(row)) < len(row) for row in rows if row):
        return None  # coordinates, or other numbers
    for index, (target, row) in enumerate(zip(targets, rows, strict=True)):
        wrong = target is not None and row is None
        if wrong or (len(values) > 1 and row and {type(value) for value in row} != {str}):
            raise VitrailError(
                f"targets must all be lists of names, or all lists of class numbers, got {target!r:.60} for image {index}; "
                "give every image a list, empty for none"
            )
    lists = [row or [] for row in rows]
    return _encode_names(lists, names) if values == {str} else _encode_numbers(lists, names)


def _is_collection(target: Any) -> bool:
    return isinstance(target, list | tuple | set | frozenset) or (isinstance(target, ndarray) and target.ndim == 1)


def _plain_values(target: Iterable[Any]) -> list[Any]:
    return [
        value.item() if (isinstance(value, np.generic) or is_tensor(value)) and value.ndim == 0 else value for value in target
    ]


def _multi_hot(targets: Sequence[Any], rows: Sequence[list[Any] | None], names: Sequence[str] | None) -> ndarray | None:
    """Return rows of zeros and ones, one per class, if all targets are; a missing one has none."""
    known = [row for row in rows if row is not None]
    if len(known) < sum(target is not None for target in targets) or any(
        isinstance(target, set | frozenset) for target in targets
    ):
        return None
    width = len(known[0])
    certain = width > 2 or any(isinstance(target, ndarray) for target in targets) or any(len(set(row)) < width for row in known)
    if not (width == len(names) if names else certain and width > 1) or not is_multi_hot(known):
        return None
    return np.array([[0] * width if row is None else row for row in rows], np.uint8)


def _encode_names(lists: Sequence[Sequence[str]], names: Sequence[str] | None) -> tuple[LabelSets, Names]:
    class_names = tuple(names) if names is not None else natural_sorted({name for row in lists for name in row})
    numbers = {name: label for label, name in enumerate(class_names)}
    for index, row in enumerate(lists):
        if (unknown := next((name for name in row if name not in numbers), None)) is not None:
            raise VitrailError(
                f"the label {unknown!r} of image {index} is not among the {len(numbers)} classes"
                f"{did_you_mean(unknown, numbers)}"
            )
    return LabelSets.from_lists(([numbers[name] for name in row] for row in lists), len(class_names)), class_names


def _encode_numbers(lists: Sequence[Sequence[int]], names: Sequence[str] | None) -> tuple[LabelSets, Names]:
    largest = max(max(row) for row in lists if row)
    for index, row in enumerate(lists):
        if row and (min(row) < 0 or (names is not None and max(row) >= len(names))):
            limit = "" if names is None else f" to {len(names) - 1}, since {len(names)} classes are named"
            wrong = min(row) if min(row) < 0 else max(row)
            raise VitrailError(
                f"a label must be a number from 0{limit}, got {wrong} for image {index}; number the classes from 0"
            )
    if names is None and largest >= MAX_CLASSES:
        return _encode_names([list(map(str, row)) for row in lists], None)
    class_names = tuple(names) if names is not None else tuple(map(str, range(largest + 1)))
    return LabelSets.from_lists(lists, len(class_names)), class_names
