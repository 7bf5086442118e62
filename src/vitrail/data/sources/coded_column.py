"""A column of a table as its distinct values and a code per row: a million rows of a few labels are a small array. n rows."""

import json
import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy import ndarray


@dataclass(frozen=True, eq=False)
class CodedColumn:
    """``values`` are the distinct ones, in the order of their first row: text, numbers, None, or tuples of several labels."""

    values: list[Any]
    codes: Int[ndarray, " n"]

    def __len__(self) -> int:
        return len(self.codes)

    def row_of(self, code: int) -> int:
        """Return the first row with this value."""
        return int(np.argmax(self.codes == code))

    def select(self, rows: ndarray) -> "CodedColumn":
        return CodedColumn(self.values, self.codes[rows])


class Numbering(dict[Any, int]):
    """Numbers values in the order in which they are first looked up."""

    def __missing__(self, value: Any) -> int:
        number = self[value] = len(self)
        return number


class ColumnBuilder:
    """Collects the values of a column."""

    def __init__(self, max_values: int | None = None) -> None:
        """``max_values``: a column with more distinct values is dropped; None: none is."""
        self._codes_by_value = Numbering()
        self._codes = array("i")
        self._max_values = max_values

    @property
    def is_dropped(self) -> bool:
        return self._max_values is not None and len(self._codes_by_value) > self._max_values

    def extend(self, values: Iterable[Any]) -> None:
        if not self.is_dropped:
            self._codes.extend(map(self._codes_by_value.__getitem__, values))

    def build(self) -> CodedColumn | None:
        """Return the column; None if it was dropped."""
        if self.is_dropped:
            return None
        return CodedColumn(list(self._codes_by_value), np.frombuffer(self._codes, np.intc).astype(np.int64))


def to_cell(value: Any) -> Any:
    """Return a value of JSON or Arrow as a column holds it: None for NaN, a tuple for a list; what is nested in it, or a
    dictionary, is not a label and becomes a tuple inside the tuple."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        value = [value]
    if isinstance(value, list | tuple):
        return tuple((json.dumps(each, default=str),) if isinstance(each, dict | list | tuple) else each for each in value)
    return value
