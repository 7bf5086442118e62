"""Read a folder of images as a dataset, whatever else is in it.

``DIR/train/CLASS/...`` with ``DIR/val|valid|validation/CLASS/...`` and ``DIR/test/CLASS/...``, or ``DIR/CLASS/...``. Folders
below a class belong to it. Missing validation and test splits are split off by content (``content_split.py``).
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy import ndarray

from vitrail.data.sources.dataset import Dataset, ImageFileDataset, Progress, select_images
from vitrail.data.sources.labels import SPLIT_ALIASES, natural_sorted
from vitrail.data.sources.scan_folder import FolderListing, scan_folder
from vitrail.errors import VitrailError


def read_image_folder(root: Path, listing: FolderListing | None = None) -> tuple[dict[str, Dataset], list[str]]:
    """Return the folder's splits (one named "" if it has none) and notes for the user. ``listing``: of the folder, if known."""
    listing = listing or scan_or_raise(root)
    if not listing.paths:
        raise VitrailError(
            f"{root} has no images{_other_types(listing)}; put them into one folder per class: {root}/CLASS/*.jpg, or "
            f"{root}/train/CLASS/*.jpg and {root}/val/CLASS/*.jpg"
        )
    by_split = _group_by_split(listing.paths)
    depth = 0 if "" in by_split else 1
    loose = [path for paths in by_split.values() for path in paths if path.count("/") <= depth]
    in_classes = {split: [path for path in paths if path.count("/") > depth] for split, paths in by_split.items()}
    if not any(in_classes.values()):
        raise VitrailError(
            f"{root} has {len(loose)} images but no class folders; move them to {root}/CLASS/*.jpg, or name a CSV file "
            "with the columns path and label"
        )
    class_names = natural_sorted({path.split("/")[depth] for paths in in_classes.values() for path in paths})
    folders = {folder.lower() for folder in listing.folders}
    if len(class_names) == 1 and depth == 0 and any(f"{class_names[0]}/{word}".lower() in folders for word in SPLIT_ALIASES):
        raise VitrailError(
            f"{root} has a single folder, {class_names[0]}, which has the splits; name {root / class_names[0]} instead"
        )
    dataset = _build_dataset(root, [path for paths in in_classes.values() for path in paths], class_names, depth)
    return split_dataset(dataset, {split: len(paths) for split, paths in in_classes.items()}), list(
        _layout_notes(listing, in_classes, loose, class_names, depth)
    )


def read_unlabelled_folder(root: Path, listing: FolderListing | None = None) -> tuple[dict[str, Dataset], list[str]]:
    """Read every image below a folder. Its folder, if any, becomes its class, for inspection only; a loose one has none."""
    listing = listing or scan_or_raise(root)
    if not listing.paths:
        raise VitrailError(f"{root} has no images{_other_types(listing)}; name a folder with images somewhere below it")
    split_of = _split_folders(path for path in listing.paths if "/" in path)
    depth = 1 if "train" in split_of.values() else 0
    by_split: dict[str, list[str]] = {}
    for path in listing.paths:
        by_split.setdefault(split_of.get(_top_folder(path), "train") if depth else "", []).append(path)
    in_classes = [path for path in listing.paths if path.count("/") > depth]
    class_names = natural_sorted({path.split("/")[depth] for path in in_classes})
    dataset = _build_dataset(root, [path for paths in by_split.values() for path in paths], class_names, depth)
    return split_dataset(dataset, {split: len(paths) for split, paths in by_split.items()}), []


def scan_or_raise(root: Path, progress: Progress | None = None) -> FolderListing:
    """List the images below a folder; one that may not be read is an error."""
    listing = scan_folder(root, progress)
    if listing.unreadable:
        raise VitrailError(f"{root / listing.unreadable[0]} cannot be read; change its permissions or remove it")
    return listing


def split_dataset(dataset: Dataset, lengths: dict[str, int]) -> dict[str, Dataset]:
    """Return the splits as subsets of one dataset, so that they share one image index."""
    ends = np.cumsum([0, *lengths.values()])
    return {
        split: select_images(dataset, np.arange(start, end))
        for split, start, end in zip(lengths, ends[:-1], ends[1:], strict=True)
        if end > start
    }


def _group_by_split(paths: Sequence[str]) -> dict[str, list[str]]:
    """Group paths by split. A folder named train is a split if it has subfolders with images; else it may be a class."""
    split_of = _split_folders(path for path in paths if path.count("/") >= 2)
    if "train" in split_of.values():  # then images directly in val belong to it, if misplaced
        split_of = _split_folders(path for path in paths if "/" in path)
    elif not split_of or any(_top_folder(path) not in split_of for path in paths if "/" in path):
        return {"": list(paths)}
    for split in set(split_of.values()):
        folders = sorted(folder for folder in split_of if split_of[folder] == split)
        if len(folders) > 1:
            raise VitrailError(f"there are several folders for {split}: {', '.join(folders)}; keep one of them")
    by_split: dict[str, list[str]] = {}
    for path in paths:
        if (folder := _top_folder(path)) in split_of:
            by_split.setdefault(split_of[folder], []).append(path)
    return by_split


def _split_folders(paths: Iterable[str]) -> dict[str, str]:
    """Return the split of each top folder that has the name of one."""
    folders = map(_top_folder, paths)
    return {folder: SPLIT_ALIASES[folder.lower()] for folder in folders if folder.lower() in SPLIT_ALIASES}


def _top_folder(path: str) -> str:
    return path.split("/", 1)[0]


def _build_dataset(root: Path, paths: list[str], class_names: tuple[str, ...], depth: int) -> ImageFileDataset:
    label = {name: index for index, name in enumerate(class_names)}
    folders = (path.split("/")[depth] if path.count("/") > depth else "" for path in paths)
    labels: ndarray = np.fromiter((label.get(folder, -1) for folder in folders), np.int64, len(paths))
    return ImageFileDataset(root, paths, labels, class_names)


def _layout_notes(
    listing: FolderListing, in_classes: dict[str, list[str]], loose: list[str], class_names: tuple[str, ...], depth: int
) -> Iterator[str]:
    if loose:
        yield f"{_count_noun(len(loose), 'image')} in no class folder, skipped: {_first_few(loose)}"
    outside = len(listing.paths) - len(loose) - sum(map(len, in_classes.values()))
    if outside:
        yield f"{_count_noun(outside, 'image')} outside the splits, skipped"
    if listing.broken_links:
        links = _first_few(listing.broken_links)
        yield f"{_count_noun(len(listing.broken_links), 'link')} broken or circular: {links}"
    if listing.other_files:
        types = ", ".join(f"{count} {extension}" for extension, count in listing.other_files.most_common(6))
        yield f"{_count_noun(listing.other_files.total(), 'file')} of other types ignored: {types}"
    nonempty = {tuple(path.split("/")[: depth + 1]) for paths in in_classes.values() for path in paths}
    for folder in sorted(folder for folder in listing.folders if folder.count("/") == depth):
        in_split = not depth or SPLIT_ALIASES.get(_top_folder(folder).lower()) in in_classes
        if in_split and tuple(folder.split("/")) not in nonempty:
            yield f"the class folder {folder} has no images, skipped"
    present = {split: {path.split("/")[depth] for path in paths} for split, paths in in_classes.items()}
    if "train" in present:
        for name in class_names:
            if name not in present["train"]:
                others = " and ".join(split for split in present if name in present[split])
                yield f"the class {name!r} is only in {others}: it has no training images"
    same_spelling: dict[str, list[str]] = {}
    for name in class_names:
        same_spelling.setdefault(unicodedata.normalize("NFKC", name).casefold(), []).append(name)
    for group in same_spelling.values():
        if len(group) > 1:
            yield f"the classes {' and '.join(map(repr, group))} differ only in spelling: are they the same class?"


def _count_noun(count: int, noun: str) -> str:
    return f"{count:,} {noun if count == 1 else noun + 's'}"


def _first_few(items: list[str], limit: int = 3) -> str:
    return ", ".join(items[:limit]) + (f" and {len(items) - limit:,} more" if len(items) > limit else "")


def _other_types(listing: FolderListing) -> str:
    types = ", ".join(f"{count} {extension}" for extension, count in listing.other_files.most_common(3))
    return f" (but {types})" if types else ""
