"""A resumable output folder: it appears whole or not at all. Until it is finished it is ``OUT.part``, with a progress file from
which an interrupted job is resumed. One process at a time."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.io import atomic_write, file_lock, fsync_path

PROGRESS_FILE, LOCK_FILE = "progress.json", ".lock"


@dataclass(frozen=True)
class ResumableFolder:
    """An output folder that is being written."""

    out: Path
    partial: Path
    job: str  # identifies the work: equal for equal data and options

    def load_progress(self) -> Any:
        """Return the saved progress of the same job, or None if it was never started."""
        if all(path.name.startswith(".") for path in self.partial.iterdir()):  # the lock, and what a killed process left
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
        self.write(PROGRESS_FILE, json.dumps({"job": self.job, "done": done}))

    def write(self, name: str, content: bytes | str) -> None:
        atomic_write(self.partial / name, content, locked=True)

    def finish(self) -> None:
        self.partial.replace(self.out)
        for name in (PROGRESS_FILE, LOCK_FILE):  # only now: a job interrupted in between loses nothing
            (self.out / name).unlink()
        fsync_path(self.out.parent)

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
        locked = VitrailError(f"another process is writing {partial}; wait for it, or name another OUT")
        with file_lock(partial / LOCK_FILE, locked):
            yield ResumableFolder(out, partial, job)
    except OSError as error:
        raise OSError(
            f"{out} cannot be written: {error.strerror or error}; partial output is in {partial}, "
            "and the same command resumes from it"
        ) from None
