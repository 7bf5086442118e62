"""Reading foreign files as plain tensors. Nothing in them is executed, and a file cannot ask for more memory than it has bytes.

.npz is read array by array with its headers checked first, .pth with ``weights_only``, .safetensors mapped.
"""

import json
import math
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitrail.errors import VitrailError

LARGEST_JSON = 16 * 2**20
WRAPPERS = ("model", "state_dict", "teacher", "student", "model_state_dict", "module", "params", "ema", "model_ema", "net")
PREFIXES = ("module.", "backbone.", "model.", "_orig_mod.", "encoder_q.", "visual.trunk.")


@dataclass(frozen=True)
class Loose:
    """Tensors by name, and what the files beside them say."""

    tensors: dict[str, Tensor]
    side: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)  # a safetensors header's


def read_file(path: Path) -> Loose:
    """A file, or a folder of Hugging Face or timm, whatever its format."""
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise VitrailError(f"{path} does not exist")
    loose = _tensors(path)
    return Loose(loose.tensors, _side(path.parent) if path.stem in ("model", "pytorch_model") else {}, loose.metadata)


def read_json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > LARGEST_JSON:
        raise VitrailError(f"{path} has {path.stat().st_size:,} bytes, too many for settings")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise VitrailError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise VitrailError(f"{path} must hold an object, got {type(content).__name__}")
    return content


def _folder(path: Path) -> Loose:
    side = _side(path)
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (path / f"{name}.index.json").is_file():
            return Loose(_shards(path, path / f"{name}.index.json"), side)
        if (path / name).is_file():
            loose = _tensors(path / name)
            return Loose(loose.tensors, side, loose.metadata)
    raise VitrailError(f"{path} holds no weights: no vitrail.json, no model.safetensors, no pytorch_model.bin")


def _side(folder: Path) -> dict[str, Any]:
    side = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    processor = folder / "preprocessor_config.json"
    return side | ({"preprocessor": read_json(processor)} if processor.is_file() else {})


def _shards(folder: Path, index: Path) -> dict[str, Tensor]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise VitrailError(f"{index} has no weight_map of names")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(places.values())):
        if Path(name).name != name or name in ("", ".", ".."):
            raise VitrailError(f"{index} points outside its folder: {name!r}")
        if not (folder / name).is_file():
            raise VitrailError(f"{folder} lacks the shard {name}")
        tensors |= _tensors(folder / name).tensors
    lost = [name for name in places if name not in tensors]
    if lost:
        raise VitrailError(f"the shards of {folder} lack {', '.join(lost[:4])}")
    return tensors


def _tensors(path: Path) -> Loose:
    try:
        match path.suffix.lower():
            case ".npz":
                return Loose(_npz(path))
            case ".safetensors":
                return _safetensors(path)
            case ".pth" | ".pt" | ".bin" | ".ckpt" | ".tar":
                return Loose(_pth(path))
    except VitrailError:
        raise
    except (OSError, ValueError, RuntimeError, MemoryError, EOFError, KeyError, SafetensorError, zipfile.BadZipFile) as error:
        reason = str(error).strip().splitlines()
        raise VitrailError(f"{path} cannot be read: {reason[0] if reason else type(error).__name__}") from None
    raise VitrailError(f"{path} is of no known kind; there are .npz, .safetensors, .pth, and folders")


def _safetensors(path: Path) -> Loose:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dict
        return Loose(tensors, metadata=file.metadata() or {})


def _npz(path: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    with zipfile.ZipFile(path) as archive:
        whole = sum(entry.file_size for entry in archive.infolist())
        if whole > 20 * path.stat().st_size + 2**20:
            raise VitrailError(
                f"{path} would unpack to {whole:,} bytes, {whole // path.stat().st_size} times its size: refused"
            )
        for entry in archive.infolist():
            if entry.is_dir():
                continue
            with archive.open(entry) as stream:
                array = _npy(stream, entry.file_size, f"{entry.filename} in {path}")
            if array is not None:
                tensors[entry.filename.removesuffix(".npy")] = array
    return tensors


def _npy(stream: Any, size: int, where: str) -> Tensor | None:
    """One array, after its header has been held against the bytes that are there."""
    version = np.lib.format.read_magic(stream)
    header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if header is None:
        raise VitrailError(f"{where} has an array of format {version}")
    shape, fortran, dtype = header(stream)
    if dtype.hasobject:
        raise VitrailError(f"{where} holds Python objects, which are never unpacked")
    expected = math.prod(shape) * dtype.itemsize
    if expected > size:
        raise VitrailError(f"{where} claims {expected:,} bytes and has {size:,}")
    if dtype.kind == "V" and dtype.itemsize == 2:  # how numpy spells bfloat16
        return torch.frombuffer(bytearray(stream.read(expected)), dtype=torch.bfloat16).reshape(shape) if expected else None
    if dtype.kind not in "fiub":
        return None
    array = np.frombuffer(bytearray(stream.read(expected)), dtype=dtype)
    return torch.from_numpy(
        np.ascontiguousarray(array.reshape(shape, order="F" if fortran else "C").astype(dtype.newbyteorder("=")))
    )


def _pth(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        what = str(error).split("GLOBAL ")[-1].split(" ")[0] if "GLOBAL " in str(error) else "something that is no tensor"
        raise VitrailError(f"{path} wants to run code while being read ({what}), which is never done") from None
    return unwrap(content, str(path))


def unwrap(content: Any, where: str) -> dict[str, Tensor]:
    """The weights inside what training scripts save around them."""
    while isinstance(content, Mapping):
        inner = [content[name] for name in WRAPPERS if isinstance(content.get(name), Mapping)]
        if not inner:
            break
        content = inner[0]
    if not isinstance(content, Mapping):
        raise VitrailError(f"{where} holds a {type(content).__name__}, not tensors by name")
    tensors = {str(name): tensor for name, tensor in content.items() if isinstance(tensor, Tensor)}
    if not tensors:
        raise VitrailError(f"{where} holds no tensors by name")
    while prefix := next((p for p in PREFIXES if sum(name.startswith(p) for name in tensors) > len(tensors) / 2), None):
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors
