"""The names of classes and splits, in one spelling and one order, wherever they come from."""

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
    """``train``, ``validation`` or ``test``, whatever it is called; nothing when it is no split."""
    return SPLITS.get(word.strip().lower())


def by_name(values: Sequence[str]) -> tuple[ndarray, tuple[str, ...]]:
    """Labels and the class names they number."""
    names = natural(set(values))
    number = {name: index for index, name in enumerate(names)}
    return np.array([number[value] for value in values], dtype=np.int64), names


def unique(names: Sequence[str]) -> tuple[str, ...]:
    """Two classes of one name (ImageNet has two cranes) are told apart: crane and crane (2)."""
    met: dict[str, int] = {}
    made = []
    for name in names:
        met[name] = met.get(name, 0) + 1
        made.append(name if met[name] == 1 else f"{name} ({met[name]})")
    return tuple(made)


def by_split(source: Source, splits: Sequence[str]) -> dict[str, Source]:
    """One source cut by the name of the split of each of its pictures."""
    where = np.array(splits)
    found = [name for name in ("train", "validation", "test", "") if name in set(splits)]
    return {name: chosen(source, np.flatnonzero(where == name)) for name in found}


def natural(names: Iterable[str]) -> tuple[str, ...]:
    """Numbers by their value: 2 before 10."""

    def key(name: str) -> list[tuple[bool, int, str]]:
        parts = re.split(r"(\d+)", name)
        return [(part.isdecimal(), int(part[:18]) if part.isdecimal() else 0, part) for part in parts]

    return tuple(sorted(names, key=key))
