"""``vitrail.save``: write a model folder, or a file in another library's format, whole or not at all.

The only pickle written is torch's own, for .pth."""

import ctypes
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
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
from vitrail.models.masked import MAE, Masked
from vitrail.models.settings import ModelConfig, ResNetConfig, ViTConfig, times
from vitrail.models.vit import ViT
from vitrail.weights.convert import detect, huggingface, mae, official, timm, torchvision
from vitrail.weights.convert.detect import Origin, Wishes, refuse
from vitrail.weights.convert.link import write
from vitrail.weights.files import NOTE
from vitrail.weights.folder import DECODER, FACTS, FORMAT, TRAINING, WEIGHTS

WRITTEN = {WEIGHTS, FACTS, DECODER, "config.json", "preprocessor_config.json"}
SUFFIXES: dict[str, tuple[str, ...]] = {
    "official": (".npz",),
    "timm": (".safetensors", ".pth"),
    "torchvision": (".pth", ".safetensors"),
}


def save(model: Model | Masked, path: str | Path, format: Origin = "vitrail", facts: Mapping[str, Any] | None = None) -> Path:
    """Write a model folder, or the same weights in the official, timm, huggingface or torchvision format.

    A model that was pre-trained with a decoder is written with it: in our folder next to the encoder; an MAE also in the
    published format or as Hugging Face's ViTMAE.
    What a format cannot represent exactly is refused. An existing model of that name is replaced. ``facts`` is the training
    metadata ``recipe``, ``dataset``, ``metrics``; it describes these weights, so a loaded model's is not saved by default.
    """
    read_as(format, Origin, "format")
    said = _checked(facts or {})
    model = getattr(model, "_orig_mod", model)  # a compiled model is saved as the module it was compiled from
    if any(weight.is_meta for weight in model.parameters()):
        raise VitrailError("the model is on the meta device, so it has no weights to save; build it on the cpu")
    path = Path(path).expanduser().resolve()
    match format:
        case "vitrail":
            return _whole(path, lambda fresh: _write_own(model, fresh, said))
        case "huggingface":
            return _whole(path, lambda fresh: _write_huggingface(model, fresh, said))
    if path.suffix not in SUFFIXES[format]:
        raise VitrailError(f"a file in the {format} format ends in {' or '.join(SUFFIXES[format])}, got {path.name!r}")
    config, tensors = _written(model, format)
    if path.suffix == ".pth":
        _check_pth(config, format)
    published = isinstance(model, Masked) and path.suffix == ".pth"
    inside = {"model": tensors} if published else tensors
    return _whole(path, lambda fresh: _write_file(inside, fresh, path.suffix, facts_of(model, config, said)))


def _checked(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Check that the training metadata consists of JSON objects."""
    for name, value in facts.items():
        try:
            json.dumps(value, allow_nan=False)
            good = name in TRAINING and isinstance(value, Mapping)
        except (TypeError, ValueError):
            good = False
        if not good:
            raise VitrailError(f"metadata must be JSON objects named {', '.join(TRAINING)}, got {name}={str(value)[:40]}")
    return dict(facts)


def facts_of(model: Model | Masked, config: ModelConfig, said: dict[str, Any]) -> dict[str, Any]:
    """Return the content of ``vitrail.json``: everything that the tensors do not record."""
    grid = {"grid": list(config.grid)} if isinstance(config, ViTConfig) else {}
    masking = {"masking": to_plain(model.masking)} if isinstance(model, Masked) else {}
    encoder = _encoder(model)
    return {
        "format": FORMAT,
        "model": to_plain(config),
        **grid,
        **masking,
        "preprocess": to_plain(encoder.preprocess),
        "class_names": to_plain(encoder.labels),
        **said,
        "versions": {"vitrail": version("vitrail"), "torch": torch.__version__},
    }


def _check_pth(config: ModelConfig, format: str) -> None:
    """Refuse a model whose config a reader would infer wrongly, since a .pth of tensors holds no metadata.

    The number of heads is the exception: these formats never record it, and every reader has to be given it.
    """
    if not isinstance(config, ViTConfig):
        return
    fronts = dict.fromkeys((config.prefix, int(config.has_class_token), 0))
    try:
        guess = detect.grid(config.patches + config.covered, fronts, Wishes(), [])
    except VitrailError:  # not square: the reader will ask for it
        guess = config.grid, config.covered
    if guess != (config.grid, config.covered):
        refuse(
            f"a grid of {times(config.grid)} in a .pth, which would be read as {times(guess[0])}", format, "use .safetensors"
        )
    if config.has_class_token and (config.pool == "gap") != (config.norm_at == "pooled"):
        refuse("this pooling with a class token in a .pth, which would be read as another", format, "use .safetensors")


def _encoder(model: Model | Masked) -> Model:
    return model.encoder if isinstance(model, Masked) else model


def _write_own(model: Model | Masked, folder: Path, said: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    save_file({name: weight.contiguous() for name, weight in _encoder(model).state_dict().items()}, folder / WEIGHTS)
    if isinstance(model, Masked):
        save_file({name: weight.contiguous() for name, weight in model.rest().items()}, folder / DECODER)
    (folder / FACTS).write_text(json.dumps(facts_of(model, model.config, said), indent=2) + "\n")


def _write_huggingface(model: Model | Masked, folder: Path, said: dict[str, Any]) -> None:
    config, tensors = _written(model, "huggingface")
    folder.mkdir(parents=True)
    note = {}
    if isinstance(model, Masked) and model.config.pool != "cls":  # their MAE does not pool, so its config.json cannot record it
        note = {NOTE: json.dumps(facts_of(model, config, said))}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt", **note})
    if isinstance(model, Masked):
        side = {"config.json": mae.side_file(model.config, model.masking), **huggingface.processor(model.encoder.preprocess)}
    else:
        side = huggingface.side_files(config, model.preprocess, model.labels)
    for name, content in side.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def _written(model: Model | Masked, format: Origin) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the config and the tensors in another library's names and layout."""
    converter: Any = {"official": official, "timm": timm, "huggingface": huggingface, "torchvision": torchvision}[format]
    if not isinstance(model, Masked):
        config, state = _plain(model, format)
        converter.check(config)
        return config, write(converter.links(config), state)
    mae.check(model.config, model.masking, format)
    plain, state = _plain(model.encoder, format)
    assert isinstance(model, MAE)
    assert isinstance(plain, ViTConfig)
    plain, state = mae.whole(model, plain, state)
    which: mae.Layout = "timm" if format == "timm" else "huggingface"
    return plain, write([*converter.links(plain), *mae.links(plain, model.masking, which)], state)


def _write_file(tensors: dict[str, Any], path: Path, suffix: str, facts: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    match suffix:
        case ".npz":
            with path.open("wb") as file:
                np.savez(file, **{name: tensor.float().cpu().numpy() for name, tensor in tensors.items()})
            with zipfile.ZipFile(path, "a") as archive:
                archive.comment = _comment(facts)
        case ".pth":
            torch.save(tensors, path)
        case ".safetensors":
            save_file(tensors, path, metadata={"format": "pt", NOTE: json.dumps(facts)})


def _comment(facts: dict[str, Any]) -> bytes:
    """Return the metadata for a zip comment, which holds 64 KiB: without the class names if they are too many."""
    whole = json.dumps(facts).encode()
    return whole if len(whole) < 2**16 else json.dumps(facts | {"class_names": None}).encode()


def _plain(model: Model, format: str) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return config and weights with the position table that every library has: one learned row per position.

    A sin-cos or 2-D table added at the input is replaced by its values, which changes no logit.
    """
    state = {name: weight.detach() for name, weight in model.state_dict().items()}
    if isinstance(model.config, ResNetConfig) or (model.config.position == "learned1d" and model.config.position_at == "input"):
        return model.config, state
    assert isinstance(model, ViT)
    config = model.config
    if config.position in ("none", "relative", "rotary") or config.position_at != "input":
        kind = (
            config.position if config.position_at == "input" else f"{config.position} at {config.position_at.replace('-', ' ')}"
        )
        refuse(f"position embeddings of type {kind}", format, "use format='vitrail'")
    add: Any = model.positions[0]
    state = {name: weight for name, weight in state.items() if not name.startswith("positions.")}
    with torch.no_grad():
        state["positions.0.table.weight"] = add.at(config.grid).clone()
    if config.covered:
        rows = torch.zeros(config.covered, config.width) if add.prefix is None else add.prefix.detach()
        state["positions.0.prefix"] = rows
    return replace(config, position="learned1d", position_grid=None), state


def _whole(path: Path, write_to: Callable[[Path], None]) -> Path:
    """Write under a temporary name, sync, then rename: what has the final name is always complete."""
    try:
        there = {file.name for file in path.iterdir()} if path.is_dir() else set()
        if there and not (there <= WRITTEN and there & {WEIGHTS, FACTS}):
            raise VitrailError(
                f"{path} exists and contains files other than a model's, so it is not overwritten; choose another name"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name[:100]}.", suffix=".new", dir=path.parent))
    except OSError as error:
        raise VitrailError(f"{path} cannot be written: {error}") from error
    fresh = aside / "model"
    try:
        write_to(fresh)
        (aside / "usual").touch()
        files = list(fresh.iterdir()) if fresh.is_dir() else [fresh]
        for file in files:
            file.chmod((aside / "usual").stat().st_mode)  # safetensors makes files that only the owner can read
        for file in [*files, fresh]:
            sync(file)
        _swap(fresh, path)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise VitrailError(f"{path} cannot be written: {str(error).splitlines()[0]}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return path


def sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _swap(fresh: Path, path: Path) -> None:
    """Replace a file atomically, and a folder too where the system can exchange two names.

    Elsewhere the old folder is renamed first, and renamed back if the new one cannot take its name.
    """
    if not _replace(fresh, path) and not _exchange(fresh, path):
        old = fresh.with_name("old")
        path.rename(old)
        try:
            fresh.rename(path)
        except OSError:
            old.rename(path)
            raise
    sync(path.parent)


def _replace(fresh: Path, path: Path) -> bool:
    """Rename, and return False if a folder with content has that name, which may also appear at the last moment."""
    try:
        fresh.replace(path)
    except OSError:
        if path.is_dir():
            return False
        raise
    return True


def _exchange(one: Path, two: Path) -> bool:
    """Exchange two names by Linux's renameat2 with RENAME_EXCHANGE; return whether it succeeded."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here = -100  # AT_FDCWD
    return bool(renameat2(here, os.fsencode(one), here, os.fsencode(two), 2) == 0)
