"""Read a folder of images as a dataset, whatever else is in it.

``DIR/train/CLASS/...`` with ``DIR/val|valid|validation/CLASS/...`` and ``DIR/test/CLASS/...``, or ``DIR/CLASS/...``. Folders
below a class belong to it. Missing validation and test splits are split off by content (``content_split.py``).
"""

import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy import ndarray

from vitrail.data.sources.dataset import Dataset, ImageFileDataset, Progress, select_images
from vitrail.data.sources.labels import SPLIT_ALIASES, natural_sorted
from vitrail.data.sources.scan_folder import FolderListing, scan_folder
from vitrail.errors import VitrailError


def read_image_folder(root: Path, progress: Progress | None = None) -> tuple[dict[str, Dataset], list[str]]:
    """Return the folder's splits (one named "" if it has none) and notes for the user."""
    listing = _scan_or_raise(root, progress)
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
    if (
        len(class_names) == 1
        and depth == 0
        and any(f"{class_names[0]}/{split_word}".lower() in _lower(listing.folders) for split_word in SPLIT_ALIASES)
    ):
        raise VitrailError(
            f"{root} has a single folder, {class_names[0]}, which has the splits; name {root / class_names[0]} instead"
        )
    dataset = _build_dataset(root, [path for paths in in_classes.values() for path in paths], class_names, depth)
    return _split_dataset(dataset, {split: len(paths) for split, paths in in_classes.items()}), list(
        _layout_notes(listing, in_classes, loose, class_names, depth)
    )


def read_unlabelled_folder(root: Path, progress: Progress | None = None) -> tuple[dict[str, Dataset], list[str]]:
    """Read every image below a folder. Its folder, if any, becomes its class, for inspection only; a loose one has none."""
    listing = _scan_or_raise(root, progress)
    if not listing.paths:
        raise VitrailError(f"{root} has no images{_other_types(listing)}; name a folder with images somewhere below it")
    tops = {path.split("/", 1)[0] for path in listing.paths if "/" in path}
    splits = {top: SPLIT_ALIASES[top.lower()] for top in tops if top.lower() in SPLIT_ALIASES}
    depth = 1 if "train" in splits.values() else 0
    by_split: dict[str, list[str]] = {}
    for path in listing.paths:
        split = splits.get(path.split("/", 1)[0], "train") if depth else ""
        by_split.setdefault(split, []).append(path)
    in_classes = [path for path in listing.paths if path.count("/") > depth]
    class_names = natural_sorted({path.split("/")[depth] for path in in_classes})
    dataset = _build_dataset(root, [path for paths in by_split.values() for path in paths], class_names, depth)
    return _split_dataset(dataset, {split: len(paths) for split, paths in by_split.items()}), []


def _scan_or_raise(root: Path, progress: Progress | None) -> FolderListing:
    listing = scan_folder(root, progress)
    if listing.unreadable:
        raise VitrailError(f"{root / listing.unreadable[0]} cannot be read; change its permissions or remove it")
    return listing


def _split_dataset(dataset: ImageFileDataset, lengths: dict[str, int]) -> dict[str, Dataset]:
    """Return the splits as subsets of one dataset, so that they share one image index."""
    ends = np.cumsum([0, *lengths.values()])
    return {
        split: select_images(dataset, np.arange(start, end))
        for split, start, end in zip(lengths, ends[:-1], ends[1:], strict=True)
        if end > start
    }


def _group_by_split(paths: Sequence[str]) -> dict[str, list[str]]:
    """Group paths by split. A folder named train is a split if it has subfolders with images; else it may be a class."""
    tops = {path.split("/", 1)[0] for path in paths if path.count("/") >= 2}
    split_folders = {top for top in tops if top.lower() in SPLIT_ALIASES}
    # with a train folder, images directly in val belong to it, if misplaced
    if any(SPLIT_ALIASES[top.lower()] == "train" for top in split_folders):
        split_folders |= {top for path in paths if (top := path.split("/", 1)[0]).lower() in SPLIT_ALIASES and "/" in path}
    only_splits = all(path.split("/", 1)[0] in split_folders for path in paths if "/" in path)
    if not any(SPLIT_ALIASES[top.lower()] == "train" for top in split_folders) and not (split_folders and only_splits):
        return {"": list(paths)}
    by_split: dict[str, list[str]] = {}
    for path in paths:
        top = path.split("/", 1)[0]
        by_split.setdefault(SPLIT_ALIASES[top.lower()] if top in split_folders else "elsewhere", []).append(path)
    ambiguous = [
        split
        for split in set(SPLIT_ALIASES.values())
        if len({top for top in split_folders if SPLIT_ALIASES[top.lower()] == split}) > 1
    ]
    if ambiguous:
        tops = {top for top in split_folders if SPLIT_ALIASES[top.lower()] == ambiguous[0]}
        raise VitrailError(f"there are several folders for {ambiguous[0]}: {', '.join(sorted(tops))}; keep one of them")
    by_split.pop("elsewhere", None)
    return by_split


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
    classes = [
        folder for folder in listing.folders if folder.count("/") == depth and (not depth or _in_split(folder, in_classes))
    ]
    for folder in sorted(classes):
        if tuple(folder.split("/")) not in nonempty:
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


def _in_split(folder: str, in_classes: dict[str, list[str]]) -> bool:
    return SPLIT_ALIASES.get(folder.split("/", 1)[0].lower()) in in_classes


def _lower(names: list[str]) -> set[str]:
    return {name.lower() for name in names}


def _count_noun(count: int, noun: str) -> str:
    return f"{count:,} {noun if count == 1 else noun + 's'}"


def _first_few(items: list[str], limit: int = 3) -> str:
    return ", ".join(items[:limit]) + (f" and {len(items) - limit:,} more" if len(items) > limit else "")


def _other_types(listing: FolderListing) -> str:
    types = ", ".join(f"{count} {extension}" for extension, count in listing.other_files.most_common(3))
    return f" (but {types})" if types else ""
