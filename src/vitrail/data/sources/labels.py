"""Names of classes and splits, in one spelling and one order, wherever they come from."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
from numpy import ndarray

from vitrail.data.sources.dataset import Dataset, select_images

MIN_PLURAL = 4  # letters: a longer name that ends in s may be a plural
SPLIT_ALIASES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}


def canonical_split(word: str) -> str | None:
    """Return ``train``, ``validation`` or ``test`` for any of its usual names; None for anything else."""
    return SPLIT_ALIASES.get(word.strip().lower())


def encode_labels(values: Sequence[str]) -> tuple[ndarray, tuple[str, ...]]:
    """Encode class names as labels; return the labels and the sorted names."""
    class_names = natural_sorted(set(values))
    number = {name: index for index, name in enumerate(class_names)}
    return np.array([number[value] for value in values], dtype=np.int64), class_names


def group_by_split(dataset: Dataset, splits: Sequence[str]) -> dict[str, Dataset]:
    """Group a dataset by the split of each image."""
    indices = {name: np.flatnonzero(np.asarray(splits) == name) for name in ("train", "validation", "test", "")}
    return {name: select_images(dataset, of_split) for name, of_split in indices.items() if len(of_split)}


def similar_names(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return groups of names that differ only in case, accents, spaces, punctuation or a plural s."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_plain_name(name), []).append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _plain_name(name: str) -> str:
    if re.fullmatch(r"[-+.\d]+", name):  # a number is no spelling of another
        return name
    letters = "".join(letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter))
    plain = re.sub(r"[\W_]+", "", letters).casefold() or name
    return plain[:-1] if len(plain) > MIN_PLURAL and plain.endswith("s") else plain


def natural_sorted(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names with numbers by their value: 2 before 10."""

    def key(name: str) -> list[tuple[bool, int, str]]:
        parts = re.split(r"(\d+)", name)
        return [(part.isdecimal(), int(part[:18]) if part.isdecimal() else 0, part) for part in parts]

    return tuple(sorted(names, key=key))
