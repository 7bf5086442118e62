"""Expand files, folders, glob patterns and names from stdin into image paths."""

import fnmatch
import glob
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from vitrail.errors import VitrailError

Tell = Callable[[str, int, int | None], None]


def named(words: Sequence[str], tell: Tell) -> Iterator[str]:
    """Yield the image paths that the arguments name; an existing path is never read as a pattern, and - reads stdin."""
    for word in words:
        if word == "-":
            for name in _from_input():
                yield from _below(name, tell)
        elif not os.path.lexists(word) and glob.has_magic(word):
            yield from _matching(word, tell)
        else:
            yield from _below(word, tell)


def _from_input() -> list[str]:
    """Read names from stdin, one per line or null-terminated as ``find -print0`` writes them."""
    content = b"" if sys.stdin is None else sys.stdin.buffer.read()
    lines = content.split(b"\0") if b"\0" in content else [line.removesuffix(b"\r") for line in content.split(b"\n")]
    return [os.fsdecode(line) for line in lines if line]


def _below(name: str, tell: Tell) -> list[str]:
    """List a file itself, or every image below a folder, with broken links and unreadable folders so that they are reported."""
    from vitrail.data.sources.scan import PICTURES, scan

    if not os.path.isdir(name):
        return [name]
    listing = scan(Path(name), tell)
    lost = [path for path in listing.broken if os.path.splitext(path)[1].lower() in PICTURES]
    found = sorted((*listing.closed, *lost, *listing.paths), key=os.fsencode)
    return [os.path.join(name, path) if path else name for path in found]


def _matching(pattern: str, tell: Tell) -> list[str]:
    parts = pattern.split("/")
    if "**" in parts:  # walked like a folder, since glob would follow cycles of links
        at = parts.index("**")
        roots = sorted(glob.glob("/".join([*parts[:at], ""])) if at else ["./"], key=os.fsencode)
        every = [(root, name) for root in roots for name in _below(root, tell)]
        found = [name for root, name in every if _fits(os.path.relpath(name, root).split("/"), parts[at:])]
    else:
        found = [name for match in sorted(glob.glob(pattern), key=os.fsencode) for name in _below(match, tell)]
    if not found:
        raise VitrailError(f"no image matches {pattern!r}; is the folder right?")
    return found


def _fits(parts: list[str], pattern: list[str]) -> bool:
    """Match path parts against a pattern; ``**`` matches any number of folders, and at the end everything in them."""
    if pattern == ["**"]:
        return True
    if not parts or not pattern:
        return parts == pattern
    if pattern[0] == "**":
        return any(_fits(parts[skipped:], pattern[1:]) for skipped in range(len(parts)))
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])
