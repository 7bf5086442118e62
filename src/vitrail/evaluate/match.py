"""Selection of the split to evaluate, and matching of the dataset's classes with the model's: by name, never by number."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy import ndarray

from vitrail.data.sources.source import Data, Source, chosen
from vitrail.errors import VitrailError, suggestion
from vitrail.models.build import Model

SPLITS = ("test", "validation", "train", "all")


@dataclass(frozen=True)
class Joined:
    """Concatenation of datasets."""

    parts: Sequence[Source]

    @property
    def names(self) -> tuple[str, ...]:
        return self.parts[0].names

    @cached_property
    def labels(self) -> ndarray:
        return np.concatenate([part.labels for part in self.parts])

    @cached_property
    def _ends(self) -> ndarray:
        return np.cumsum([len(part) for part in self.parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def where(self, index: int) -> str:
        part, inside = self._place(index)
        return part.where(inside)

    def content(self, index: int) -> bytes | ndarray:
        part, inside = self._place(index)
        return part.content(inside)

    def _place(self, index: int) -> tuple[Source, int]:
        number = int(np.searchsorted(self._ends, index, side="right"))
        part = self.parts[number]
        return part, index - int(self._ends[number]) + len(part)


def split_of(data: Data, wish: str | None) -> tuple[str, Source]:
    """Return the given split, else test, else validation, else all; only its labelled images."""
    if wish is not None and wish not in SPLITS:
        raise VitrailError(f"split must be {', '.join(SPLITS)}, got {wish!r}{suggestion(wish, SPLITS)}")
    for split in (wish,) if wish else ("test", "validation", "all"):
        source = Joined([part for part in data.splits.values() if len(part)]) if split == "all" else data.splits[split]
        if len(source) and (labelled := np.flatnonzero(source.labels >= 0)).size:
            return split, chosen(source, labelled)
    there = ", ".join(f"{len(part):,} {split}" for split, part in data.splits.items())
    raise VitrailError(f"{data.name} has no labelled images to evaluate{f' in {wish}' if wish else ''}; it has {there}")


def labels_of(model: Model) -> tuple[str, ...]:
    """Return the model's class names; without any, the class indices as strings."""
    return model.labels or tuple(str(number) for number in range(model.config.classes))


def matched(source: Source, model: Model, data: str) -> ndarray:
    """Return the model's class for each of the dataset's, -1 for those without images."""
    known: dict[str, list[int]] = {}
    for number, name in enumerate(labels_of(model)):
        known.setdefault(name, []).append(number)
    found = np.full(len(source.names), -1)
    used = np.unique(source.labels).tolist()
    strange = [source.names[label] for label in used if source.names[label] not in known]
    if strange:
        raise VitrailError(_strangers(strange, len(used), list(known), data, model.labels is None))
    for label in used:
        name = source.names[label]
        if len(known[name]) > 1:
            numbers = " and ".join(map(str, known[name]))
            raise VitrailError(f"classes {numbers} of the model are both named {name!r}, so {data} cannot be matched with them")
        found[label] = known[name][0]
    return found


def _strangers(strange: list[str], used: int, known: list[str], data: str, nameless: bool) -> str:
    which = f"{', '.join(map(repr, strange[:3]))}{f' and {len(strange) - 3} more' if len(strange) > 3 else ''}"
    said = (
        f"{len(strange)} of the {used} classes of {data} {'is' if len(strange) == 1 else 'are'} unknown to the model: {which}"
    )
    if nameless:
        return (
            f"{said}; its file names none: set model.class_names and vitrail.save it, or name the folders 0 to {len(known) - 1}"
        )
    return (
        f"{said}; it knows {', '.join(map(repr, known[:4]))}{' ...' if len(known) > 4 else ''}{suggestion(strange[0], known)}"
    )
