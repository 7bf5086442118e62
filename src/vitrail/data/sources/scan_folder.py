"""List every image below a folder, by name only: 100,000 files in about a second, with progress.

Hidden files and folders are ignored; links are followed, but never in a cycle.
"""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.data.sources.dataset import Progress

IMAGE_EXTENSION_LIST = "jpg jpeg jfif mpo png gif webp tif tiff bmp ppm pgm pbm npy"
IMAGE_SUFFIXES = frozenset(f".{ending}" for ending in IMAGE_EXTENSION_LIST.split(" "))
FILES_PER_REPORT = 10_000  # files between two progress reports


@dataclass
class FolderListing:
    """The images below a folder, by name only, and what else is there."""

    paths: list[str] = field(default_factory=list)  # relative to the root, with "/" between folders, sorted
    folders: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)  # folders without permission to read
    broken_links: list[str] = field(default_factory=list)  # links that are dead or circular
    other_files: Counter[str] = field(default_factory=Counter)  # files that are not images, by extension


def scan_folder(root: Path, progress: Progress | None = None) -> FolderListing:
    """List the images below a folder."""
    listing, num_entries = FolderListing(), 0
    pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", (_device_and_inode(root),))]
    while pending:
        folder, ancestors = pending.pop()
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.name.startswith(".") or entry.name == "__MACOSX":
                        continue
                    try:
                        _classify_entry(entry, path, ancestors, listing, pending)
                    except OSError:  # a link to itself
                        listing.broken_links.append(path)
                    num_entries += 1
                    if progress and num_entries % FILES_PER_REPORT == 0:
                        progress("listing", len(listing.paths), None)
        except OSError:
            listing.unreadable.append(folder)
    listing.broken_links.sort()
    listing.paths.sort(key=os.fsencode)
    if progress:
        progress("listing", len(listing.paths), len(listing.paths))
    return listing


def _classify_entry(
    entry: os.DirEntry[str],
    path: str,
    ancestors: tuple[tuple[int, int], ...],
    listing: FolderListing,
    pending: list[tuple[str, tuple[tuple[int, int], ...]]],
) -> None:
    if entry.is_dir():
        device_and_inode = _device_and_inode(Path(entry.path)) if entry.is_symlink() else (entry.stat().st_dev, entry.inode())
        if device_and_inode in ancestors:
            listing.broken_links.append(path)
        else:
            listing.folders.append(path)
            pending.append((path, (*ancestors, device_and_inode)))
    elif os.path.splitext(entry.name)[1].lower() not in IMAGE_SUFFIXES:
        listing.other_files[os.path.splitext(entry.name)[1].lower() or entry.name] += 1
    else:  # whether it can be read is for the dataset check to report
        listing.paths.append(path)


def _device_and_inode(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino
