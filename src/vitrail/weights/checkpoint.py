"""``vitrail.save``: our own model folder, or a file in another library's format. It appears whole or not at all; no pickle is
written but torch's own for .pth."""

import ctypes
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from vitrail.config import read as read_as
from vitrail.config import to_plain
from vitrail.errors import VitrailError
from vitrail.models.build import Model
from vitrail.models.variants import ModelConfig, ResNetConfig, ViTConfig, times
from vitrail.models.vit import ViT
from vitrail.weights.convert import huggingface, official, timm, torchvision
from vitrail.weights.convert.detect import Origin, refuse
from vitrail.weights.convert.link import write
from vitrail.weights.folder import FACTS, FORMAT, WEIGHTS

WRITTEN = {WEIGHTS, FACTS, "config.json", "preprocessor_config.json"}
SUFFIXES: dict[str, tuple[str, ...]] = {
    "official": (".npz",),
    "timm": (".safetensors", ".pth"),
    "torchvision": (".pth", ".safetensors"),
}


def save(model: Model, path: str | Path, format: Origin = "vitrail") -> Path:
    """Write a model folder, or the same numbers as official, timm, huggingface or torchvision have them.

    What a format cannot hold exactly is refused. An older model of that name is replaced.
    """
    read_as(format, Origin, "format")
    model = getattr(model, "_orig_mod", model)  # a compiled model is saved as what it was compiled from
    if any(weight.is_meta for weight in model.parameters()):
        raise VitrailError("the model is on the meta device, so it has no weights to save; build it on the cpu")
    path = Path(path).resolve()
    match format:
        case "vitrail":
            return _whole(path, lambda fresh: _write_own(model, fresh))
        case "huggingface":
            return _whole(path, lambda fresh: _write_huggingface(model, fresh))
    if path.suffix not in SUFFIXES[format]:
        raise VitrailError(f"a file in the {format} format ends in {' or '.join(SUFFIXES[format])}, got {path.name!r}")
    converter: Any = {"official": official, "timm": timm, "torchvision": torchvision}[format]
    config, state = _plain(model, format)
    converter.check(config)
    tensors = write(converter.links(config), state)
    return _whole(path, lambda fresh: _write_file(tensors, fresh, path.suffix, config))


def _write_own(model: Model, folder: Path) -> None:
    folder.mkdir(parents=True)
    save_file({name: weight.contiguous() for name, weight in model.state_dict().items()}, folder / WEIGHTS)
    facts: dict[str, Any] = {"format": FORMAT, "model": to_plain(model.config)}
    if isinstance(model.config, ViTConfig):
        facts["grid"] = list(model.config.grid)
    facts["preprocess"] = to_plain(model.preprocess)
    facts["labels"] = to_plain(model.labels)
    facts["versions"] = {"vitrail": version("vitrail"), "torch": torch.__version__}
    (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n")


def _write_huggingface(model: Model, folder: Path) -> None:
    config, state = _plain(model, "huggingface")
    huggingface.check(config)
    folder.mkdir(parents=True)
    save_file(write(huggingface.links(config), state), folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in huggingface.side_files(config, model.preprocess, model.labels).items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def _write_file(tensors: dict[str, Tensor], path: Path, suffix: str, config: ModelConfig) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    match suffix:
        case ".npz":
            with path.open("wb") as file:
                np.savez(file, **{name: tensor.numpy() for name, tensor in tensors.items()})  # type: ignore[arg-type]
        case ".pth":
            torch.save(tensors, path)
        case ".safetensors":
            noted = {"format": "pt"}
            if isinstance(config, ViTConfig):
                noted |= {"vitrail.grid": times(config.grid), "vitrail.heads": str(config.heads)}
            save_file(tensors, path, metadata=noted)


def _plain(model: Model, format: str) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Settings and weights with a position table as every library has it: one learned row a place.

    A sin-cos or 2-D table at the stem becomes its own values, which changes no logit.
    """
    state = {name: weight.detach() for name, weight in model.state_dict().items()}
    if isinstance(model.config, ResNetConfig) or (model.config.position == "learned1d" and model.config.position_at == "stem"):
        return model.config, state
    assert isinstance(model, ViT)
    config = model.config
    if config.position in ("none", "relative", "rotary") or config.position_at != "stem":
        kind = config.position if config.position_at == "stem" else f"{config.position} at {config.position_at} layer"
        refuse(f"positions of the kind {kind}", format, "use format='vitrail'")
    add: Any = model.positions[0]
    state = {name: weight for name, weight in state.items() if not name.startswith("positions.")}
    with torch.no_grad():
        state["positions.0.table.weight"] = add.at(config.grid).clone()
    if config.covered:
        rows = torch.zeros(config.covered, config.width) if add.prefix is None else add.prefix.detach()
        state["positions.0.prefix"] = rows
    return replace(config, position="learned1d", position_grid=None), state


def _whole(path: Path, write_to: Callable[[Path], None]) -> Path:
    """Write under another name, sync, then take the name: what is seen under it is always whole."""
    if path.is_dir() and not {file.name for file in path.iterdir()} <= WRITTEN:
        raise VitrailError(f"{path} exists and holds other things than a model, so it is not overwritten; choose another name")
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    _remove(fresh)
    try:
        write_to(fresh)
        for file in [*fresh.iterdir(), fresh] if fresh.is_dir() else [fresh]:
            _sync(file)
        _swap(fresh, path)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise VitrailError(f"{path} cannot be written: {str(error).splitlines()[0]}") from error
    finally:
        _remove(fresh)
    return path


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _swap(fresh: Path, path: Path) -> None:
    """A file replaces a file in one step, and so does a folder where the system can exchange two names.

    Elsewhere the old folder steps aside first, and comes back if the new one cannot take its place.
    """
    if not path.is_dir():
        fresh.replace(path)
    elif not _exchange(fresh, path):
        old = path.with_name(f".{path.name}.{os.getpid()}.old")
        path.rename(old)
        try:
            fresh.rename(path)
        except OSError:
            old.rename(path)
            raise
        _remove(old)
    _sync(path.parent)


def _exchange(one: Path, two: Path) -> bool:
    """Linux's renameat2 with RENAME_EXCHANGE; afterwards each has the other's name."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here = -100  # AT_FDCWD
    return bool(renameat2(here, os.fsencode(one), here, os.fsencode(two), 2) == 0)
