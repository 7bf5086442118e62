"""Dataset check: unreadable images, duplicates, leaks between splits, class balance. Nothing is ever changed or deleted.

Every image is read and decoded once; the results are cached, so a second check takes no time.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from vitrail.data.catalogue import HASH, Catalogue, examine
from vitrail.data.sources.source import TOLERATED, Data, Part, Progress, Source, allowed, chosen, label_name
from vitrail.errors import VitrailError


@dataclass(frozen=True)
class Problem:
    """An image that cannot be used."""

    where: str
    reason: str
    split: str


@dataclass(frozen=True)
class Copies:
    """Images with equal pixels, each with its split and class."""

    where: tuple[str, ...]
    splits: tuple[str, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Checked:
    """Result of a dataset check. ``data`` is the dataset without the images that cannot be used."""

    data: Data
    pictures: int
    bad: tuple[Problem, ...]
    leaks: tuple[Copies, ...]  # the same image in two splits
    conflicts: tuple[Copies, ...]  # the same image under two labels
    duplicates: tuple[Copies, ...]  # the same image twice in one split
    classes: dict[str, dict[str, int]]  # class name: split: usable images
    sizes: dict[str, tuple[int, int, int]]  # height and width: minimum, median, maximum
    kinds: dict[str, int]  # format and mode: images
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not (self.bad or self.leaks or self.conflicts)


def check(data: Data, progress: Progress | None = None, workers: int | None = None) -> Checked:
    """Check every image of every split."""
    found = _examined(data, progress, workers)
    bad = [
        Problem(source.where(int(index)), str(found[split].problems[index]), split)
        for split, source in data.splits.items()
        for index in found[split].bad
    ]
    usable = {split: chosen(source, np.flatnonzero(found[split].problems == "")) for split, source in data.splits.items()}
    kept = {split: found[split].rows(np.flatnonzero(found[split].problems == "")) for split in found}
    leaks, conflicts, duplicates = _copies(usable, kept)
    return Checked(
        Data(data.name, usable["train"], usable["validation"], usable["test"], _fingerprint(usable, kept), data.notes),
        sum(map(len, data.splits.values())),
        tuple(bad),
        tuple(leaks),
        tuple(conflicts),
        tuple(duplicates),
        _balance(usable),
        _sizes(kept),
        dict(sum((Counter(rows.kinds.tolist()) for rows in kept.values()), Counter[str]()).most_common()),
        data.notes,
    )


def _examined(data: Data, progress: Progress | None, workers: int | None) -> dict[str, Catalogue]:
    """Index the splits; those that are subsets of one dataset are indexed together."""
    known: dict[int, Catalogue] = {}
    found = {}
    for split, source in data.splits.items():
        whole = source.whole if isinstance(source, Part) else source
        if id(whole) not in known:
            known[id(whole)] = examine(whole, progress, workers)
        found[split] = known[id(whole)].rows(source.indices) if isinstance(source, Part) else known[id(whole)]
    return found


def usable(data: Data, progress: Progress | None = None, tolerated: float = TOLERATED) -> Checked:
    """Check before training and drop the unusable images; raise if there are too many."""
    checked = check(data, progress)
    if len(checked.bad) > allowed(tolerated, checked.pictures):
        first = checked.bad[0]
        raise VitrailError(
            f"{len(checked.bad)} of {checked.pictures} images cannot be used, more than the tolerated fraction of "
            f"{tolerated:g}, first {first.where}, which {first.reason}; `vitrail data check {data.name}` lists them all"
        )
    return checked


def _copies(splits: dict[str, Source], rows: dict[str, Catalogue]) -> tuple[list[Copies], list[Copies], list[Copies]]:
    keys = np.concatenate([table.looks() for table in rows.values()])
    which = np.concatenate([np.full(len(source), number) for number, source in enumerate(splits.values())])
    index = np.concatenate([np.arange(len(source)) for source in splits.values()])
    names, sources = tuple(splits), tuple(splits.values())
    leaks, conflicts, duplicates = [], [], []
    for group in _groups(keys):
        members = [(sources[which[item]], names[which[item]], int(index[item])) for item in group]
        copies = Copies(
            tuple(source.where(place) for source, _, place in members),
            tuple(split for _, split, _ in members),
            tuple(label_name(source, place) for source, _, place in members),
        )
        if len(set(copies.splits)) > 1:
            leaks.append(copies)
        if len(set(copies.classes)) > 1:
            conflicts.append(copies)
        if len(set(copies.splits)) == 1 and len(set(copies.classes)) == 1:
            duplicates.append(copies)
    return leaks, conflicts, duplicates


def _groups(keys: ndarray) -> list[ndarray]:
    """Return the positions of every key that occurs more than once, a group per key."""
    _, of, count = np.unique(keys, return_inverse=True, return_counts=True)
    several = np.flatnonzero(count[of] > 1)
    order = several[np.argsort(of[several], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(of[order])) + 1) if len(order) else []


def _balance(splits: dict[str, Source]) -> dict[str, dict[str, int]]:
    names = next(iter(splits.values())).names
    counts = {split: np.bincount(source.labels[source.labels >= 0], minlength=len(names)) for split, source in splits.items()}
    return {name: {split: int(counts[split][label]) for split in splits} for label, name in enumerate(names)}


def _sizes(rows: dict[str, Catalogue]) -> dict[str, tuple[int, int, int]]:
    sizes = np.concatenate([table.sizes for table in rows.values()])
    if not len(sizes):
        return {}
    low, middle, high = (np.quantile(sizes, share, axis=0, method="nearest").tolist() for share in (0, 0.5, 1))
    return {side: (low[axis], middle[axis], high[axis]) for axis, side in enumerate(("height", "width"))}


def _fingerprint(splits: dict[str, Source], rows: dict[str, Catalogue]) -> str:
    """Hash contents, labels and splits, independently of file names and order."""
    digest = hashlib.sha256(repr(next(iter(splits.values())).names).encode())
    for split, source in splits.items():
        lines = np.concatenate([rows[split].hashes, source.labels[:, None].astype("<i8").view(np.uint8)], axis=1)
        ordered = np.sort(np.ascontiguousarray(lines).view(f"V{HASH + 8}").reshape(-1))
        digest.update(split.encode() + ordered.tobytes())
    return digest.hexdigest()
