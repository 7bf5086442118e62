"""Expand files, folders, glob patterns and names from stdin into image paths."""

import fnmatch
import glob
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from vitrail.errors import VitrailError

ProgressCallback = Callable[[str, int, int | None], None]


def expand_paths(arguments: Sequence[str], on_progress: ProgressCallback) -> Iterator[str]:
    """Yield the image paths that the arguments name; an existing path is never read as a pattern, and - reads stdin."""
    for argument in arguments:
        if argument == "-":
            for name in _read_stdin():
                yield from _list_images(name, on_progress)
        elif not os.path.lexists(argument) and glob.has_magic(argument):
            yield from _expand_pattern(argument, on_progress)
        else:
            yield from _list_images(argument, on_progress)


def _read_stdin() -> list[str]:
    """Read names from stdin, one per line or null-terminated as ``find -print0`` writes them."""
    content = b"" if sys.stdin is None else sys.stdin.buffer.read()
    lines = content.split(b"\0") if b"\0" in content else [line.removesuffix(b"\r") for line in content.split(b"\n")]
    return [os.fsdecode(line) for line in lines if line]


def _list_images(name: str, on_progress: ProgressCallback) -> list[str]:
    """List a file itself, or every image below a folder, with broken links and unreadable folders so that they are reported."""
    from vitrail.data.sources.scan_folder import IMAGE_SUFFIXES, scan_folder

    if not os.path.isdir(name):
        return [name]
    listing = scan_folder(Path(name), on_progress)
    broken = [path for path in listing.broken_links if os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES]
    paths = sorted((*listing.unreadable, *broken, *listing.paths), key=os.fsencode)
    return [os.path.join(name, path) if path else name for path in paths]


def _expand_pattern(pattern: str, on_progress: ProgressCallback) -> list[str]:
    parts = pattern.split("/")
    if "**" in parts:  # walked like a folder, since glob would follow cycles of links
        index = parts.index("**")
        roots = sorted(glob.glob("/".join([*parts[:index], ""])) if index else ["./"], key=os.fsencode)
        candidates = [(root, name) for root in roots for name in _list_images(root, on_progress)]
        paths = [name for root, name in candidates if _matches(os.path.relpath(name, root).split("/"), parts[index:])]
    else:
        paths = [name for path in sorted(glob.glob(pattern), key=os.fsencode) for name in _list_images(path, on_progress)]
    if not paths:
        raise VitrailError(f"no image matches {pattern!r}; is the folder right?")
    return paths


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """Match path parts against a pattern; ``**`` matches any number of folders, and at the end everything in them."""
    if pattern == ["**"]:
        return True
    if not parts or not pattern:
        return parts == pattern
    if pattern[0] == "**":
        return any(_matches(parts[skipped:], pattern[1:]) for skipped in range(len(parts)))
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
