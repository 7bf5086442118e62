"""Labels of images that may have several, or none. n images, k classes."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray


@dataclass(frozen=True, eq=False)
class LabelSets:
    """The classes of each image, stored as a list of classes and not as a matrix: a million images may have many classes.

    ``sets[index]`` is a row of zeros and ones, ``sets[indices]`` a selection, ``sets.rows(indices)`` a matrix.
    """

    members: Int[ndarray, " m"]  # int32: the classes of the first image in ascending order, then of the second ...
    ends: Int[ndarray, " n"]  # where those of each image end
    num_classes: int

    @classmethod
    def from_lists(cls, lists: Iterable[Iterable[int]], num_classes: int) -> "LabelSets":
        """Build them from the classes of each image, in any order."""
        members, sizes = array("i"), array("i")
        for classes in lists:
            before = len(members)
            members.extend(classes)
            sizes.append(len(members) - before)
        return cls.from_members(np.array(members, np.int32), np.array(sizes, np.int64), num_classes)

    @classmethod
    def from_members(cls, members: Int[ndarray, " m"], sizes: Int[ndarray, " n"], num_classes: int) -> "LabelSets":
        """Build them from the classes of the first image, in any order, then of the second ..., and how many each has."""
        pairs = np.repeat(np.arange(len(sizes)) * max(num_classes, 1), sizes) + members
        pairs.sort()
        owners, members = np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], max(num_classes, 1))
        ends = np.cumsum(np.bincount(owners, minlength=len(sizes)))
        return cls(members.astype(np.int32), ends, num_classes)

    @classmethod
    def from_matrix(cls, matrix: ndarray) -> "LabelSets":
        """Build them from a matrix of zeros and ones, a row per image."""
        rows, columns = np.nonzero(matrix)
        return cls(columns.astype(np.int32), np.cumsum(np.bincount(rows, minlength=len(matrix))), matrix.shape[1])

    @classmethod
    def from_labels(cls, labels: Int[ndarray, " n"], num_classes: int) -> "LabelSets":
        """Build them from one label per image; -1: none."""
        return cls(labels[labels >= 0].astype(np.int32), np.cumsum(labels >= 0), num_classes)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> UInt8[ndarray, " k"]: ...

    @overload
    def __getitem__(self, index: ndarray) -> "LabelSets": ...

    def __getitem__(self, index: int | ndarray) -> "ndarray | LabelSets":
        if not isinstance(index, ndarray):
            return self.rows(np.array([range(len(self))[index]]))[0]
        positions, sizes = self._positions(index)
        return LabelSets(self.members[positions], np.cumsum(sizes), self.num_classes)

    def __iter__(self) -> Iterator[UInt8[ndarray, " k"]]:
        return (self[index] for index in range(len(self)))

    def rows(self, indices: Int[ndarray, " n"]) -> UInt8[ndarray, "n k"]:
        """Return a row of zeros and ones for each of these images."""
        positions, sizes = self._positions(indices)
        matrix = np.zeros((len(indices), self.num_classes), np.uint8)
        matrix[np.repeat(np.arange(len(indices)), sizes), self.members[positions]] = 1
        return matrix

    def classes_of(self, index: int) -> list[int]:
        """Return the classes of an image."""
        return self.members[int(self.ends[index - 1]) if index else 0 : int(self.ends[index])].tolist()

    def counts(self, copies: Int[ndarray, " n"] | None = None) -> Int[ndarray, " k"]:
        """Count the images of each class. ``copies``: how often each image counts; None: once."""
        if copies is None:
            return np.bincount(self.members, minlength=self.num_classes)
        counts = np.bincount(self.members, np.repeat(copies, self.sizes()), minlength=self.num_classes)
        return counts.astype(np.int64)

    def sizes(self) -> Int[ndarray, " n"]:
        """Count the classes of each image."""
        return np.diff(self.ends, prepend=0)

    def images_of(self, label: int) -> Int[ndarray, " m"]:
        """Return the indices of the images of a class."""
        return np.searchsorted(self.ends, np.flatnonzero(self.members == label), side="right")

    def renumbered(self, numbering: Int[ndarray, " k"], num_classes: int) -> "LabelSets":
        """Return them with new numbers of the classes."""
        return LabelSets.from_members(numbering[self.members], self.sizes(), num_classes)

    def tobytes(self) -> bytes:
        """Return bytes that identify them, for a hash."""
        return self.ends.astype("<i8").tobytes() + self.members.astype("<i4").tobytes()

    def _positions(self, indices: ndarray) -> tuple[ndarray, ndarray]:
        """Return the positions of the members of these images, and how many each has."""
        ends = self.ends[indices]
        sizes = ends - np.where(indices > 0, self.ends[np.maximum(indices, 1) - 1], 0)
        firsts = np.cumsum(sizes) - sizes
        return np.repeat(ends - sizes - firsts, sizes) + np.arange(int(sizes.sum())), sizes


def is_multi_hot(rows: Sequence[Sequence[Any] | None]) -> bool:
    """Whether rows are zeros and ones and equally long, so that each value may stand for a class."""
    return len({None if row is None else len(row) for row in rows}) == 1 and all(
        row is not None and all(type(value) is not str and value in (0, 1) for value in row) for row in rows
    )


def concat_label_sets(parts: Sequence[LabelSets]) -> LabelSets:
    """Concatenate label sets of the same classes."""
    shifts = np.cumsum([0, *(len(part.members) for part in parts)])[:-1]
    ends = np.concatenate([part.ends + shift for part, shift in zip(parts, shifts, strict=True)])
    return LabelSets(np.concatenate([part.members for part in parts]), ends, parts[0].num_classes)
