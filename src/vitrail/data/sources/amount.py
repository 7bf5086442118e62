"""Subsets of a dataset: fewer training images, fewer held-out images, some of the classes. ``fashion:count=500,classes=0-4``.

Validation and test are the same for every training size, and a smaller training set is part of a larger one, so that results
can be compared. n images.
"""

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray

from vitrail.augment.chance import bits
from vitrail.config import check
from vitrail.data.sources.identity import fingerprint
from vitrail.data.sources.source import Arrays, Data, Part, Source, chosen
from vitrail.errors import VitrailError

DRAWN = 0x616D6F75  # in place of an epoch, so that these draws differ from those of augmentation


@dataclass(frozen=True)
class Amount:
    """``train_size`` training images and ``heldout_size`` each for validation and test, balanced over the classes; None: all.
    ``seed`` draws the training images. ``classes``: the first and the last class, such as ``0-4``."""

    count: int | None = None
    held: int | None = None
    seed: int = 0
    classes: str | None = None

    def __post_init__(self) -> None:
        check(self)
        for name in ("count", "held"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise VitrailError(f"{name} must be at least 1, got {value}; try {name}=500")
        if self.classes is not None and not re.fullmatch(r"\d{1,6}-\d{1,6}", self.classes):
            raise VitrailError(f"classes must be the first and the last class, got {self.classes!r}; try classes=0-4")


def fewer(data: Data, want: Amount) -> Data:
    """Return the subset of a dataset that the spec describes."""
    splits = dict(data.splits) if want.classes is None else _of_classes(data, want.classes)
    amounts = {"train": (want.count, want.seed), "validation": (want.held, 0), "test": (want.held, 0)}
    train, validation, test = (_some(f"{data.name} ({name})", splits[name], *amounts[name]) for name in amounts)
    marked = fingerprint(train, validation, test)
    return replace(data, train=train, validation=validation, test=test, fingerprint=marked)


def _some(name: str, source: Source, count: int | None, seed: int) -> Source:
    """Take ``count`` images in a drawn order: the first of each class, then the second of each ..."""
    if count is None:
        return source
    if count > len(source):
        raise VitrailError(f"{name} has {len(source):,} images, fewer than the {count:,} requested; request fewer")
    lots = bits(seed, DRAWN, np.arange(len(source)), 0)[:, 0]
    order = np.lexsort((lots, source.labels))
    rank = np.empty(len(source), np.int64)
    starts = np.flatnonzero(np.diff(source.labels[order], prepend=source.labels[order][:1] - 1))
    rank[order] = np.arange(len(source)) - np.repeat(starts, np.diff(starts, append=len(source)))
    few = np.sort(np.lexsort((source.labels, rank))[:count])
    part = chosen(source, few)
    return part if part is source or not _in_memory(source) else _gathered(source, few, 0, source.names)


def _of_classes(data: Data, words: str) -> dict[str, Source]:
    first, last = map(int, words.split("-"))
    if not first < last < len(data.names):
        raise VitrailError(
            f"classes must be two or more of the {len(data.names)} of {data.name}, got {words}; "
            f"try classes=0-{max(len(data.names) // 2 - 1, 1)}"
        )
    if not all(_in_memory(source) for source in data.splits.values()):
        raise VitrailError("classes can be selected only from datasets that are in memory; try fashion:classes=0-4")
    names = data.names[first : last + 1]
    return {
        split: _gathered(source, np.flatnonzero((source.labels >= first) & (source.labels <= last)), first, names)
        for split, source in data.splits.items()
    }


def _in_memory(source: Source) -> bool:
    return isinstance(source.whole if isinstance(source, Part) else source, Arrays)


def _gathered(source: Source, indices: ndarray, first: int, names: tuple[str, ...]) -> Source:
    """Copy the images to an array of their own, so that the full array is not read along, with labels from 0."""
    origin = source.where(0).partition(" of ")[2] if len(source) else "nothing"
    found = [np.asarray(source.content(int(index))) for index in indices]
    images = np.stack(found) if found else np.zeros((0, 1, 1, 1), np.uint8)
    return Arrays(images, source.labels[indices] - first, names, origin)
