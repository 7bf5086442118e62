"""A resumable output folder: it appears whole or not at all. Until it is finished it is ``OUT.part``, with a progress file from
which an interrupted job is resumed. One process at a time."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError

NOTES, LOCK = "progress.json", ".lock"


@dataclass(frozen=True)
class Attempt:
    """An output folder that is being written."""

    out: Path
    folder: Path
    job: str  # identifies the work: equal for equal data and options

    def noted(self) -> Any:
        """Return the saved progress of the same job, or None if it was never started."""
        if {path.name for path in self.folder.iterdir()} <= {LOCK, f"{NOTES}.part"}:
            return None
        try:
            notes = json.loads((self.folder / NOTES).read_text())
            job, done = notes["job"], notes["done"]
        except (OSError, ValueError, KeyError, TypeError):
            raise VitrailError(f"{self.folder} is in the way and cannot be resumed; delete it or name another OUT") from None
        if job != self.job:
            raise VitrailError(
                f"{self.folder} belongs to another job: other data or other options; delete it or name another OUT"
            )
        return done

    def note(self, done: Any) -> None:
        write_synced(self.folder / f"{NOTES}.part", json.dumps({"job": self.job, "done": done}).encode())
        (self.folder / f"{NOTES}.part").replace(self.folder / NOTES)

    def finish(self) -> None:
        self.folder.replace(self.out)
        for name in (NOTES, LOCK):  # only now: a job interrupted in between loses nothing
            (self.out / name).unlink()
        parent = os.open(self.out.parent, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)

    def give_up(self) -> None:
        shutil.rmtree(self.folder)


def free(out: Path) -> Path:
    """Return the resolved path if nothing is there yet and a folder can be moved there as a whole."""
    out = out.resolve()
    if not out.parent.is_dir():
        raise VitrailError(f"OUT must be in a folder that exists, got {out}; create {out.parent}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise VitrailError(f"OUT must be a folder that is new or empty, got {out}; name another")
    if os.path.ismount(out):
        raise VitrailError(f"OUT must not be the top of a file system, got {out}; try {out / 'shards'}")
    return out


@contextmanager
def attempt(out: Path, job: str) -> Iterator[Attempt]:
    """Lock ``OUT.part`` for writing. The lock is released with the process, however it ends."""
    out = free(out)
    half = out.with_name(f"{out.name}.part")
    try:
        half.mkdir(exist_ok=True)
        with open(half / LOCK, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise VitrailError(f"another process is writing {half}; wait for it, or name another OUT") from None
            yield Attempt(out, half, job)
    except OSError as error:
        raise OSError(
            f"{out} cannot be written: {error.strerror or error}; partial output is in {half}, "
            "and the same command resumes from it"
        ) from None


def write_synced(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
