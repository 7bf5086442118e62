"""Checkpoints of a run: ``checkpoints/step-N/`` with every tensor, the scalars and a manifest of hashes. No pickle.

Written under a temporary name, synced, then renamed: a checkpoint is whole or not at all. One that was damaged later is
detected by its hash, and the one before it is used. A single process writes one file. Several write a file each during
training, with ``torch.distributed.checkpoint`` and its safetensors storage; any world size reads either.
"""

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.train.team import ALONE, Team
from vitrail.weights.checkpoint import sync

TENSORS, COUNTERS, MANIFEST = "state.safetensors", "state.json", "manifest.json"
Places = Callable[[dict[str, tuple[int, ...]]], dict[str, Tensor]]  # from names and shapes to the tensors to load into


@dataclass
class Writer:
    """Writes one checkpoint at a time, and keeps the last ``keep``."""

    folder: Path
    keep: int
    team: Team = ALONE
    writing: "Future[None] | None" = None

    def write(self, step: int, tensors: dict[str, Tensor], counters: dict[str, Any]) -> None:
        """Write a checkpoint: synchronously in a single process, asynchronously in several."""
        self.wait()
        if self.team.ranks == 1:
            write_checkpoint(self.folder, step, tensors, counters, self.keep)
        else:
            self.writing = self._begin(step, tensors, counters)

    def check(self) -> None:
        """Raise the error of an asynchronous write that has failed."""
        if self.writing is not None and self.writing.done():
            self.wait()

    def wait(self) -> None:
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()

    def _begin(self, step: int, tensors: dict[str, Tensor], counters: dict[str, Any]) -> "Future[None]":
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save

        half = self.folder / f".step-{step}.part"
        if self.team.first:
            _emptied(half)
        self.team.wait()  # for the folder
        storage = HuggingFaceStorageWriter(str(half), save_distributed=True)
        made = {name: value.detach() for name, value in tensors.items()}
        begun: Any = async_save(made, storage_writer=storage, process_group=self.team.aside)
        pool = ThreadPoolExecutor(1, "vitrail-checkpoint")
        try:
            return pool.submit(self._finish, begun, half, step, counters)
        finally:
            pool.shutdown(wait=False)

    def _finish(self, begun: "Future[Any]", half: Path, step: int, counters: dict[str, Any]) -> None:
        """Rename the checkpoint, on rank 0, when all ranks have written their part."""
        from torch.distributed.checkpoint.api import CheckpointException

        try:
            begun.result()
            if self.team.first:
                _publish(half, self.folder / f"step-{step}", counters)
                _prune(self.folder, self.keep)
        except CheckpointException as error:
            shutil.rmtree(half, ignore_errors=True)
            rank, (cause, _) = next(iter(error.failures.items()))
            raise OSError(f"rank {rank} cannot write the checkpoint of step {step}: {_reason(cause)}") from None
        except Exception as error:
            shutil.rmtree(half, ignore_errors=True)
            raise _as_os_error(error) from None


def write_checkpoint(folder: Path, step: int, tensors: dict[str, Tensor], counters: dict[str, Any], keep: int) -> Path:
    """Write a checkpoint from a single process, whole or not at all, and keep the last ``keep``."""
    target, half = folder / f"step-{step}", folder / f".step-{step}.part"
    try:
        _emptied(half)
        save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, half / TENSORS)
        _publish(half, target, counters)
    except Exception as error:
        shutil.rmtree(half, ignore_errors=True)
        raise _as_os_error(error) from None
    _prune(folder, keep)
    return target


def checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, newest first."""
    found = [path for path in folder.glob("step-*") if path.name[5:].isdecimal()]
    return sorted(found, key=lambda path: int(path.name[5:]), reverse=True)


@dataclass(frozen=True)
class Found:
    """A valid checkpoint, and a message for each newer one that is damaged."""

    path: Path
    damaged: tuple[str, ...] = ()

    @property
    def counters(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.path / COUNTERS).read_text())
        return read


def find_checkpoint(folder: Path) -> Found | None:
    """Find the newest valid checkpoint. Return None if there is none at all."""
    damaged: list[str] = []
    for path in checkpoints(folder):
        try:
            manifest = json.loads((path / MANIFEST).read_text())
            if COUNTERS not in manifest or len(manifest) < 2:
                raise VitrailError("its manifest is incomplete")
            for name, known in manifest.items():
                if known != _hash(path / Path(name).name):
                    raise VitrailError(f"the hash of {name} is not the one in its manifest")
            json.loads((path / COUNTERS).read_text())
            return Found(path, tuple(damaged))
        except (OSError, ValueError, AttributeError, TypeError, VitrailError) as error:
            damaged.append(f"{path} is damaged ({error}), so the one before it is used")
    if damaged:
        raise VitrailError(f"no checkpoint in {folder} is valid: {damaged[0]}; delete the folder to start over")
    return None


def fill(path: Path, places: Places, team: Team = ALONE) -> None:
    """Load every tensor into its target, of a sharded one this rank's shard, however it was sharded when written."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(path))
    shapes = {name: tuple(known.size) for name, known in reader.read_metadata().state_dict_metadata.items()}  # type: ignore[union-attr]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # of a single process, as intended
            load(places(shapes), storage_reader=reader, no_dist=team.ranks == 1)
    except CheckpointException as error:
        _, (cause, _) = next(iter(error.failures.items()))
        raise VitrailError(f"{path} cannot be read into this model: {_reason(cause)}") from None


def _emptied(half: Path) -> None:
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)


def _publish(half: Path, target: Path, counters: dict[str, Any]) -> None:
    """Add scalars and manifest, sync everything to disk, then rename."""
    (half / COUNTERS).write_text(json.dumps(counters, indent=2, allow_nan=False) + "\n")
    names = sorted(path.name for path in half.iterdir())
    (half / MANIFEST).write_text(json.dumps({name: _hash(half / name) for name in names}, indent=2) + "\n")
    for name in (*names, MANIFEST):
        sync(half / name)
    sync(half)
    shutil.rmtree(target, ignore_errors=True)
    half.rename(target)
    sync(target.parent)


def _prune(folder: Path, keep: int) -> None:
    """Delete old checkpoints, and partial ones of a process that was killed."""
    for old in (*checkpoints(folder)[keep:], *folder.glob(".step-*.part")):
        shutil.rmtree(old, ignore_errors=True)


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _as_os_error(error: Exception) -> Exception:
    """Turn safetensors' own error of a full disk into an OSError."""
    return error if isinstance(error, OSError | VitrailError) else OSError(f"the checkpoint cannot be written: {error}")


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
