"""Predictions or features of many images as part files of one folder, written by processes that share nothing but the folder.

Part k has the images from k * part size on, whichever process writes it and however many there are: finished parts are kept,
also if the next start has another number of processes. A part is written elsewhere, synced and renamed; then a manifest records
its length. A part without its manifest, or of another length, is rewritten. A folder has

    part-000012.jsonl       _parts.json: the request   _done.json: the manifest of all parts, once all are complete
    _manifests/000012.json  _in_progress/: parts that a process is writing

and readers of a folder of Parquet files as one table skip names that begin with an underscore.
"""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vitrail.data.sources.source import allowed
from vitrail.errors import VitrailError
from vitrail.weights.checkpoint import sync

FORMAT = 1
ABOUT, FEWEST, MOST = 128, 256, 16384  # parts of a folder; smallest and largest default part


@dataclass(frozen=True)
class Note:
    """Manifest of a part, or of all parts together."""

    pictures: int
    bad: int
    bytes: int
    problems: tuple[str, ...] = ()  # of images that have no row for their error


@dataclass
class Draft:
    """A part that is being written to ``path``; the writer counts the bad images."""

    path: Path
    bad: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Parts:
    """The part files of a folder, from the view of one process."""

    folder: Path
    ending: str
    pictures: int
    size: int
    rank: int = 0
    ranks: int = 1
    tolerated: float = 1.0  # fraction of the images that may be bad

    @property
    def count(self) -> int:
        return -(-self.pictures // self.size)

    @property
    def own(self) -> range:
        return range(self.rank, self.count, self.ranks)

    def numbers(self, part: int) -> range:
        """Return the image indices of a part."""
        return range(part * self.size, min((part + 1) * self.size, self.pictures))

    def path(self, part: int) -> Path:
        return self.folder / f"part-{part:06}{self.ending}"

    def note(self, part: int) -> Note | None:
        """Return the manifest of a complete part, or None."""
        try:
            known = json.loads(self._note(part).read_bytes())
            note = Note(**{**known, "problems": tuple(known["problems"])})
            return note if self.path(part).stat().st_size == note.bytes else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def todo(self) -> Iterator[int]:
        """Yield the parts to write that no other process is writing: the process's own, then others'.

        A part in progress before this process started may be left over from a killed one, so the process rewrites its own. Two
        processes may write the same part, which only costs time: one of the two stays.
        """
        before = set(self._begun())
        others = [part for part in range(self.count) if part % self.ranks != self.rank][::-1]
        turn = len(others) * self.rank // self.ranks  # helpers start at different parts
        for part in (*self.own, *others[turn:], *others[:turn]):
            if self.note(part) is None and not set(self._begun(part)) - (before if part in self.own else set()):
                yield part

    @contextmanager
    def writing(self, part: int) -> Iterator[Draft]:
        draft = Draft(self.folder / "_in_progress" / f"{part:06}-{self.rank}-{secrets.token_hex(6)}")
        draft.path.touch()
        try:
            yield draft
            note = Note(len(self.numbers(part)), draft.bad, draft.path.stat().st_size, tuple(draft.problems))
            sync(draft.path)
            if self.note(part) is None:
                draft.path.replace(self.path(part))
                self._put(self._note(part), asdict(note))
        except FileNotFoundError:
            if self.note(part) is None:  # else another process was first and has removed the draft
                raise
        finally:
            draft.path.unlink(missing_ok=True)
        self._clear(part)

    def finish(self) -> tuple[Note, bool] | None:
        """Return the manifest of all parts if all are complete, and whether this process is the first to find it."""
        notes = [self.note(part) for part in range(self.count)]
        whole = [note for note in notes if note is not None]
        if len(whole) < len(notes):
            return None
        bad, length = sum(note.bad for note in whole), sum(note.bytes for note in whole)
        done = Note(self.pictures, bad, length, tuple(problem for note in whole for problem in note.problems))
        self.check(done.bad)
        parts = [{"file": self.path(part).name, **asdict(note)} for part, note in enumerate(whole)]
        told = {"num_images": done.pictures, "num_bad": done.bad, "num_bytes": done.bytes, "parts": parts}
        first = self._put(self.folder / "_done.json", told, anew=True)
        self._clear()
        return done, first

    def check(self, bad: int) -> None:
        if bad > allowed(self.tolerated, self.pictures):
            raise VitrailError(
                f"{bad:,} of {self.pictures:,} images cannot be used, more than the tolerated fraction of {self.tolerated:g}; "
                f"{self.folder / '_manifests'} and `vitrail data check` list them"
            )

    def begin(self, asked: dict[str, Any]) -> None:
        """Create the folder, or resume it if the request is the same."""
        about, asked = self.folder / "_parts.json", {"format": FORMAT, **asked, "part_size": self.size, "ending": self.ending}
        _room(self.folder, about)
        for name in ("_in_progress", "_manifests"):
            (self.folder / name).mkdir(exist_ok=True)
        self._put(about, asked, anew=True)
        before = _read(about)
        if others := [name for name in {**before, **asked} if before.get(name) != asked.get(name)]:
            told = " and ".join(_difference(name, before.get(name), asked.get(name)) for name in others)
            raise VitrailError(f"{self.folder} was started {told}; name another folder, or repeat the same request")
        for left in self._begun():  # left by an earlier process of this rank
            if left.name.split("-")[1:2] == [str(self.rank)]:
                left.unlink(missing_ok=True)
        if any(self.note(part) is None for part in range(self.count)):
            (self.folder / "_done.json").unlink(missing_ok=True)

    def _note(self, part: int) -> Path:
        return self.folder / "_manifests" / f"{part:06}.json"

    def _begun(self, part: int | None = None) -> list[Path]:
        """Return the drafts of a part, or of all parts."""
        start = "" if part is None else f"{part:06}-"
        return [
            self.folder / "_in_progress" / name for name in os.listdir(self.folder / "_in_progress") if name.startswith(start)
        ]

    def _clear(self, part: int | None = None) -> None:
        """Remove the drafts that killed processes have left. A process still writing one finds the part complete."""
        for left in self._begun(part):
            left.unlink(missing_ok=True)

    def _put(self, path: Path, value: Any, anew: bool = False) -> bool:
        """Write a JSON file whole; ``exclusive``: only if it does not exist, and return whether it did not."""
        half = self.folder / "_in_progress" / f"{path.stem}-{self.rank}-{secrets.token_hex(6)}"
        try:
            half.write_text(json.dumps(value, indent=1) + "\n")
            sync(half)
            if anew:
                return _linked(half, path)
            half.replace(path)
            return True
        finally:
            half.unlink(missing_ok=True)


def size(folder: Path, pictures: int, asked: int | None) -> int:
    """Return the images per part: as given, as started, else so that there are about 128 parts, whatever the world size."""
    if asked is not None:
        return asked
    known = _read(folder / "_parts.json").get("part_size") if (folder / "_parts.json").exists() else None
    if isinstance(known, int) and known > 0:
        return known
    return min(max(1 << (-(-pictures // ABOUT) - 1).bit_length(), FEWEST), MOST)


def _linked(half: Path, path: Path) -> bool:
    """Create ``path`` only if it does not exist; if several processes try, one succeeds."""
    try:
        os.link(half, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if path.exists():
            return False
        half.replace(path)
    return True


def _room(folder: Path, about: Path) -> None:
    if not folder.parent.is_dir() or (folder.exists() and not folder.is_dir()):
        raise VitrailError(f"part files need a folder, in one that exists, got {folder}; try {folder.name}-parts")
    folder.mkdir(exist_ok=True)
    strange = [name for name in os.listdir(folder) if not name.startswith("_")]
    if strange and not about.exists():
        raise VitrailError(f"part files need a folder of their own, got {folder} with {strange[0]} in it; name a new one")


def _read(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_bytes())
    except ValueError:
        known = None
    if not isinstance(known, dict):
        raise VitrailError(f"{path} does not hold a request; name another folder")
    return known


def _difference(name: str, before: Any, now: Any) -> str:
    """Describe a differing setting; a hash is not printed."""
    if any(isinstance(value, str) and len(value) == 64 for value in (before, now)):
        return f"with other {name}"
    return f"with {name} {before} instead of {now}"
