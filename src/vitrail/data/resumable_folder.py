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

PROGRESS_FILE, LOCK_FILE = "progress.json", ".lock"


@dataclass(frozen=True)
class ResumableFolder:
    """An output folder that is being written."""

    out: Path
    partial: Path
    job: str  # identifies the work: equal for equal data and options

    def load_progress(self) -> Any:
        """Return the saved progress of the same job, or None if it was never started."""
        if {path.name for path in self.partial.iterdir()} <= {LOCK_FILE, f"{PROGRESS_FILE}.part"}:
            return None
        try:
            saved = json.loads((self.partial / PROGRESS_FILE).read_text())
            job, done = saved["job"], saved["done"]
        except (OSError, ValueError, KeyError, TypeError):
            raise VitrailError(f"{self.partial} is in the way and cannot be resumed; delete it or name another OUT") from None
        if job != self.job:
            raise VitrailError(
                f"{self.partial} belongs to another job: other data or other options; delete it or name another OUT"
            )
        return done

    def save_progress(self, done: Any) -> None:
        write_synced(self.partial / f"{PROGRESS_FILE}.part", json.dumps({"job": self.job, "done": done}).encode())
        (self.partial / f"{PROGRESS_FILE}.part").replace(self.partial / PROGRESS_FILE)

    def finish(self) -> None:
        self.partial.replace(self.out)
        for name in (PROGRESS_FILE, LOCK_FILE):  # only now: a job interrupted in between loses nothing
            (self.out / name).unlink()
        parent = os.open(self.out.parent, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)

    def discard(self) -> None:
        shutil.rmtree(self.partial)


def require_new_folder(out: Path) -> Path:
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
def resumable_folder(out: Path, job: str) -> Iterator[ResumableFolder]:
    """Lock ``OUT.part`` for writing. The lock is released with the process, however it ends."""
    out = require_new_folder(out)
    partial = out.with_name(f"{out.name}.part")
    try:
        partial.mkdir(exist_ok=True)
        with open(partial / LOCK_FILE, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise VitrailError(f"another process is writing {partial}; wait for it, or name another OUT") from None
            yield ResumableFolder(out, partial, job)
    except OSError as error:
        raise OSError(
            f"{out} cannot be written: {error.strerror or error}; partial output is in {partial}, "
            "and the same command resumes from it"
        ) from None


def write_synced(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
