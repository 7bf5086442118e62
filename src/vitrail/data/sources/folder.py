"""Read a folder of images as a dataset, whatever else is in it.

``DIR/train/CLASS/...`` with ``DIR/val|valid|validation/CLASS/...`` and ``DIR/test/CLASS/...``, or ``DIR/CLASS/...``. Folders
below a class belong to it. Missing validation and test splits are split off by content (``content_split.py``).
"""

import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy import ndarray

from vitrail.data.sources.labels import SPLITS, natural
from vitrail.data.sources.scan import Listing, scan
from vitrail.data.sources.source import Files, Progress, Source, chosen
from vitrail.errors import VitrailError


def read_folder(root: Path, progress: Progress | None = None) -> tuple[dict[str, Source], list[str]]:
    """Return the folder's splits (one named "" if it has none) and notes for the user."""
    listing = _listed(root, progress)
    if not listing.paths:
        raise VitrailError(
            f"{root} has no images{_seen(listing)}; put them into one folder per class: {root}/CLASS/*.jpg, or "
            f"{root}/train/CLASS/*.jpg and {root}/val/CLASS/*.jpg"
        )
    by_split = _layout(listing.paths)
    depth = 0 if "" in by_split else 1
    loose = [path for paths in by_split.values() for path in paths if path.count("/") <= depth]
    inside = {split: [path for path in paths if path.count("/") > depth] for split, paths in by_split.items()}
    if not any(inside.values()):
        raise VitrailError(
            f"{root} has {len(loose)} images but no class folders; move them to {root}/CLASS/*.jpg, or name a CSV file "
            "with the columns path and label"
        )
    names = natural({path.split("/")[depth] for paths in inside.values() for path in paths})
    if len(names) == 1 and depth == 0 and any(f"{names[0]}/{word}".lower() in _lower(listing.folders) for word in SPLITS):
        raise VitrailError(f"{root} has a single folder, {names[0]}, which has the splits; name {root / names[0]} instead")
    whole = _files(root, [path for paths in inside.values() for path in paths], names, depth)
    return _parts(whole, {split: len(paths) for split, paths in inside.items()}), list(
        _notes(listing, inside, loose, names, depth)
    )


def read_unlabelled(root: Path, progress: Progress | None = None) -> tuple[dict[str, Source], list[str]]:
    """Read every image below a folder. Its folder, if any, becomes its class, for inspection only; a loose one has none."""
    listing = _listed(root, progress)
    if not listing.paths:
        raise VitrailError(f"{root} has no images{_seen(listing)}; name a folder with images somewhere below it")
    tops = {path.split("/", 1)[0] for path in listing.paths if "/" in path}
    splits = {top: SPLITS[top.lower()] for top in tops if top.lower() in SPLITS}
    depth = 1 if "train" in splits.values() else 0
    by_split: dict[str, list[str]] = {}
    for path in listing.paths:
        split = splits.get(path.split("/", 1)[0], "train") if depth else ""
        by_split.setdefault(split, []).append(path)
    inside = [path for path in listing.paths if path.count("/") > depth]
    names = natural({path.split("/")[depth] for path in inside})
    whole = _files(root, [path for paths in by_split.values() for path in paths], names, depth)
    return _parts(whole, {split: len(paths) for split, paths in by_split.items()}), []


def _listed(root: Path, progress: Progress | None) -> Listing:
    listing = scan(root, progress)
    if listing.closed:
        raise VitrailError(f"{root / listing.closed[0]} cannot be read; change its permissions or remove it")
    return listing


def _parts(whole: Files, lengths: dict[str, int]) -> dict[str, Source]:
    """Return the splits as subsets of one dataset, so that they share one image index."""
    ends = np.cumsum([0, *lengths.values()])
    return {
        split: chosen(whole, np.arange(start, end))
        for split, start, end in zip(lengths, ends[:-1], ends[1:], strict=True)
        if end > start
    }


def _layout(paths: Sequence[str]) -> dict[str, list[str]]:
    """Group paths by split. A folder named train is a split if it has subfolders with images; else it may be a class."""
    tops = {path.split("/", 1)[0] for path in paths if path.count("/") >= 2}
    named = {top for top in tops if top.lower() in SPLITS}
    if any(SPLITS[top.lower()] == "train" for top in named):  # then images directly in val belong to it, if misplaced
        named |= {top for path in paths if (top := path.split("/", 1)[0]).lower() in SPLITS and "/" in path}
    only = all(path.split("/", 1)[0] in named for path in paths if "/" in path)
    if not any(SPLITS[top.lower()] == "train" for top in named) and not (named and only):
        return {"": list(paths)}
    found: dict[str, list[str]] = {}
    for path in paths:
        top = path.split("/", 1)[0]
        found.setdefault(SPLITS[top.lower()] if top in named else "elsewhere", []).append(path)
    twice = [split for split in set(SPLITS.values()) if len({top for top in named if SPLITS[top.lower()] == split}) > 1]
    if twice:
        tops = {top for top in named if SPLITS[top.lower()] == twice[0]}
        raise VitrailError(f"there are several folders for {twice[0]}: {', '.join(sorted(tops))}; keep one of them")
    found.pop("elsewhere", None)
    return found


def _files(root: Path, paths: list[str], names: tuple[str, ...], depth: int) -> Files:
    label = {name: index for index, name in enumerate(names)}
    folders = (path.split("/")[depth] if path.count("/") > depth else "" for path in paths)
    labels: ndarray = np.fromiter((label.get(folder, -1) for folder in folders), np.int64, len(paths))
    return Files(root, paths, labels, names)


def _notes(
    listing: Listing, inside: dict[str, list[str]], loose: list[str], names: tuple[str, ...], depth: int
) -> Iterator[str]:
    if loose:
        yield f"{_several(len(loose), 'image')} in no class folder, skipped: {_some(loose)}"
    elsewhere = len(listing.paths) - len(loose) - sum(map(len, inside.values()))
    if elsewhere:
        yield f"{_several(elsewhere, 'image')} outside the splits, skipped"
    if listing.broken:
        dead = _some(listing.broken)
        yield f"{_several(len(listing.broken), 'link')} broken or circular: {dead}"
    if listing.others:
        kinds = ", ".join(f"{count} {ending}" for ending, count in listing.others.most_common(6))
        yield f"{_several(listing.others.total(), 'file')} of other types ignored: {kinds}"
    full = {tuple(path.split("/")[: depth + 1]) for paths in inside.values() for path in paths}
    classes = [folder for folder in listing.folders if folder.count("/") == depth and (not depth or _in_split(folder, inside))]
    for folder in sorted(classes):
        if tuple(folder.split("/")) not in full:
            yield f"the class folder {folder} has no images, skipped"
    present = {split: {path.split("/")[depth] for path in paths} for split, paths in inside.items()}
    if "train" in present:
        for name in names:
            if name not in present["train"]:
                others = " and ".join(split for split in present if name in present[split])
                yield f"the class {name!r} is only in {others}: it has no training images"
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(unicodedata.normalize("NFKC", name).casefold(), []).append(name)
    for group in alike.values():
        if len(group) > 1:
            yield f"the classes {' and '.join(map(repr, group))} differ only in spelling: are they the same class?"


def _in_split(folder: str, inside: dict[str, list[str]]) -> bool:
    return SPLITS.get(folder.split("/", 1)[0].lower()) in inside


def _lower(names: list[str]) -> set[str]:
    return {name.lower() for name in names}


def _several(count: int, one: str) -> str:
    return f"{count:,} {one if count == 1 else one + 's'}"


def _some(items: list[str], most: int = 3) -> str:
    return ", ".join(items[:most]) + (f" and {len(items) - most:,} more" if len(items) > most else "")


def _seen(listing: Listing) -> str:
    kinds = ", ".join(f"{count} {ending}" for ending, count in listing.others.most_common(3))
    return f" (but {kinds})" if kinds else ""
