"""Names of classes and splits, in one spelling and one order, wherever they come from."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy import ndarray

from vitrail.data.sources.source import Source, chosen

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}


def split_name(word: str) -> str | None:
    """Return ``train``, ``validation`` or ``test`` for any of its usual names; None for anything else."""
    return SPLITS.get(word.strip().lower())


def by_name(values: Sequence[str]) -> tuple[ndarray, tuple[str, ...]]:
    """Encode class names as labels; return the labels and the sorted names."""
    names = natural(set(values))
    number = {name: index for index, name in enumerate(names)}
    return np.array([number[value] for value in values], dtype=np.int64), names


def unique(names: Sequence[str]) -> tuple[str, ...]:
    """Make class names unique: of ImageNet's two cranes, the second becomes crane (2)."""
    met: dict[str, int] = {}
    made = []
    for name in names:
        met[name] = met.get(name, 0) + 1
        made.append(name if met[name] == 1 else f"{name} ({met[name]})")
    return tuple(made)


def by_split(source: Source, splits: Sequence[str]) -> dict[str, Source]:
    """Group a dataset by the split of each image."""
    where = np.array(splits)
    found = [name for name in ("train", "validation", "test", "") if name in set(splits)]
    return {name: chosen(source, np.flatnonzero(where == name)) for name in found}


def natural(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names with numbers by their value: 2 before 10."""

    def key(name: str) -> list[tuple[bool, int, str]]:
        parts = re.split(r"(\d+)", name)
        return [(part.isdecimal(), int(part[:18]) if part.isdecimal() else 0, part) for part in parts]

    return tuple(sorted(names, key=key))
