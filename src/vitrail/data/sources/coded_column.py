"""A column of a table as its distinct values and a code per row: a million rows of a few labels are a small array. n rows."""

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


class ColumnBuilder:
    """Collects the values of a column."""

    def __init__(self, max_values: int | None = None) -> None:
        """``max_values``: a column with more distinct values is dropped; None: none is."""
        self._codes_by_value: dict[Any, int] = {}
        self._codes = array("i")
        self._max_values = max_values

    def append(self, value: Any) -> None:
        codes = self._codes_by_value
        if self._max_values is not None and len(codes) > self._max_values:
            return
        self._codes.append(codes.setdefault(value, len(codes)))

    def build(self) -> CodedColumn | None:
        """Return the column; None if it was dropped."""
        if self._max_values is not None and len(self._codes_by_value) > self._max_values:
            return None
        return CodedColumn(list(self._codes_by_value), np.frombuffer(self._codes, np.intc).astype(np.int64))


def code_column(values: Iterable[Any]) -> CodedColumn:
    """Code the values of a column; lists become tuples."""
    builder = ColumnBuilder()
    for value in values:
        builder.append(tuple(value) if isinstance(value, list | tuple | ndarray) else value)
    column = builder.build()
    assert column is not None
    return column
