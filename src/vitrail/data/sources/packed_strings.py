"""Many strings in one buffer."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

CHUNK = 2**16  # strings that are decoded at a time


class PackedStrings(Sequence[str]):
    """A sequence of strings in one buffer: a million of them are two arrays and no objects."""

    def __init__(self, buffer: ndarray) -> None:
        """``buffer``: uint8, with a zero after each string."""
        self.buffer, self.ends = buffer, np.flatnonzero(buffer == 0)

    @classmethod
    def from_strings(cls, strings: Iterable[str]) -> "PackedStrings":
        listed = list(strings)
        return cls(np.frombuffer(_join(listed) + b"\0" if listed else b"", np.uint8))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(len(self))[index]]
        position = range(len(self))[index]
        start = self.ends[position - 1] + 1 if position else 0
        return self.buffer[start : self.ends[position]].tobytes().decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        start = 0
        for first in range(0, len(self), CHUNK):
            end = int(self.ends[min(first + CHUNK, len(self)) - 1])
            yield from self.buffer[start:end].tobytes().decode("utf-8", "surrogateescape").split("\0")
            start = end + 1


def join_strings(strings: Sequence[str]) -> bytes:
    """Join strings by zeros; what is packed already is copied."""
    return strings.buffer[:-1].tobytes() if isinstance(strings, PackedStrings) else _join(strings)


def _join(strings: Iterable[str]) -> bytes:
    return "\0".join(strings).encode("utf-8", "surrogateescape")
