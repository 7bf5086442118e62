"""Checkpoints of a run: ``checkpoints/step-N/`` with every tensor, the scalars and a manifest of hashes. No pickle.

Written under a temporary name, synced, then renamed: a checkpoint is whole or not at all. One that was damaged later is
detected by its hash, and the one before it is used. A single process writes one file. Several write a file each during
training, with ``torch.distributed.checkpoint`` and its safetensors storage; any world size reads either.
"""

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.io import atomic_folder, create_empty_folder, publish_folder
from vitrail.training.process_group import SINGLE_PROCESS, ProcessGroup
from vitrail.training.state import TrainState

TENSORS_FILE, SCALARS_FILE, MANIFEST_FILE = "state.safetensors", "state.json", "manifest.json"
LoadTargets = Callable[[dict[str, tuple[int, ...]]], dict[str, Tensor]]  # from names and shapes to the tensors to load into


@dataclass
class Checkpointer:
    """Writes one checkpoint at a time, and keeps the last ``keep``."""

    folder: Path
    keep: int
    group: ProcessGroup = SINGLE_PROCESS
    pending: "Future[None] | None" = None

    def save(self, step: int, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
        """Write a checkpoint: synchronously in a single process, asynchronously in several."""
        self.wait()
        if self.group.world_size == 1:
            write_checkpoint(self.folder, step, tensors, scalars, self.keep)
        else:
            self.pending = self._start(step, tensors, scalars)

    def raise_if_failed(self) -> None:
        """Raise the error of an asynchronous write that has failed."""
        if self.pending is not None and self.pending.done():
            self.wait()

    def wait(self) -> None:
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()

    def _start(self, step: int, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> "Future[None]":
        # these take a second to import, and only several processes need them
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save

        partial = self.folder / f".step-{step}.part"
        if self.group.is_main:
            create_empty_folder(partial)
        self.group.barrier()  # for the folder
        storage = HuggingFaceStorageWriter(str(partial), save_distributed=True)
        detached = {name: value.detach() for name, value in tensors.items()}
        saving: Any = async_save(detached, storage_writer=storage, process_group=self.group.checkpoint_group)
        pool = ThreadPoolExecutor(1, "vitrail-checkpoint")
        try:
            return pool.submit(self._finish, saving, partial, step, scalars)
        finally:
            pool.shutdown(wait=False)

    def _finish(self, saving: "Future[Any]", partial: Path, step: int, scalars: dict[str, Any]) -> None:
        """Rename the checkpoint, on rank 0, when all ranks have written their part."""
        from torch.distributed.checkpoint.api import CheckpointException

        try:
            saving.result()
            if self.group.is_main:
                _add_manifest(partial, scalars)
                publish_folder(partial, self.folder / f"step-{step}")
                _prune(self.folder, self.keep)
        except CheckpointException as error:
            shutil.rmtree(partial, ignore_errors=True)
            rank, (cause, _) = next(iter(error.failures.items()))
            raise OSError(f"rank {rank} cannot write the checkpoint of step {step}: {_one_line(cause)}") from None
        except Exception as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise _as_os_error(error) from None


def write_checkpoint(folder: Path, step: int, tensors: dict[str, Tensor], scalars: dict[str, Any], keep: int) -> Path:
    """Write a checkpoint from a single process, whole or not at all, and keep the last ``keep``."""
    target = folder / f"step-{step}"
    try:
        with atomic_folder(target, locked=True) as partial:
            save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, partial / TENSORS_FILE)
            _add_manifest(partial, scalars)
    except Exception as error:
        raise _as_os_error(error) from None
    _prune(folder, keep)
    return target


def list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, newest first."""
    paths = [path for path in folder.glob("step-*") if path.name[5:].isdecimal()]
    return sorted(paths, key=lambda path: int(path.name[5:]), reverse=True)


@dataclass(frozen=True)
class CheckpointRef:
    """A valid checkpoint, and a message for each newer one that is damaged."""

    path: Path
    damaged: tuple[str, ...] = ()

    @property
    def scalars(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads((self.path / SCALARS_FILE).read_text())
        return values


def find_valid_checkpoint(folder: Path) -> CheckpointRef | None:
    """Find the newest valid checkpoint. Return None if there is none at all."""
    damaged: list[str] = []
    for path in list_checkpoints(folder):
        try:
            manifest = json.loads((path / MANIFEST_FILE).read_text())
            if SCALARS_FILE not in manifest or len(manifest) < 2:
                raise VitrailError("its manifest is incomplete")
            for name, expected in manifest.items():
                if expected != _hash(path / Path(name).name):
                    raise VitrailError(f"the hash of {name} is not the one in its manifest")
            json.loads((path / SCALARS_FILE).read_text())
            return CheckpointRef(path, tuple(damaged))
        except (OSError, ValueError, AttributeError, TypeError, VitrailError) as error:
            damaged.append(f"{path} is damaged ({error}), so the one before it is used")
    if damaged:
        raise VitrailError(f"no checkpoint in {folder} is valid: {damaged[0]}; delete the folder to start over")
    return None


@dataclass(frozen=True)
class Resumed:
    """Whether a checkpoint was found, and messages about it."""

    is_resumed: bool
    messages: tuple[str, ...] = ()


def resume_from_checkpoint(folder: Path, state: TrainState, provenance: Mapping[str, str], group: ProcessGroup) -> Resumed:
    """Restore the newest valid checkpoint into the state. ``provenance``: what it was made with must be as it is now."""
    checkpoint = _latest_checkpoint(folder, group)
    if checkpoint is None:
        return Resumed(False)
    scalars = checkpoint.scalars
    check_provenance(folder.parent, scalars, provenance)
    messages = [
        f"{name} was {scalars.get(name)} when the run was started and is {now}: resuming, perhaps not bit for bit"
        for name in ("vitrail", "torch")
        if (now := provenance[name]) != scalars.get(name)
    ]
    load_tensors(checkpoint.path, state.load_targets, group)
    state.restore(scalars)
    return Resumed(True, (*checkpoint.damaged, *messages, f"resumed from step {state.step}"))


def check_provenance(run: Path, scalars: Mapping[str, Any], provenance: Mapping[str, str]) -> None:
    """Refuse a checkpoint that was made with other data, or with another transform or loss of the user's own."""
    if scalars.get("data") != provenance["data"]:
        raise VitrailError(f"{run} was started on other images or labels; use another folder for this dataset")
    for name in ("transform", "loss"):
        before, now = scalars.get(name), provenance.get(name)
        if before != now:
            raise VitrailError(
                f"{run} was started with {name}={before or 'the one of its recipe'}, got {now or 'none'}; "
                f"resume it from Python with the same {name}, or use another folder"
            )


def own_functions(transform: object = None, loss: object = None) -> dict[str, str]:
    """Return the names of the user's own transform and loss, which a run is resumed with."""
    given = {"transform": transform, "loss": loss}
    return {name: str(getattr(each, "__qualname__", type(each).__qualname__)) for name, each in given.items() if each}


def _latest_checkpoint(folder: Path, group: ProcessGroup) -> CheckpointRef | None:
    """Find the newest valid checkpoint. The main process verifies the hashes, the others take its result."""
    checkpoint = find_valid_checkpoint(folder) if group.is_main else None
    group.barrier()  # reading them all may take long
    path = group.broadcast_str(lambda: "" if checkpoint is None else str(checkpoint.path))
    return checkpoint or (CheckpointRef(Path(path)) if path else None)


def load_tensors(path: Path, targets: LoadTargets, group: ProcessGroup = SINGLE_PROCESS) -> None:
    """Load every tensor into its target, of a sharded one this rank's shard, however it was sharded when written."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # of a single process, as intended
            load(
                targets(read_shapes(path)),
                storage_reader=HuggingFaceStorageReader(str(path)),
                no_dist=group.world_size == 1,
            )
    except CheckpointException as error:
        _, (cause, _) = next(iter(error.failures.items()))
        raise VitrailError(f"{path} cannot be read into this model: {_one_line(cause)}") from None


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the names and shapes of a checkpoint's tensors."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    metadata: Any = HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata
    return {name: tuple(tensor.size) for name, tensor in metadata.items()}


def _add_manifest(partial: Path, scalars: dict[str, Any]) -> None:
    """Add the scalars, and the hash of every file."""
    (partial / SCALARS_FILE).write_text(json.dumps(scalars, indent=2, allow_nan=False) + "\n")
    names = sorted(path.name for path in partial.iterdir())
    (partial / MANIFEST_FILE).write_text(json.dumps({name: _hash(partial / name) for name in names}, indent=2) + "\n")


def _prune(folder: Path, keep: int) -> None:
    """Delete old checkpoints, and partial ones of a process that was killed."""
    for old in (*list_checkpoints(folder)[keep:], *folder.glob(".step-*.part")):
        shutil.rmtree(old, ignore_errors=True)


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _as_os_error(error: Exception) -> Exception:
    """Turn safetensors' own error of a full disk into an OSError."""
    return error if isinstance(error, OSError | VitrailError) else OSError(f"the checkpoint cannot be written: {error}")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
