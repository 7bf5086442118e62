"""Dataset check: unreadable images, duplicates, leaks between splits, class balance. Nothing is ever changed or deleted.

Every image is read and decoded once; the results are cached, so a second check takes no time.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from vitrail.data.box_index import BoxIndex, index_boxes
from vitrail.data.box_summary import BoxSummary, summarise_boxes
from vitrail.data.image_index import HASH_BYTES, ImageIndex, index_images
from vitrail.data.mask_index import MaskIndex, index_masks
from vitrail.data.mask_summary import MaskSummary, summarise_masks
from vitrail.data.sources.concat_dataset import ConcatDataset
from vitrail.data.sources.dataset import (
    MAX_BAD_FRACTION,
    Dataset,
    DatasetSplits,
    Progress,
    class_counts,
    label_name,
    max_bad_images,
    select_images,
)
from vitrail.data.target_summary import TargetSummary, summarise_targets
from vitrail.errors import VitrailError

NUM_COLOURS = 3  # bands of an 8-bit image


@dataclass(frozen=True)
class UnusableImage:
    """An image that cannot be used."""

    location: str
    reason: str
    split: str


@dataclass(frozen=True)
class DuplicateGroup:
    """Images with equal pixels, each with its split and class."""

    locations: tuple[str, ...]
    splits: tuple[str, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class DatasetReport:
    """Result of a dataset check. ``data`` is the dataset without the images that cannot be used."""

    data: DatasetSplits
    num_images: int
    bad: tuple[UnusableImage, ...]
    leaks: tuple[DuplicateGroup, ...]  # the same image in two splits
    conflicts: tuple[DuplicateGroup, ...]  # the same image under two labels
    duplicates: tuple[DuplicateGroup, ...]  # the same image twice in one split
    classes: dict[str, dict[str, int]]  # class name: split: usable images
    sizes: dict[str, tuple[int, int, int]]  # height and width: minimum, median, maximum
    image_sizes: dict[str, ndarray]  # split: height and width of every usable image
    image_formats: dict[str, int]  # format and mode: images
    notes: tuple[str, ...]
    masks: MaskSummary | None = None  # if they are the targets
    boxes: BoxSummary | None = None  # likewise

    @cached_property
    def targets(self) -> TargetSummary:
        """Labels that occur together, are missing or have similar names, and the range of numbers."""
        return summarise_targets(self.data.splits)

    @property
    def target_noun(self) -> str:
        """Name of the targets in a sentence: masks, boxes or labels."""
        return "masks" if self.masks is not None else "boxes" if self.boxes is not None else "labels"

    @property
    def ok(self) -> bool:
        has_good_boxes = self.boxes is None or self.boxes.ok
        return has_good_boxes and not (self.bad or self.leaks or self.conflicts or self.data.left_out)


def check_dataset(data: DatasetSplits, progress: Progress | None = None, trust_exact: bool = False) -> DatasetReport:
    """Check every image of every split, and its mask or its boxes if these are the targets. ``trust_exact``: without reading
    masks and boxes that are made together with their images, of which nothing is known then."""
    indexes = _mark_other_bands(_index_splits(data, progress))
    parts = [part for part in data.splits.values() if len(part)]
    exact_masks, exact_boxes = all(part.has_exact_masks for part in parts), all(part.has_exact_boxes for part in parts)
    masks = {} if exact_masks and trust_exact else _index_masks(data, progress)
    boxes = {} if exact_boxes and trust_exact else _index_boxes(data, progress)
    indexes = _mark_bad_boxes(_mark_bad_masks(indexes, masks), boxes)
    bad = [
        UnusableImage(dataset.describe(int(index)), str(indexes[split].errors[index]), split)
        for split, dataset in data.splits.items()
        for index in indexes[split].bad
    ]
    usable_splits = {split: select_images(dataset, indexes[split].good) for split, dataset in data.splits.items()}
    usable_indexes = {split: index.select(index.good) for split, index in indexes.items()}
    usable_masks = {split: index.select(indexes[split].good) for split, index in masks.items()}
    usable_boxes = {split: index.select(indexes[split].good) for split, index in boxes.items()}
    image_sizes = {split: index.sizes for split, index in usable_indexes.items()}
    hashes = {split: index.hashes for split, index in usable_masks.items()}
    hashes |= {split: index.hashes() for split, index in usable_boxes.items()}
    leaks, conflicts, duplicates = _find_duplicates(usable_splits, usable_indexes, hashes, "mask" if masks else "boxes")
    mask_summary = summarise_masks(data.class_names, usable_masks) if masks else None
    box_summary = summarise_boxes(data.class_names, usable_splits, usable_boxes, image_sizes) if boxes else None
    summary = mask_summary or box_summary
    are_exact = exact_masks if masks else exact_boxes
    train, validation, test = usable_splits.values()
    return DatasetReport(
        replace(
            data,
            train=train,
            validation=validation,
            test=test,
            fingerprint=_content_fingerprint(usable_splits, usable_indexes, {} if are_exact else hashes),
            split_fractions=None,
        ),
        sum(map(len, data.splits.values())),
        tuple(bad),
        tuple(leaks),
        tuple(conflicts),
        tuple(duplicates),
        _class_counts(usable_splits) if summary is None else summary.images,
        _size_quantiles(usable_indexes),
        image_sizes,
        dict(sum((Counter(rows.image_formats.tolist()) for rows in usable_indexes.values()), Counter[str]()).most_common()),
        data.notes,
        mask_summary,
        box_summary,
    )


def _index_splits(data: DatasetSplits, progress: Progress | None) -> dict[str, ImageIndex]:
    """Index the splits together, because they may be subsets of one dataset."""
    index = index_images(ConcatDataset(list(data.splits.values())), progress)
    return {split: index.select(rows) for split, rows in _rows_of_splits(data).items()}


def _index_masks(data: DatasetSplits, progress: Progress | None) -> dict[str, MaskIndex]:
    """Index the masks of all splits together; nothing if they are not the targets."""
    parts = [dataset for dataset in data.splits.values() if len(dataset)]
    if not parts or not all(part.has_mask_targets for part in parts):
        return {}
    index = index_masks(ConcatDataset(parts), progress)
    return {split: index.select(rows) for split, rows in _rows_of_splits(data).items()}


def _index_boxes(data: DatasetSplits, progress: Progress | None) -> dict[str, BoxIndex]:
    """Likewise of boxes."""
    parts = [dataset for dataset in data.splits.values() if len(dataset)]
    if not parts or not all(part.has_box_targets for part in parts):
        return {}
    index = index_boxes(ConcatDataset(parts), progress)
    return {split: index.select(rows) for split, rows in _rows_of_splits(data).items()}


def _rows_of_splits(data: DatasetSplits) -> dict[str, ndarray]:
    """Return the rows of each split in an index of all splits."""
    ends = np.cumsum([len(dataset) for dataset in data.splits.values()])
    return dict(zip(data.splits, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))


def _mark_bad_masks(indexes: dict[str, ImageIndex], masks: dict[str, MaskIndex]) -> dict[str, ImageIndex]:
    """Mark images whose mask cannot be used, or has another size."""
    marked = dict(indexes)
    for split, of_split in masks.items():
        images, errors = indexes[split], indexes[split].errors.copy()
        for row in images.good.tolist():
            (height, width), (mask_height, mask_width) = images.sizes[row].tolist(), of_split.sizes[row].tolist()
            if of_split.errors[row]:
                errors[row] = f"cannot be used: {of_split.errors[row]}"
            elif (height, width) != (mask_height, mask_width):
                errors[row] = f"is {width} x {height} pixels, and its mask {mask_width} x {mask_height}"
        marked[split] = replace(images, errors=errors)
    return marked


def _mark_bad_boxes(indexes: dict[str, ImageIndex], boxes: dict[str, BoxIndex]) -> dict[str, ImageIndex]:
    """Mark images whose boxes cannot be used."""
    marked = dict(indexes)
    for split, of_split in boxes.items():
        errors = indexes[split].errors.copy()
        for row in np.flatnonzero((errors == "") & (of_split.errors != "")).tolist():
            errors[row] = f"cannot be used: {of_split.errors[row]}"
        marked[split] = replace(indexes[split], errors=errors)
    return marked


def _mark_other_bands(indexes: dict[str, ImageIndex]) -> dict[str, ImageIndex]:
    """Mark images with another number of bands than most as unusable; 8-bit images have three."""
    bands = {split: np.where(index.bands == 0, NUM_COLOURS, index.bands) for split, index in indexes.items()}
    if not any(index.bands.any() for index in indexes.values()):
        return indexes
    (most, _), *_ = Counter(
        np.concatenate([bands[split][index.good] for split, index in indexes.items()]).tolist()
    ).most_common()
    marked = {}
    for split, index in indexes.items():
        errors = index.errors.copy()
        for row in index.good[bands[split][index.good] != most].tolist():
            errors[row] = f"has {bands[split][row]} bands, and most of the images have {most}"
        marked[split] = replace(index, errors=errors)
    return marked


def drop_unusable(
    data: DatasetSplits, progress: Progress | None = None, max_bad_fraction: float = MAX_BAD_FRACTION
) -> DatasetReport:
    """Check before training and drop the unusable images; raise if there are too many."""
    report = check_dataset(data, progress, trust_exact=True)
    if len(report.bad) > max_bad_images(max_bad_fraction, report.num_images):
        first = report.bad[0]
        raise VitrailError(
            f"{len(report.bad)} of {report.num_images} images cannot be used, more than the tolerated fraction of "
            f"{max_bad_fraction:g}, first {first.location}, which {first.reason}; `vitrail data check "
            f"{data.name}` lists them all, max_bad_fraction=0.2 tolerates more"
        )
    return report


def _find_duplicates(
    splits: dict[str, Dataset], indexes: dict[str, ImageIndex], hashes: dict[str, ndarray], target: str
) -> tuple[list[DuplicateGroup], list[DuplicateGroup], list[DuplicateGroup]]:
    """Return groups of equal images: in two splits, with different targets, and others. ``hashes``: of masks or boxes."""
    keys = np.concatenate([table.pixel_keys() for table in indexes.values()])
    split_numbers = np.concatenate([np.full(len(dataset), number) for number, dataset in enumerate(splits.values())])
    index = np.concatenate([np.arange(len(dataset)) for dataset in splits.values()])
    names, datasets = tuple(splits), tuple(splits.values())
    groups = []
    for group in _group_equal(keys):
        members = [(datasets[split_numbers[item]], names[split_numbers[item]], int(index[item])) for item in group]
        locations = (dataset.describe(position) for dataset, _, position in members)
        if hashes:  # equal or not
            classes = [f"{target} {hashes[split][position].tobytes().hex()[:8]}" for _, split, position in members]
        else:
            classes = [label_name(dataset, position) for dataset, _, position in members]
        groups.append(DuplicateGroup(tuple(locations), tuple(split for _, split, _ in members), tuple(classes)))
    leaks = [group for group in groups if len(set(group.splits)) > 1]
    conflicts = [group for group in groups if len(set(group.classes)) > 1]
    duplicates = [group for group in groups if len(set(group.splits)) == len(set(group.classes)) == 1]
    return leaks, conflicts, duplicates


def _group_equal(keys: ndarray) -> list[ndarray]:
    """Return the positions of every key that occurs more than once, a group per key."""
    _, inverse, count = np.unique(keys, return_inverse=True, return_counts=True)
    repeated = np.flatnonzero(count[inverse] > 1)
    order = repeated[np.argsort(inverse[repeated], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(inverse[order])) + 1) if len(order) else []


def _class_counts(splits: dict[str, Dataset]) -> dict[str, dict[str, int]]:
    names = next(iter(splits.values())).class_names
    counts = {split: class_counts(dataset) for split, dataset in splits.items()}
    return {name: {split: int(counts[split][label]) for split in splits} for label, name in enumerate(names)}


def _size_quantiles(indexes: dict[str, ImageIndex]) -> dict[str, tuple[int, int, int]]:
    sizes = np.concatenate([table.sizes for table in indexes.values()])
    if not len(sizes):
        return {}
    minimum, median, maximum = (np.quantile(sizes, quantile, axis=0, method="nearest").tolist() for quantile in (0, 0.5, 1))
    return {side: (minimum[axis], median[axis], maximum[axis]) for axis, side in enumerate(("height", "width"))}


def _content_fingerprint(splits: dict[str, Dataset], indexes: dict[str, ImageIndex], hashes: dict[str, ndarray]) -> str:
    """Hash contents, targets and splits, independently of file names and order."""
    first = next(iter(splits.values()))
    digest = hashlib.sha256(repr((first.class_names, first.target_names) if first.target_names else first.class_names).encode())
    for split, dataset in splits.items():
        targets = hashes[split] if hashes else _target_bytes(dataset)
        lines = np.ascontiguousarray(np.concatenate([indexes[split].file_hashes, targets], axis=1))
        digest.update(split.encode() + np.sort(lines.view(f"V{lines.shape[1]}").reshape(-1)).tobytes())
    return digest.hexdigest()


def _target_bytes(dataset: Dataset) -> UInt8[ndarray, "n bytes"]:
    """Return bytes that identify the target of each image: its label, a hash of its labels, or its numbers."""
    labels = dataset.labels[:, None].astype("<i8").view(np.uint8)
    if (label_sets := dataset.label_sets) is not None:
        members = (np.array(label_sets.classes_of(index), "<i4").tobytes() for index in range(len(dataset)))
        hashes = b"".join(hashlib.blake2b(each, digest_size=HASH_BYTES).digest() for each in members)
        return np.concatenate([labels, np.frombuffer(hashes, np.uint8).reshape(-1, HASH_BYTES)], axis=1)
    if dataset.target_names:
        numbers = np.ascontiguousarray(np.asarray(dataset.targets, "<f8").reshape(len(dataset), len(dataset.target_names)))
        return np.concatenate([labels, numbers.view(np.uint8)], axis=1)
    return labels
