"""Checkpoints of a run: ``checkpoints/step-N/`` with every tensor, the counters and a manifest of hashes. No pickle.

Written under another name, synced, then renamed: a checkpoint is whole or is not there. One that was damaged later is noticed
by its hash, and the one before it is taken.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.weights.checkpoint import sync

TENSORS, COUNTERS, MANIFEST = "state.safetensors", "state.json", "manifest.json"


def write_checkpoint(folder: Path, step: int, tensors: dict[str, Tensor], counters: dict[str, Any], keep: int) -> Path:
    """Whole or not at all; afterwards at most ``keep`` are left."""
    target = folder / f"step-{step}"
    half = folder / f".step-{step}.part"
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    try:
        save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, half / TENSORS)
        (half / COUNTERS).write_text(json.dumps(counters, indent=2, allow_nan=False) + "\n")
        manifest = {name: _hash(half / name) for name in (TENSORS, COUNTERS)}
        (half / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        for name in (TENSORS, COUNTERS, MANIFEST):
            sync(half / name)
        sync(half)
        shutil.rmtree(target, ignore_errors=True)
        half.rename(target)
        sync(folder)
    except Exception as error:
        shutil.rmtree(half, ignore_errors=True)
        raise _as_os_error(error) from None
    for old in checkpoints(folder)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def checkpoints(folder: Path) -> list[Path]:
    """The newest first."""
    found = [path for path in folder.glob("step-*") if path.name[5:].isdecimal()]
    return sorted(found, key=lambda path: int(path.name[5:]), reverse=True)


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any], list[str]] | None:
    """The newest that is whole, with a sentence for each that is not; nothing where there is none at all."""
    damaged: list[str] = []
    for path in checkpoints(folder):
        try:
            manifest = json.loads((path / MANIFEST).read_text())
            for name in (TENSORS, COUNTERS):
                if manifest.get(name) != _hash(path / name):
                    raise VitrailError(f"{name} is not what its manifest says")
            return load_file(path / TENSORS), json.loads((path / COUNTERS).read_text()), damaged
        except (OSError, ValueError, VitrailError) as error:
            damaged.append(f"{path} is damaged ({error}), so the one before it is taken")
    if damaged:
        raise VitrailError(f"no checkpoint in {folder} is whole: {damaged[0]}; take the folder away to start anew")
    return None


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _as_os_error(error: Exception) -> Exception:
    """safetensors tells of a full disk in an error of its own."""
    return error if isinstance(error, OSError | VitrailError) else OSError(f"the checkpoint cannot be written: {error}")
