"""Writing and reading our own model folder. Writing is atomic, reading maps the file, and no pickle is involved."""

import json
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from vitrail.config import to_plain
from vitrail.errors import VitrailError
from vitrail.models.build import Model, skeleton
from vitrail.models.variants import ViTConfig
from vitrail.weights.folder import FACTS, FORMAT, WEIGHTS, is_model, read_config


def save(model: Model, path: str | Path) -> Path:
    """Write a folder that appears whole or not at all; an older model of that name is replaced."""
    folder = Path(path)
    if folder.exists() and not is_model(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise VitrailError(f"{folder} exists and is no model folder, so it is not overwritten; choose another name")
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        state = {name: weight.contiguous() for name, weight in model.state_dict().items()}
        save_file(state, fresh / WEIGHTS)
        (fresh / FACTS).write_text(json.dumps(_facts(model), indent=2) + "\n")
        for file in (fresh / WEIGHTS, fresh / FACTS, fresh):
            _sync(file)
        _swap(fresh, folder)
    except (OSError, SafetensorError) as error:
        raise VitrailError(f"{folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def load(path: str | Path) -> Model:
    """The model of a folder that ``save`` wrote, ready to predict."""
    folder = Path(path)
    model = skeleton(read_config(folder))
    try:
        state = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise VitrailError(f"{folder / WEIGHTS} cannot be read: {error}") from None
    _match(folder, {name: tuple(weight.shape) for name, weight in model.state_dict().items()}, state)
    model.load_state_dict(state, assign=True)
    return model.eval()


def _facts(model: Model) -> dict[str, Any]:
    facts: dict[str, Any] = {"format": FORMAT, "model": to_plain(model.config)}
    if isinstance(model.config, ViTConfig):
        facts["grid"] = list(model.config.grid)
    return facts | {"versions": {"vitrail": version("vitrail"), "torch": torch.__version__}}


def _match(folder: Path, expected: dict[str, tuple[int, ...]], state: dict[str, torch.Tensor]) -> None:
    problems = [f"{name} is missing" for name in expected if name not in state]
    problems += [f"{name} is unexpected" for name in state if name not in expected]
    problems += [
        f"{name} is {list(weight.shape)} instead of {list(expected[name])}"
        for name, weight in state.items()
        if name in expected and tuple(weight.shape) != expected[name]
    ]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise VitrailError(f"the weights in {folder} do not fit its {FACTS}: {', '.join(problems[:5])}{more}")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _swap(fresh: Path, folder: Path) -> None:
    """A folder cannot replace a full one in one step, so the old one steps aside first."""
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    _sync(folder.parent)
