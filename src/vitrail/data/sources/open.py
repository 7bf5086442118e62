"""``vitrail.open_dataset``: open any dataset by path or name, or a user's own object, with train, validation and test splits.

A folder, a CSV or Parquet file, COCO JSON, YOLO's ``data.yaml``, tar shards, a pack, ``hf:owner/name``, or a dataset by name:
``fashion`` (embedded), ``panes`` (synthetic; ``panes:train_size=50000,size=48,seed=3``), ``fashion-mnist``, ``cifar10``,
``cifar100`` (after ``vitrail data download``). A named dataset can be reduced to a subset: ``fashion:train_size=500``.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from vitrail.augment.counter_rng import random_bits
from vitrail.config import override, validate
from vitrail.data.image_index import index_images
from vitrail.data.pack_reader import is_pack, read_pack
from vitrail.data.sources.annotated_boxes import AnnotatedBoxes, box_notes
from vitrail.data.sources.builtin import load_fashion
from vitrail.data.sources.coco.coco_files import find_coco_files
from vitrail.data.sources.coco.read_coco import read_coco_file, read_coco_folder
from vitrail.data.sources.columns import ANY_COLUMNS, Columns, choose_columns
from vitrail.data.sources.content_split import SplitFractions, split_by_content_hash
from vitrail.data.sources.dataset import (
    Dataset,
    DatasetSplits,
    LeftOutFile,
    Progress,
    SourceSplits,
    as_label_sets,
    class_counts,
    empty_dataset,
    fingerprint,
    ignore_classes,
    select_images,
    with_box_targets,
    with_class_names,
    with_mask_targets,
    with_numbers,
    without_boxes,
)
from vitrail.data.sources.huggingface import is_saved_dataset, read_hf_dataset
from vitrail.data.sources.image_folder import read_image_folder, read_unlabelled_folder, scan_or_raise
from vitrail.data.sources.known_datasets import BUILT_IN, KNOWN_DATASETS, pack_path
from vitrail.data.sources.labels import canonical_split, natural_sorted
from vitrail.data.sources.masks.mask_folder import images_of_mask_folder, read_mask_folder
from vitrail.data.sources.masks.pair_masks import empty_mask_folder, pair_masks
from vitrail.data.sources.numbers import unnamed_targets
from vitrail.data.sources.panes.dataset import build_panes
from vitrail.data.sources.strata import strata_of
from vitrail.data.sources.subset import SubsetSpec, take_subset
from vitrail.data.sources.table import TABLE_SUFFIXES, read_table
from vitrail.data.sources.tar_shards import read_shards
from vitrail.data.sources.user_dataset import as_dataset
from vitrail.data.sources.voc.read_voc import has_voc_files, read_voc
from vitrail.data.sources.yolo.read_yolo import find_yolo, read_yolo
from vitrail.errors import VitrailError, did_you_mean

DATASET_NAMES = (*BUILT_IN, *KNOWN_DATASETS)
NO_SPLITS_NOTE, NO_VALIDATION_NOTE = "no splits given", "no validation split given"
SPLIT_NOTES = (NO_SPLITS_NOTE, NO_VALIDATION_NOTE)
INDEX_STREAM = 0x696E6478  # in place of an epoch, so that these draws differ from those of augmentation


def open_dataset(
    source: Any,
    *,
    labels_column: str | None = None,
    separator: str | None = None,
    target: str | Sequence[str] | None = None,
    ignore: str | int | Sequence[str | int] | None = None,
    columns: Columns | None = None,
    split_fractions: SplitFractions | None = None,
    labelled: bool = True,
    class_names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> DatasetSplits:
    """Open a dataset: a path or a name; a ``Dataset``; any object with ``__len__`` and ``__getitem__`` that gives pairs of
    image and target, such as a list, or a dataset of torch or torchvision; a mapping of splits to any of these.
    ``DatasetSplits`` are returned as they are.

    Missing validation and test splits are split off by content, the same on every machine; those of an object whose images
    differ each time they are read, by index. If it need not be ``labelled``, every image below a folder is read, in a class or
    not.

    Of a table, ``labels_column`` is the column of labels, ``separator`` the text between several labels of one image, or
    ``none`` if a cell is one label, and ``target`` one column of numbers to predict, or several; what is left open is found.
    In masks, the pixels of the values or classes to ``ignore`` count for no class, besides those of 255 and of classes such as
    void; ``none``: of no value. ``columns`` is all of it in one object, as a recipe records it. ``class_names``: of a user's
    object, by label. The fingerprint of a user's object hashes its length, its targets and 16 evenly spaced images.
    """
    if isinstance(source, DatasetSplits):
        return source
    source = as_source(source, class_names, progress)
    columns = choose_columns(labels_column, separator, target, ignore) if columns is None else columns
    reader = _Reader(labelled, columns, class_names, progress)
    read = reader.with_targets(source_name(source), reader.read(source))
    data = _complete_splits(source_name(source), read, split_fractions or SplitFractions(), progress)
    if isinstance(source, str) and (spec := _parse_subset(source)) is not None:
        data = take_subset(data, spec)
    if not labelled:
        return data
    nothing = "segmentation needs at least two" if data.train.has_mask_targets else "nothing to classify"
    is_single = len(data.class_names) == 1 and not data.train.has_box_targets
    single = [f"there is a single class, {data.class_names[0]!r}: {nothing}"] if is_single else []
    return replace(data, notes=(*data.notes, *single, *training_notes(data.train)))


def as_source(source: Any, class_names: Sequence[str] | None = None, progress: Progress | None = None) -> Any:
    """Return a path as text, and a user's object as a dataset, also in a mapping; names and splits as they are."""
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    if isinstance(source, Mapping):
        return {split: as_source(part, class_names, progress) for split, part in source.items()}
    return source if isinstance(source, DatasetSplits) else as_dataset(source, class_names, progress)


def has_columns(source: Any) -> bool:
    """Whether a source, or every split of a mapping, is a table, whose columns can be named."""
    if isinstance(source, Mapping):
        return all(map(has_columns, source.values()))
    if not isinstance(source, str):
        return False
    return source.startswith("hf:") or Path(source).suffix.lower() in TABLE_SUFFIXES or is_saved_dataset(Path(source))


def source_name(source: Any) -> str:
    """Return the name of a source: a path or name itself, a user's object by its type and fingerprint."""
    source = as_source(source)
    if isinstance(source, Mapping):
        return ", ".join(f"{split}={source_name(part)}" for split, part in source.items())
    if isinstance(source, Dataset):
        return f"{source.name}-{fingerprint(source)[:8]}"
    return source.name if isinstance(source, DatasetSplits) else str(source)


@dataclass(frozen=True)
class _Reader:
    """Reads sources of every kind, with the options of ``open_dataset``."""

    labelled: bool
    columns: Columns
    class_names: Sequence[str] | None
    progress: Progress | None

    @property
    def reads_masks(self) -> bool:
        """Whether the masks of images are targets, where there are any: if they are chosen, or targets are needed at all."""
        return (self.labelled and not self.columns.boxes) if self.columns.masks is None else self.columns.masks

    @property
    def reads_boxes(self) -> bool:
        """Likewise of boxes; where masks are not to be targets, boxes are only by choice."""
        return bool(self.columns.boxes) or (self.labelled and self.columns.allow_boxes)

    def read(self, source: Any) -> SourceSplits:
        if isinstance(source, Mapping):
            return self._read_mapping(source)
        if isinstance(source, Dataset):
            notes = box_notes(source.name, {"": source}) if isinstance(source, AnnotatedBoxes) else ()
            return SourceSplits({"": source}, tuple(notes))
        return self._read_name(source)

    def with_targets(self, name: str, source: SourceSplits) -> SourceSplits:
        """Return splits with the targets that the columns name, if they did not come from a table, and so have others."""
        columns, splits = self.columns, source.splits
        if columns.masks:
            splits = {split: with_mask_targets(dataset, name) for split, dataset in splits.items()}
            if columns.ignore and not source.columns.ignore:  # the source has classes, but no values
                splits = {split: ignore_classes(dataset, columns.ignore, name) for split, dataset in splits.items()}
                source = replace(source, columns=replace(source.columns, ignore=columns.ignore))
        if columns.boxes:
            splits = {split: with_box_targets(dataset, name) for split, dataset in splits.items()}
        if splits and all(dataset.has_box_targets for dataset in splits.values()):
            return replace(source, splits=splits, columns=replace(source.columns, boxes=True))
        if splits and all(dataset.has_mask_targets for dataset in splits.values()):
            return replace(source, splits=splits, columns=replace(source.columns, masks=True))
        if columns.targets:
            found = source.columns.targets  # as the table spells them
            splits = {
                split: dataset if found and dataset.target_names == found else _with_numbers(name, dataset, columns.targets)
                for split, dataset in splits.items()
            }
            return replace(source, splits=splits, columns=source.columns if found else columns)
        several = any(dataset.label_sets is not None for dataset in splits.values())
        if columns.several or several:
            splits = {split: as_label_sets(dataset) for split, dataset in splits.items()}
        if columns.several is False and several:
            raise VitrailError(f"{name} has several labels per image, where one is needed; it trains a multi-label model")
        if (columns.labels or columns.splits_cells) and source.columns == ANY_COLUMNS:
            raise VitrailError(
                f"{name} has no columns; labels_column and separator are for tables: .csv, .jsonl and .parquet files, and "
                "datasets of Hugging Face"
            )
        return replace(source, splits=splits, columns=replace(source.columns, several=True) if several else source.columns)

    def _read_mapping(self, parts: Mapping[str, Any]) -> SourceSplits:
        """Read each split from its own source; labels are matched by class name."""
        splits: dict[str, Dataset] = {}
        columns, notes, left_out = ANY_COLUMNS, list[str](), list[LeftOutFile]()
        for key, part in sorted(parts.items(), key=lambda item: canonical_split(item[0]) != "train"):
            split = canonical_split(key)
            if split is None or split in splits:
                raise VitrailError(
                    f"the splits must be train, validation and test, once each, got {', '.join(map(repr, parts))}"
                )
            part = as_source(part, self.class_names, self.progress)
            # what was found in train, such as the separator, holds for the others, which may have too few rows to tell
            reader = self if columns == ANY_COLUMNS else replace(self, columns=replace(columns, labels=self.columns.labels))
            read = part if isinstance(part, DatasetSplits) else reader.read(part)
            dataset = read.splits.get(split, read.splits.get(""))
            if dataset is None:
                raise VitrailError(
                    f"{source_name(part)} has no {split} split, only {', '.join(read.splits)}; name another for {split}"
                )
            splits[split] = dataset
            columns = columns if columns != ANY_COLUMNS else read.columns
            notes += [f"{split}: {note}" for note in read.notes] if isinstance(read, SourceSplits) else []
            left_out += read.left_out
        if not splits:
            raise VitrailError("there are no splits; name at least train")
        if any(dataset.label_sets is not None for dataset in splits.values()):
            splits = {split: as_label_sets(dataset) for split, dataset in splits.items()}
        names = _merge_class_names([dataset.class_names for dataset in splits.values()])
        splits = {split: with_class_names(dataset, names) for split, dataset in splits.items()}
        return SourceSplits(splits, tuple(notes), columns, tuple(left_out))

    def _read_name(self, name: str) -> SourceSplits:
        if not name:
            raise VitrailError(f"no dataset is named; try a folder, or {DATASET_NAMES[0]!r}")
        head, _, options = name.partition(":")
        if head in DATASET_NAMES:
            _parse_subset(name)  # invalid options are reported before anything is read
            note = f"this is the built-in dataset, not the folder {head}; write ./{head} to use the folder"
            return SourceSplits(_read_named(head, options, self.progress), (note,) if Path(head).exists() else ())
        if head == "hf":
            return read_hf_dataset(name, self.columns, self.labelled, progress=self.progress)
        path = Path(name)
        if path.is_dir():
            return self._read_directory(path)
        if path.is_file():
            return self._read_file(path)
        if any(letter in name for letter in "{*?"):
            return SourceSplits(read_shards(name, progress=self.progress))
        raise VitrailError(
            f"there is no {name!r}{did_you_mean(name, DATASET_NAMES)}; name a folder of images, a .csv, a .tar, a pack, "
            f"hf:owner/name or one of {', '.join(DATASET_NAMES)}"
        )

    def _read_directory(self, path: Path) -> SourceSplits:
        if is_saved_dataset(path):
            return read_hf_dataset(path, self.columns, self.labelled, progress=self.progress)
        if _has_shards(path):
            return SourceSplits(read_shards(path, progress=self.progress))
        if self.reads_masks or self.reads_boxes:
            if files := find_coco_files(path):
                return read_coco_folder(path, files, self.reads_masks, self.reads_boxes, self.progress)
            if (description := find_yolo(path)) is not None:
                return read_yolo(description, self.reads_masks, self.reads_boxes, self.progress)
        listing = scan_or_raise(path, self.progress)
        if self.columns.boxes:
            if has_voc_files(path):
                return read_voc(path, listing, self.progress)
            raise without_boxes(path)
        if (pairs := pair_masks(listing)) is not None:
            if self.reads_masks:
                return read_mask_folder(path, pairs, self.columns.ignore, self.progress)
            if not self.labelled:
                return SourceSplits(images_of_mask_folder(path, pairs))
        elif self.reads_boxes and has_voc_files(path):
            return read_voc(path, listing, self.progress)
        elif self.reads_masks and (folder := empty_mask_folder(listing)) is not None:
            raise VitrailError(f"{path / folder} has no masks; it needs a PNG file for each image, of the same name and size")
        read_folder = read_image_folder if self.labelled else read_unlabelled_folder
        splits, notes = read_folder(path, listing)
        if self.labelled and pairs is not None:
            notes.append("folders are classes here, also those of masks, which --task segment reads as masks")
        if self.labelled and has_voc_files(path):
            notes.append("folders are classes here, and annotations are not read, which --task detect reads as boxes")
        leaves_others = self.columns.masks is False and (
            pairs is not None or has_voc_files(path) or bool(find_coco_files(path)) or find_yolo(path) is not None
        )
        return SourceSplits(splits, tuple(notes), Columns(masks=False) if leaves_others else ANY_COLUMNS)

    def _read_file(self, path: Path) -> SourceSplits:
        suffix = path.suffix.lower()
        if suffix in TABLE_SUFFIXES:
            return read_table(path, self.columns, self.labelled, progress=self.progress)
        if suffix == ".json":
            return read_coco_file(path, self.reads_masks, self.reads_boxes, self.progress)
        if suffix in (".yaml", ".yml"):
            return read_yolo(path, self.reads_masks, self.reads_boxes, self.progress)
        if suffix == ".tar":
            return SourceSplits(read_shards(path, progress=self.progress))
        if is_pack(path):
            return SourceSplits(read_pack(path, self.progress)[0])
        if suffix in (".zip", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar"):
            raise VitrailError(f"{path} is an archive; unpack it and name the folder")
        raise VitrailError(
            f"{path} is not a dataset; name a folder of images, a .csv, .jsonl, .parquet, .tar, COCO's .json, YOLO's "
            "data.yaml, or a pack"
        )


def _with_numbers(name: str, dataset: Dataset, targets: tuple[str, ...]) -> Dataset:
    """Return a dataset with numbers of its own as targets; those without names of their own are matched by their order."""
    if dataset.target_names == unnamed_targets(len(targets)):
        return with_numbers(dataset, np.asarray(dataset.targets), targets)
    columns = [dataset.numbers(target) for target in targets]
    missing = next((target for target, column in zip(targets, columns, strict=True) if column is None), None)
    if missing is not None:
        known = dataset.number_names or dataset.target_names
        if known and known == unnamed_targets(len(known)):
            count = f"{len(known)} number{'' if len(known) == 1 else 's'} per image without names"
            raise VitrailError(f"{name} has {count}, where {len(targets)} are needed: {', '.join(targets)}")
        remedy = f"it has {', '.join(known)}{did_you_mean(missing, known)}" if known else "targets are columns of a .csv file"
        raise VitrailError(f"{name} has no target {missing!r}; {remedy}")
    return with_numbers(dataset, np.stack([np.asarray(column, np.float64) for column in columns], axis=1), targets)


def _merge_class_names(names: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the class names of the split that has all of them, else those of all splits, sorted."""
    every = {name for of_split in names for name in of_split}
    return next((of_split for of_split in names if every == set(of_split)), natural_sorted(every))


def _parse_subset(name: str) -> SubsetSpec | None:
    """Parse the subset options of a named dataset; panes has options of its own."""
    head, _, options = name.partition(":")
    if not options or head == "panes" or head not in DATASET_NAMES:
        return None
    return override(SubsetSpec(), options.split(","))


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
        for name, value, example in (("train_size", self.train_size, 20_000), ("heldout_size", self.heldout_size, 2000)):
            if value is not None and not 1 <= value <= 2**31:
                raise VitrailError(f"{name} must be from 1 to {2**31:,}, got {value}; try panes:{name}={example}")


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


def _has_shards(path: Path) -> bool:
    """Whether a folder has tar files, at most in one folder per split; next to class folders, a tar is what they came from."""
    folders = [entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    candidates = [path, *folders] if all(canonical_split(folder.name) for folder in folders) else []
    return any(any(candidate.glob("*.tar")) for candidate in candidates)


def _complete_splits(
    name: str, source: SourceSplits, split_fractions: SplitFractions, progress: Progress | None
) -> DatasetSplits:
    completed, notes, used_fractions = dict(source.splits), list(source.notes), None
    if "" in completed:
        used_fractions = split_fractions
        how = "content" if completed[""].is_deterministic else "index, because the images differ each time they are read"
        completed |= _split_off(completed.pop(""), used_fractions, progress)
        notes = [*notes, f"{NO_SPLITS_NOTE}; validation and test are split off by {how}"]
    elif "train" in completed and "validation" not in completed and split_fractions.validation > 0:
        used_fractions = SplitFractions(split_fractions.validation, 0.0)
        how = "content" if completed["train"].is_deterministic else "index"
        completed |= _split_off(completed["train"], used_fractions, progress)
        notes = [*notes, f"{NO_VALIDATION_NOTE}; it is split off from train by {how}"]
    nothing = empty_dataset(next(iter(completed.values())))
    train, validation, test = (completed.get(split) or nothing for split in ("train", "validation", "test"))
    content = fingerprint(train, validation, test)
    return DatasetSplits(
        name, train, validation, test, content, tuple(notes), used_fractions, source.columns, left_out=source.left_out
    )


def _split_off(dataset: Dataset, split_fractions: SplitFractions, progress: Progress | None) -> dict[str, Dataset]:
    """Split the usable images by content, or by index if it differs; the others stay in train, where the check lists them."""
    if not split_fractions.validation and not split_fractions.test:
        return {"train": dataset}
    if dataset.is_deterministic:
        image_index = index_images(dataset, progress)
        good, bad, keys = image_index.good, image_index.bad, image_index.file_keys()
    else:
        good, bad = np.arange(len(dataset)), np.zeros(0, np.int64)
        keys = random_keys(good)
    assigned = split_by_content_hash(keys[good], strata_of(dataset)[good], split_fractions)
    parts = {split: good[positions] for split, positions in assigned.items()}
    parts["train"] = np.sort(np.concatenate([parts["train"], bad]))
    return {split: select_images(dataset, indices) for split, indices in parts.items() if len(indices)}


def random_keys(indices: ndarray) -> ndarray:
    """Return a random key per index, to divide images whose content differs each time they are read."""
    return random_bits(0, INDEX_STREAM, indices, 0)[:, 0]


def training_notes(train: Dataset) -> list[str]:
    """Return notes that matter only for training."""
    if not len(train):
        return ["there are no training images, only images to evaluate on"]
    single = np.flatnonzero(class_counts(train) == 1)
    names = [repr(train.class_names[label]) for label in single[:3]]
    more = f" and {len(single) - 3} more" if len(single) > 3 else ""
    return [f"only one training image in {', '.join(names)}{more}"] if len(single) else []
