"""``vitrail.open_dataset``: open any dataset by path or name, with train, validation and test splits.

A folder, a CSV or Parquet file, tar shards, a pack, ``hf:owner/name``, or a dataset by name: ``fashion`` (embedded), ``panes``
(synthetic; ``panes:train_size=50000,size=48,seed=3``), ``fashion-mnist``, ``cifar10``, ``cifar100`` (after ``vitrail data
download``). A named dataset can be reduced to a subset: ``fashion:train_size=500``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitrail.config import override, validate
from vitrail.data.image_index import index_images
from vitrail.data.pack_reader import is_pack, read_pack
from vitrail.data.sources.builtin import load_fashion
from vitrail.data.sources.content_split import SplitFractions, split_by_content_hash
from vitrail.data.sources.dataset import Dataset, DatasetSplits, Progress, empty_dataset, select_images
from vitrail.data.sources.fingerprint import fingerprint
from vitrail.data.sources.huggingface import is_saved_dataset, read_hf_dataset
from vitrail.data.sources.image_folder import read_image_folder, read_unlabelled_folder
from vitrail.data.sources.known_datasets import BUILT_IN, KNOWN_DATASETS, pack_path
from vitrail.data.sources.labels import canonical_split
from vitrail.data.sources.panes.dataset import build_panes
from vitrail.data.sources.subset import SubsetSpec, take_subset
from vitrail.data.sources.table import read_table
from vitrail.data.sources.tar_shards import read_shards
from vitrail.errors import VitrailError, did_you_mean

DATASET_NAMES = (*BUILT_IN, *KNOWN_DATASETS)
NO_SPLITS_NOTE = "no splits given"
SplitsAndNotes = tuple[dict[str, Dataset], list[str]]  # splits, notes


def open_dataset(
    source: str | Path,
    *,
    split_fractions: SplitFractions | None = None,
    labelled: bool = True,
    progress: Progress | None = None,
) -> DatasetSplits:
    """Open a dataset. Missing validation and test splits are split off by content, the same on every machine.

    If it need not be ``labelled``, every image below a folder is read, in a class or not.
    """
    name = str(source)
    path = Path(name)
    if (
        not labelled
        and name
        and name.partition(":")[0] not in (*DATASET_NAMES, "hf")
        and path.is_dir()
        and _is_image_folder(path)
    ):
        splits, notes = read_unlabelled_folder(path, progress)
    else:
        splits, notes = _read_splits(name, progress)
    data = _complete_splits(name, splits, notes, split_fractions or SplitFractions(), progress)
    if (spec := _parse_subset(name)) is not None:
        data = take_subset(data, spec)
    return (
        replace(data, notes=(*data.notes, *_single_class_notes(data.class_names), *training_notes(data.train)))
        if labelled
        else data
    )


def _single_class_notes(class_names: tuple[str, ...]) -> list[str]:
    return [f"there is a single class, {class_names[0]!r}: nothing to classify"] if len(class_names) == 1 else []


def _is_image_folder(path: Path) -> bool:
    return not is_saved_dataset(path) and not _has_shards(path)


def _read_splits(name: str, progress: Progress | None) -> SplitsAndNotes:
    if not name:
        raise VitrailError(f"no dataset is named; try a folder, or {DATASET_NAMES[0]!r}")
    head, _, options = name.partition(":")
    if head in DATASET_NAMES:
        _parse_subset(name)  # invalid options are reported before anything is read
        return _read_named(head, options, progress), _folder_notes(head)
    if head == "hf":
        return read_hf_dataset(name), []
    path = Path(name)
    if path.is_dir():
        return _read_directory(path, progress)
    if path.is_file():
        return _read_file(path, progress)
    if any(letter in name for letter in "{*?"):
        return read_shards(name, progress=progress), []
    raise VitrailError(
        f"there is no {name!r}{did_you_mean(name, DATASET_NAMES)}; name a folder of images, a .csv, a .tar, a "
        "pack, hf:owner/name or "
        f"one of {', '.join(DATASET_NAMES)}"
    )


def _parse_subset(name: str) -> SubsetSpec | None:
    """Parse the subset options of a named dataset; panes has options of its own."""
    head, _, options = name.partition(":")
    if not options or head == "panes" or head not in DATASET_NAMES:
        return None
    return override(SubsetSpec(), options.split(","))


def _folder_notes(name: str) -> list[str]:
    return (
        [f"this is the built-in dataset, not the folder {name}; write ./{name} to use the folder"]
        if Path(name).exists()
        else []
    )


@dataclass(frozen=True)
class PanesOptions:
    """Number of training images, their size and seed; ``heldout_size``: number of images each for validation and test, by
    default a fifth as many."""

    train_size: int = 20_000
    size: tuple[int, int] = (64, 64)
    seed: int = 0
    heldout_size: int | None = None

    def __post_init__(self) -> None:
        validate(self)
        if not 1 <= self.train_size <= 2**31:
            raise VitrailError(f"train_size must be from 1 to {2**31:,}, got {self.train_size}; try panes:train_size=20000")
        if self.heldout_size is not None and not 1 <= self.heldout_size <= 2**31:
            raise VitrailError(
                f"heldout_size must be from 1 to {2**31:,}, got {self.heldout_size}; try panes:heldout_size=2000"
            )


def _read_named(name: str, options: str, progress: Progress | None) -> dict[str, Dataset]:
    if name == "fashion":
        return {split: load_fashion(split) for split in ("train", "test")}
    if name == "panes":
        panes_options = override(PanesOptions(), [option for option in options.split(",") if option])
        heldout_size = panes_options.heldout_size or max(panes_options.train_size // 5, 1)
        return {
            split: build_panes(split, num_images, panes_options.size, panes_options.seed)
            for split, num_images in (("train", panes_options.train_size), ("validation", heldout_size), ("test", heldout_size))
        }
    path = pack_path(name)
    if not path.is_file():
        hint = f", or name the folder ./{name}" if Path(name).exists() else ""
        raise VitrailError(f"{name} is not on this machine yet; `vitrail data download {name}` downloads it{hint}")
    return read_pack(path, progress)[0]


def _read_directory(path: Path, progress: Progress | None) -> SplitsAndNotes:
    if is_saved_dataset(path):
        return read_hf_dataset(path), []
    return (read_shards(path, progress=progress), []) if _has_shards(path) else read_image_folder(path, progress)


def _has_shards(path: Path) -> bool:
    """Whether a folder has tar files, at most in one folder per split; next to class folders, a tar is what they came from."""
    folders = [entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    candidates = [path, *folders] if all(canonical_split(folder.name) for folder in folders) else []
    return any(any(candidate.glob("*.tar")) for candidate in candidates)


def _read_file(path: Path, progress: Progress | None) -> SplitsAndNotes:
    readers: dict[str, Callable[[Path], dict[str, Dataset]]] = {
        ".csv": read_table,
        ".tsv": read_table,
        ".parquet": read_table,
        ".pq": read_table,
        ".tar": lambda tar: read_shards(tar, progress=progress),
    }
    suffix = path.suffix.lower()
    if suffix in readers:
        return readers[suffix](path), []
    if is_pack(path):
        return read_pack(path, progress)[0], []
    if suffix in (".zip", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar"):
        raise VitrailError(f"{path} is an archive; unpack it and name the folder")
    raise VitrailError(f"{path} is not a dataset; name a folder of images, a .csv, .parquet or .tar file, or a pack")


def _complete_splits(
    name: str, splits: dict[str, Dataset], notes: list[str], split_fractions: SplitFractions, progress: Progress | None
) -> DatasetSplits:
    completed, used_fractions = dict(splits), None
    if "" in completed:
        used_fractions = split_fractions
        completed |= _split_by_content(completed.pop(""), used_fractions, progress)
        notes = [*notes, f"{NO_SPLITS_NOTE}; split by content: {_format_counts(completed)}"]
    elif "train" in completed and "validation" not in completed and split_fractions.validation > 0:
        used_fractions = SplitFractions(split_fractions.validation, 0.0)
        completed |= _split_by_content(completed["train"], used_fractions, progress)
        notes = [*notes, f"no validation split given; split off from train by content: {_format_counts(completed)}"]
    class_names = next(iter(completed.values())).class_names
    train, validation, test = (completed.get(split) or empty_dataset(class_names) for split in ("train", "validation", "test"))
    return DatasetSplits(name, train, validation, test, fingerprint(train, validation, test), tuple(notes), used_fractions)


def _split_by_content(dataset: Dataset, split_fractions: SplitFractions, progress: Progress | None) -> dict[str, Dataset]:
    """Split the usable images by content; the others stay in train, where the dataset check lists them."""
    image_index = index_images(dataset, progress)
    good, bad = np.flatnonzero(image_index.errors == ""), image_index.bad
    parts = {
        split: good[positions]
        for split, positions in split_by_content_hash(
            image_index.file_keys()[good], dataset.labels[good], split_fractions
        ).items()
    }
    parts["train"] = np.sort(np.concatenate([parts["train"], bad]))
    return {split: select_images(dataset, indices) for split, indices in parts.items() if len(indices)}


def _format_counts(splits: dict[str, Dataset]) -> str:
    return ", ".join(f"{len(dataset):,} {split}" for split, dataset in splits.items())


def training_notes(train: Dataset) -> list[str]:
    """Return notes that matter only for training."""
    if not len(train):
        return ["there are no training images, only images to evaluate on"]
    single = np.flatnonzero(np.bincount(train.labels[train.labels >= 0], minlength=len(train.class_names)) == 1)
    names = [repr(train.class_names[label]) for label in single[:3]]
    more = f" and {len(single) - 3} more" if len(single) > 3 else ""
    return [f"only one training image in {', '.join(names)}{more}"] if len(single) else []
