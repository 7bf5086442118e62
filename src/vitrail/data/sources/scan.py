"""List every image below a folder, by name only: 100,000 files in about a second, with progress.

Hidden files and folders are ignored; links are followed, but never in a cycle.
"""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.data.sources.source import Progress

ENDINGS = "jpg jpeg jfif mpo png gif webp tif tiff bmp ppm pgm pbm"
PICTURES = frozenset(f".{ending}" for ending in ENDINGS.split(" "))
OFTEN = 10_000  # files between two progress reports


@dataclass
class Listing:
    """The images below a folder, by name only, and what else is there."""

    paths: list[str] = field(default_factory=list)  # relative to the root, with "/" between folders, sorted
    folders: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)  # folders without permission to read
    broken: list[str] = field(default_factory=list)  # links that are dead or circular
    others: Counter[str] = field(default_factory=Counter)  # files that are not images, by extension


def scan(root: Path, progress: Progress | None = None) -> Listing:
    """List the images below a folder."""
    found, met = Listing(), 0
    waiting: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", (_identity(root),))]
    while waiting:
        folder, above = waiting.pop()
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.name.startswith(".") or entry.name == "__MACOSX":
                        continue
                    try:
                        _sort_in(entry, path, above, found, waiting)
                    except OSError:  # a link to itself
                        found.broken.append(path)
                    met += 1
                    if progress and met % OFTEN == 0:
                        progress("listing", len(found.paths), None)
        except OSError:
            found.closed.append(folder)
    found.broken.sort()
    found.paths.sort(key=os.fsencode)
    if progress:
        progress("listing", len(found.paths), len(found.paths))
    return found


def _sort_in(
    entry: os.DirEntry[str],
    path: str,
    above: tuple[tuple[int, int], ...],
    found: Listing,
    waiting: list[tuple[str, tuple[tuple[int, int], ...]]],
) -> None:
    if entry.is_dir():
        identity = _identity(Path(entry.path)) if entry.is_symlink() else (entry.stat().st_dev, entry.inode())
        if identity in above:
            found.broken.append(path)
        else:
            found.folders.append(path)
            waiting.append((path, (*above, identity)))
    elif os.path.splitext(entry.name)[1].lower() not in PICTURES:
        found.others[os.path.splitext(entry.name)[1].lower() or entry.name] += 1
    else:  # whether it can be read is for the dataset check to report
        found.paths.append(path)


def _identity(folder: Path) -> tuple[int, int]:
    known = folder.stat()
    return known.st_dev, known.st_ino
