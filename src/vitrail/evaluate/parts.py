"""Answers to many pictures as part files of one folder, made by any number of processes that share nothing but the folder.

Part k has the pictures from k * size on, whoever makes it and beside how many others: what is there stays, also when the next
start has another number of processes. A part is written elsewhere, synced and renamed; then a note tells its length. Without
its note, or with another length, it is made again. A folder has

    part-000012.jsonl   _parts.json: what was asked for   _done.json: what there is, as soon as all of it is there
    _notes/000012.json  _busy/: parts that somebody is at

and those who read a folder of Parquet files as one table pass over names that begin with an underscore.
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
ABOUT, FEWEST, MOST = 128, 256, 16384  # parts of a folder, and pictures of a part where nobody says


@dataclass(frozen=True)
class Note:
    """What a part has, or all of them together."""

    pictures: int
    bad: int
    bytes: int
    problems: tuple[str, ...] = ()  # of pictures that have no row to tell them in


@dataclass
class Draft:
    """A part that is being written to ``path``; whoever writes it tells what was bad."""

    path: Path
    bad: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Parts:
    """The part files of a folder, as one of the processes sees them."""

    folder: Path
    ending: str
    pictures: int
    size: int
    rank: int = 0
    ranks: int = 1
    tolerated: float = 1.0  # share of the pictures that may be bad

    @property
    def count(self) -> int:
        return -(-self.pictures // self.size)

    @property
    def own(self) -> range:
        return range(self.rank, self.count, self.ranks)

    def numbers(self, part: int) -> range:
        """The pictures of a part."""
        return range(part * self.size, min((part + 1) * self.size, self.pictures))

    def path(self, part: int) -> Path:
        return self.folder / f"part-{part:06}{self.ending}"

    def note(self, part: int) -> Note | None:
        """Of a part that is there, and whole."""
        try:
            known = json.loads(self._note(part).read_bytes())
            note = Note(**{**known, "problems": tuple(known["problems"])})
            return note if self.path(part).stat().st_size == note.bytes else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def todo(self) -> Iterator[int]:
        """Parts to make that nobody is at: one's own, then others'.

        What was begun before this process may have been left by one that was killed, so one's own of that are made. Two may
        come to make the same part, which costs time alone: that of one of them stays.
        """
        before = set(self._begun())
        others = [part for part in range(self.count) if part % self.ranks != self.rank][::-1]
        turn = len(others) * self.rank // self.ranks  # those who help begin at different places
        for part in (*self.own, *others[turn:], *others[:turn]):
            if self.note(part) is None and not set(self._begun(part)) - (before if part in self.own else set()):
                yield part

    @contextmanager
    def writing(self, part: int) -> Iterator[Draft]:
        draft = Draft(self.folder / "_busy" / f"{part:06}-{self.rank}-{secrets.token_hex(6)}")
        draft.path.touch()
        try:
            yield draft
            note = Note(len(self.numbers(part)), draft.bad, draft.path.stat().st_size, tuple(draft.problems))
            sync(draft.path)
            if self.note(part) is None:
                draft.path.replace(self.path(part))
                self._put(self._note(part), asdict(note))
        except FileNotFoundError:
            if self.note(part) is None:  # else another was first, and has cleared it away
                raise
        finally:
            draft.path.unlink(missing_ok=True)
        self._clear(part)

    def finish(self) -> tuple[Note, bool] | None:
        """What there is when all is there, and whether this process is the first to say so."""
        notes = [self.note(part) for part in range(self.count)]
        whole = [note for note in notes if note is not None]
        if len(whole) < len(notes):
            return None
        bad, length = sum(note.bad for note in whole), sum(note.bytes for note in whole)
        done = Note(self.pictures, bad, length, tuple(problem for note in whole for problem in note.problems))
        self.check(done.bad)
        parts = [{"file": self.path(part).name, **asdict(note)} for part, note in enumerate(whole)]
        told = {"pictures": done.pictures, "bad": done.bad, "bytes": done.bytes, "parts": parts}
        first = self._put(self.folder / "_done.json", told, anew=True)
        self._clear()
        return done, first

    def check(self, bad: int) -> None:
        if bad > allowed(self.tolerated, self.pictures):
            raise VitrailError(
                f"{bad:,} of {self.pictures:,} pictures cannot be used, more than the share of {self.tolerated:g} tolerated; "
                f"{self.folder / '_notes'} and `vitrail data check` name them"
            )

    def begin(self, asked: dict[str, Any]) -> None:
        """Here where nothing else is, or where the same was asked for before."""
        about, asked = self.folder / "_parts.json", {"format": FORMAT, **asked, "part": self.size, "ending": self.ending}
        _room(self.folder, about)
        for name in ("_busy", "_notes"):
            (self.folder / name).mkdir(exist_ok=True)
        self._put(about, asked, anew=True)
        before = _read(about)
        if others := [name for name in {**before, **asked} if before.get(name) != asked.get(name)]:
            told = " and ".join(_difference(name, before.get(name), asked.get(name)) for name in others)
            raise VitrailError(f"{self.folder} was begun {told}; name another folder, or ask for the same again")
        for left in self._begun():  # by one of this rank before, who is no more at it, wherever it helped
            if left.name.split("-")[1:2] == [str(self.rank)]:
                left.unlink(missing_ok=True)
        if any(self.note(part) is None for part in range(self.count)):
            (self.folder / "_done.json").unlink(missing_ok=True)

    def _note(self, part: int) -> Path:
        return self.folder / "_notes" / f"{part:06}.json"

    def _begun(self, part: int | None = None) -> list[Path]:
        """Halves of a part, or of any."""
        start = "" if part is None else f"{part:06}-"
        return [self.folder / "_busy" / name for name in os.listdir(self.folder / "_busy") if name.startswith(start)]

    def _clear(self, part: int | None = None) -> None:
        """What those who were killed have left of it. Whoever is still at it finds that it is there."""
        for left in self._begun(part):
            left.unlink(missing_ok=True)

    def _put(self, path: Path, value: Any, anew: bool = False) -> bool:
        """Appears whole; ``anew``: only where it is not there yet, and whether it was not."""
        half = self.folder / "_busy" / f"{path.stem}-{self.rank}-{secrets.token_hex(6)}"
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
    """Pictures of a part: as asked for, as begun, else so many that there are about 128 parts; ranks do not matter."""
    if asked is not None:
        return asked
    known = _read(folder / "_parts.json").get("part") if (folder / "_parts.json").exists() else None
    if isinstance(known, int) and known > 0:
        return known
    return min(max(1 << (-(-pictures // ABOUT) - 1).bit_length(), FEWEST), MOST)


def _linked(half: Path, path: Path) -> bool:
    """Where nothing is yet, and of several who try at once for one of them."""
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
        raise VitrailError(f"{path} does not say what was asked for; name another folder")
    return known


def _difference(name: str, before: Any, now: Any) -> str:
    """What is long is a hash, and says nothing."""
    if any(isinstance(value, str) and len(value) == 64 for value in (before, now)):
        return f"with other {name}"
    return f"with {name} {before} instead of {now}"
