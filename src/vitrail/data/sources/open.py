"""``vitrail.open_dataset``: open any dataset by path or name, with train, validation and test splits.

A folder, a CSV or Parquet file, tar shards, a pack, ``hf:owner/name``, or a dataset by name: ``fashion`` (embedded), ``panes``
(synthetic; ``panes:count=50000,size=48,seed=3``), ``fashion-mnist``, ``cifar10``, ``cifar100`` (after ``vitrail data
download``). A named dataset can be reduced to a subset: ``fashion:count=500``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitrail.config import check, override
from vitrail.data.catalogue import examine
from vitrail.data.pack import is_pack, read_pack
from vitrail.data.sources.amount import Amount, fewer
from vitrail.data.sources.builtin import fashion
from vitrail.data.sources.folder import read_folder, read_unlabelled
from vitrail.data.sources.get import HERE, SETS, place_of
from vitrail.data.sources.hub import is_saved, read_hub
from vitrail.data.sources.identity import fingerprint
from vitrail.data.sources.labels import split_name
from vitrail.data.sources.panes import panes
from vitrail.data.sources.shards import read_shards
from vitrail.data.sources.source import Data, Progress, Source, chosen, nothing
from vitrail.data.sources.split import Shares, stratified
from vitrail.data.sources.table import read_table
from vitrail.errors import VitrailError, suggestion

NAMES = (*HERE, *SETS)
Found = tuple[dict[str, Source], list[str]]  # splits, notes


def pictures(
    source: str | Path, *, shares: Shares | None = None, labelled: bool = True, progress: Progress | None = None
) -> Data:
    """Open a dataset. Missing validation and test splits are split off by content, the same on every machine.

    If it need not be ``labelled``, every image below a folder is read, in a class or not.
    """
    name = str(source)
    path = Path(name)
    if not labelled and name and name.partition(":")[0] not in (*NAMES, "hf") and path.is_dir() and _loose(path):
        splits, notes = read_unlabelled(path, progress)
    else:
        splits, notes = _find(name, progress)
    found = _complete(name, splits, notes, shares or Shares(), progress)
    if (want := _amount(name)) is not None:
        found = fewer(found, want)
    return replace(found, notes=(*found.notes, *_single(found.names), *lessons(found.train))) if labelled else found


def _single(names: tuple[str, ...]) -> list[str]:
    return [f"there is a single class, {names[0]!r}: nothing to classify"] if len(names) == 1 else []


def _loose(path: Path) -> bool:
    return not is_saved(path) and not _holds_shards(path)


def _find(name: str, progress: Progress | None) -> Found:
    if not name:
        raise VitrailError(f"no dataset is named; try a folder, or {NAMES[0]!r}")
    head, _, options = name.partition(":")
    if head in NAMES:
        _amount(name)  # invalid options are reported before anything is read
        return _named(head, options, progress), _beside(head)
    if head == "hf":
        return read_hub(name), []
    path = Path(name)
    if path.is_dir():
        return _directory(path, progress)
    if path.is_file():
        return _file(path, progress)
    if any(letter in name for letter in "{*?"):
        return read_shards(name, progress=progress), []
    raise VitrailError(
        f"there is no {name!r}{suggestion(name, NAMES)}; name a folder of images, a .csv, a .tar, a pack, hf:owner/name or "
        f"one of {', '.join(NAMES)}"
    )


def _amount(name: str) -> Amount | None:
    """Parse the subset options of a named dataset; panes has options of its own."""
    head, _, options = name.partition(":")
    if not options or head == "panes" or head not in NAMES:
        return None
    return override(Amount(), options.split(","))


def _beside(name: str) -> list[str]:
    return (
        [f"this is the built-in dataset, not the folder {name}; write ./{name} to use the folder"]
        if Path(name).exists()
        else []
    )


@dataclass(frozen=True)
class PanesSettings:
    """Number of training images, their size and seed; ``heldout_size``: number of images each for validation and test, by
    default a fifth as many."""

    count: int = 20_000
    size: tuple[int, int] = (64, 64)
    seed: int = 0
    held: int | None = None

    def __post_init__(self) -> None:
        check(self)
        if not 1 <= self.count <= 2**31:
            raise VitrailError(f"count must be from 1 to {2**31:,}, got {self.count}; try panes:count=20000")
        if self.held is not None and not 1 <= self.held <= 2**31:
            raise VitrailError(f"held must be from 1 to {2**31:,}, got {self.held}; try panes:held=2000")


def _named(name: str, options: str, progress: Progress | None) -> dict[str, Source]:
    if name == "fashion":
        return {split: fashion(split) for split in ("train", "test")}
    if name == "panes":
        want = override(PanesSettings(), [option for option in options.split(",") if option])
        few = want.held or max(want.count // 5, 1)
        return {
            split: panes(split, count, want.size, want.seed)
            for split, count in (("train", want.count), ("validation", few), ("test", few))
        }
    place = place_of(name)
    if not place.is_file():
        beside = f", or name the folder ./{name}" if Path(name).exists() else ""
        raise VitrailError(f"{name} is not on this machine yet; `vitrail data download {name}` downloads it{beside}")
    return read_pack(place, progress)[0]


def _directory(path: Path, progress: Progress | None) -> Found:
    if is_saved(path):
        return read_hub(path), []
    return (read_shards(path, progress=progress), []) if _holds_shards(path) else read_folder(path, progress)


def _holds_shards(path: Path) -> bool:
    """Whether a folder has tar files, at most in one folder per split; next to class folders, a tar is what they came from."""
    folders = [entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    places = [path, *folders] if all(split_name(folder.name) for folder in folders) else []
    return any(any(place.glob("*.tar")) for place in places)


def _file(path: Path, progress: Progress | None) -> Found:
    readers: dict[str, Callable[[Path], dict[str, Source]]] = {
        ".csv": read_table,
        ".tsv": read_table,
        ".parquet": read_table,
        ".pq": read_table,
        ".tar": lambda tar: read_shards(tar, progress=progress),
    }
    ending = path.suffix.lower()
    if ending in readers:
        return readers[ending](path), []
    if is_pack(path):
        return read_pack(path, progress)[0], []
    if ending in (".zip", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar"):
        raise VitrailError(f"{path} is an archive; unpack it and name the folder")
    raise VitrailError(f"{path} is not a dataset; name a folder of images, a .csv, .parquet or .tar file, or a pack")


def _complete(name: str, splits: dict[str, Source], notes: list[str], shares: Shares, progress: Progress | None) -> Data:
    given, taken = dict(splits), None
    if "" in given:
        taken = shares
        given |= _taken(given.pop(""), taken, progress)
        notes = [*notes, f"no splits given; split by content: {_amounts(given)}"]
    elif "train" in given and "validation" not in given and shares.validation > 0:
        taken = Shares(shares.validation, 0.0)
        given |= _taken(given["train"], taken, progress)
        notes = [*notes, f"no validation split given; split off from train by content: {_amounts(given)}"]
    names = next(iter(given.values())).names
    train, validation, test = (given.get(split) or nothing(names) for split in ("train", "validation", "test"))
    return Data(name, train, validation, test, fingerprint(train, validation, test), tuple(notes), taken)


def _taken(whole: Source, shares: Shares, progress: Progress | None) -> dict[str, Source]:
    """Split the usable images by content; the others stay in train, where the dataset check lists them."""
    known = examine(whole, progress)
    good, bad = np.flatnonzero(known.problems == ""), known.bad
    parts = {split: good[part] for split, part in stratified(known.keys()[good], whole.labels[good], shares).items()}
    parts["train"] = np.sort(np.concatenate([parts["train"], bad]))
    return {split: chosen(whole, indices) for split, indices in parts.items() if len(indices)}


def _amounts(splits: dict[str, Source]) -> str:
    return ", ".join(f"{len(source):,} {split}" for split, source in splits.items())


def lessons(train: Source) -> list[str]:
    """Return notes that matter only for training."""
    if not len(train):
        return ["there are no training images, only images to evaluate on"]
    alone = np.flatnonzero(np.bincount(train.labels[train.labels >= 0], minlength=len(train.names)) == 1)
    names = [repr(train.names[label]) for label in alone[:3]]
    more = f" and {len(alone) - 3} more" if len(alone) > 3 else ""
    return [f"only one training image in {', '.join(names)}{more}"] if len(alone) else []
