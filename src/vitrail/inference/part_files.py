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

from vitrail.data.sources.dataset import max_bad_images
from vitrail.errors import VitrailError
from vitrail.io import fsync_path

FORMAT = 1
TARGET_PARTS, MIN_PART_SIZE, MAX_PART_SIZE = 128, 256, 16384  # parts of a folder; smallest and largest default part


@dataclass(frozen=True)
class PartManifest:
    """Manifest of a part, or of all parts together."""

    num_images: int
    num_bad: int
    num_bytes: int
    problems: tuple[str, ...] = ()  # of images that have no row for their error


@dataclass
class PartDraft:
    """A part that is being written to ``path``; the writer counts the bad images."""

    path: Path
    num_bad: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PartFiles:
    """The part files of a folder, from the view of one process."""

    folder: Path
    suffix: str
    num_images: int
    part_size: int
    rank: int = 0
    world_size: int = 1
    max_bad_fraction: float = 1.0  # fraction of the images that may be bad

    @property
    def num_parts(self) -> int:
        return -(-self.num_images // self.part_size)

    @property
    def own_parts(self) -> range:
        return range(self.rank, self.num_parts, self.world_size)

    def image_indices(self, part: int) -> range:
        """Return the image indices of a part."""
        return range(part * self.part_size, min((part + 1) * self.part_size, self.num_images))

    def part_path(self, part: int) -> Path:
        return self.folder / f"part-{part:06}{self.suffix}"

    def manifest(self, part: int) -> PartManifest | None:
        """Return the manifest of a complete part, or None."""
        try:
            content = json.loads(self._manifest_path(part).read_bytes())
            manifest = PartManifest(**{**content, "problems": tuple(content["problems"])})
            return manifest if self.part_path(part).stat().st_size == manifest.num_bytes else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def pending(self) -> Iterator[int]:
        """Yield the parts to write that no other process is writing: the process's own, then others'.

        A part in progress before this process started may be left over from a killed one, so the process rewrites its own. Two
        processes may write the same part, which only costs time: one of the two stays.
        """
        leftovers = set(self._drafts())
        others = [part for part in range(self.num_parts) if part % self.world_size != self.rank][::-1]
        offset = len(others) * self.rank // self.world_size  # helpers start at different parts
        for part in (*self.own_parts, *others[offset:], *others[:offset]):
            if self.manifest(part) is None and not set(self._drafts(part)) - (leftovers if part in self.own_parts else set()):
                yield part

    @contextmanager
    def write_part(self, part: int) -> Iterator[PartDraft]:
        draft = PartDraft(self.folder / "_in_progress" / f"{part:06}-{self.rank}-{secrets.token_hex(6)}")
        draft.path.touch()
        try:
            yield draft
            written = PartManifest(
                len(self.image_indices(part)), draft.num_bad, draft.path.stat().st_size, tuple(draft.problems)
            )
            fsync_path(draft.path)
            if self.manifest(part) is None:
                draft.path.replace(self.part_path(part))
                self._write_json(self._manifest_path(part), asdict(written))
        except FileNotFoundError:
            if self.manifest(part) is None:  # else another process was first and has removed the draft
                raise
        finally:
            draft.path.unlink(missing_ok=True)
        self._remove_drafts(part)

    def finalise(self) -> tuple[PartManifest, bool] | None:
        """Return the manifest of all parts if all are complete, and whether this process is the first to find it."""
        manifests = [self.manifest(part) for part in range(self.num_parts)]
        complete = [manifest for manifest in manifests if manifest is not None]
        if len(complete) < len(manifests):
            return None
        num_bad, num_bytes = sum(part.num_bad for part in complete), sum(part.num_bytes for part in complete)
        done = PartManifest(
            self.num_images, num_bad, num_bytes, tuple(problem for part in complete for problem in part.problems)
        )
        self.check_bad_fraction(done.num_bad)
        parts = [{"file": self.part_path(part).name, **asdict(manifest)} for part, manifest in enumerate(complete)]
        content = {"num_images": done.num_images, "num_bad": done.num_bad, "num_bytes": done.num_bytes, "parts": parts}
        is_first = self._write_json(self.folder / "_done.json", content, exclusive=True)
        self._remove_drafts()
        return done, is_first

    def check_bad_fraction(self, num_bad: int) -> None:
        if num_bad > max_bad_images(self.max_bad_fraction, self.num_images):
            raise VitrailError(
                f"{num_bad:,} of {self.num_images:,} images cannot be used, more than the tolerated fraction of "
                f"{self.max_bad_fraction:g}; {self.folder / '_manifests'} and `vitrail data check` list them"
            )

    def start(self, request: dict[str, Any]) -> None:
        """Create the folder, or resume it if the request is the same."""
        request_path = self.folder / "_parts.json"
        request = {"format": FORMAT, **request, "part_size": self.part_size, "suffix": self.suffix}
        _create_folder(self.folder, request_path)
        for name in ("_in_progress", "_manifests"):
            (self.folder / name).mkdir(exist_ok=True)
        self._write_json(request_path, request, exclusive=True)
        previous = _read_json(request_path)
        if different := [name for name in {**previous, **request} if previous.get(name) != request.get(name)]:
            differences = " and ".join(_describe_difference(name, previous.get(name), request.get(name)) for name in different)
            raise VitrailError(f"{self.folder} was started {differences}; name another folder, or repeat the same request")
        for draft in self._drafts():  # left by an earlier process of this rank
            if draft.name.split("-")[1:2] == [str(self.rank)]:
                draft.unlink(missing_ok=True)
        if any(self.manifest(part) is None for part in range(self.num_parts)):
            (self.folder / "_done.json").unlink(missing_ok=True)

    def _manifest_path(self, part: int) -> Path:
        return self.folder / "_manifests" / f"{part:06}.json"

    def _drafts(self, part: int | None = None) -> list[Path]:
        """Return the drafts of a part, or of all parts."""
        prefix = "" if part is None else f"{part:06}-"
        return [
            self.folder / "_in_progress" / name for name in os.listdir(self.folder / "_in_progress") if name.startswith(prefix)
        ]

    def _remove_drafts(self, part: int | None = None) -> None:
        """Remove the drafts that killed processes have left. A process still writing one finds the part complete."""
        for draft in self._drafts(part):
            draft.unlink(missing_ok=True)

    def _write_json(self, path: Path, value: Any, exclusive: bool = False) -> bool:
        """Write a JSON file whole; ``exclusive``: only if it does not exist, and return whether it did not."""
        draft = self.folder / "_in_progress" / f"{path.stem}-{self.rank}-{secrets.token_hex(6)}"
        try:
            draft.write_text(json.dumps(value, indent=1) + "\n")
            fsync_path(draft)
            if exclusive:
                return _link_exclusive(draft, path)
            draft.replace(path)
            return True
        finally:
            draft.unlink(missing_ok=True)


def choose_part_size(folder: Path, num_images: int, requested: int | None) -> int:
    """Return the images per part: as given, as started, else so that there are about 128 parts, whatever the world size."""
    if requested is not None:
        return requested
    previous = _read_json(folder / "_parts.json").get("part_size") if (folder / "_parts.json").exists() else None
    if isinstance(previous, int) and previous > 0:
        return previous
    return min(max(1 << (-(-num_images // TARGET_PARTS) - 1).bit_length(), MIN_PART_SIZE), MAX_PART_SIZE)


def _link_exclusive(draft: Path, path: Path) -> bool:
    """Create ``path`` only if it does not exist; if several processes try, one succeeds."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if path.exists():
            return False
        draft.replace(path)
    return True


def _create_folder(folder: Path, request_path: Path) -> None:
    if not folder.parent.is_dir() or (folder.exists() and not folder.is_dir()):
        raise VitrailError(f"part files need a folder, in one that exists, got {folder}; try {folder.name}-parts")
    folder.mkdir(exist_ok=True)
    foreign = [name for name in os.listdir(folder) if not name.startswith("_")]
    if foreign and not request_path.exists():
        raise VitrailError(f"part files need a folder of their own, got {folder} with {foreign[0]} in it; name a new one")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise VitrailError(f"{path} does not hold a request; name another folder")
    return content


def _describe_difference(name: str, before: Any, now: Any) -> str:
    """Describe a differing setting; a hash is not printed."""
    if any(isinstance(value, str) and len(value) == 64 for value in (before, now)):
        return f"with other {name}"
    return f"with {name} {before} instead of {now}"
