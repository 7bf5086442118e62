"""Read checkpoint files as plain tensors. Nothing in them is executed, and no file can claim more memory than its own size.

.npz is read array by array with its headers checked first, .pth with ``weights_only``, .safetensors memory-mapped.
"""

import argparse
import json
import math
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.weights.folder import read_json

WRAPPERS = ("model", "state_dict", "teacher", "student", "model_state_dict", "module", "params", "ema", "model_ema", "net")
PREFIXES = (
    "module.",
    "backbone.",
    "model.",
    "_orig_mod.",
    "encoder_q.",
    "base_encoder.",
    "timm_model.",
    "net.",
    "visual.trunk.",
)
NOTE = "vitrail"  # the key of our metadata in a safetensors header; an .npz has it in its comment


@dataclass(frozen=True)
class Loose:
    """Tensors by name, with the metadata found in the file and next to it."""

    tensors: dict[str, Tensor]
    side: dict[str, Any] = field(default_factory=dict)
    note: dict[str, Any] = field(default_factory=dict)  # the metadata that our own ``save`` wrote
    wrapper: str | None = None  # the key under which the weights were nested
    left: list[str] = field(default_factory=list)  # other entries of the file


def read_file(path: Path) -> Loose:
    """Read a file of any supported format, or a folder of Hugging Face or timm."""
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise VitrailError(f"{path} does not exist; name a run, a model folder, a file of weights or hf:owner/name")
    return replace(_tensors(path), side=_side(path.parent) if path.stem in ("model", "pytorch_model") else {})


def _folder(path: Path) -> Loose:
    side = _side(path)
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (path / f"{name}.index.json").is_file():
            return Loose(_shards(path, path / f"{name}.index.json"), side)
        if (path / name).is_file():
            return replace(_tensors(path / name), side=side)
    raise VitrailError(f"{path} contains no weights: no model.safetensors, no pytorch_model.bin")


def _side(folder: Path) -> dict[str, Any]:
    side = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            content = read_json(folder / name)
            return side | {"preprocessor": content.get("image_processor", content)}
    return side


def _shards(folder: Path, index: Path) -> dict[str, Tensor]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise VitrailError(f"{index} must have a weight_map of file names")
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
                return _npz(path)
            case ".safetensors":
                return _safetensors(path)
            case ".pth" | ".pt" | ".bin" | ".ckpt" | ".tar":
                return _pth(path)
    except VitrailError:
        raise
    except Exception as error:  # a damaged file can fail its reader in any way
        reason = str(error).strip().splitlines()
        raise VitrailError(f"{path} cannot be read: {reason[0] if reason else type(error).__name__}") from None
    if path.suffix.lower() in (".onnx", ".pt2"):
        raise VitrailError(f"{path} is an exported file, which can only predict; name the run it was exported from")
    raise VitrailError(f"{path} has an unknown format; supported are .npz, .safetensors, .pth, and folders")


def held(tensor: Tensor) -> Tensor:
    """Copy a tensor: a mapped file may be overwritten, and its alignment changes the last bits of sums."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _safetensors(path: Path) -> Loose:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dict
        return Loose(_bare(tensors, str(path)), note=_note((file.metadata() or {}).get(NOTE, "")))


def _note(text: str) -> dict[str, Any]:
    """Parse the metadata that ``save`` wrote; other comments are ignored."""
    if not text.startswith('{"format"'):
        return {}
    try:
        return dict(json.loads(text))
    except (ValueError, RecursionError):
        raise VitrailError("the metadata stored with the weights is damaged") from None


def _npz(path: Path) -> Loose:
    tensors: dict[str, Tensor] = {}
    left: list[str] = []
    _refuse_bomb(path)
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.is_dir():
                continue
            try:
                with archive.open(entry) as stream:
                    array = _npy(stream, entry.file_size, f"{entry.filename} in {path}")
                    stream.read()  # to the end, so that the checksum is verified
            except VitrailError:
                raise
            except Exception as error:  # every codec has its own exceptions
                raise VitrailError(f"{entry.filename} in {path} cannot be read: {error}") from None
            name = entry.filename.removesuffix(".npy")
            if array is None:
                left.append(name)
            else:
                tensors[name] = array
        return Loose(tensors, left=left, note=_note(archive.comment.decode(errors="replace")))


def _refuse_bomb(path: Path) -> None:
    """Refuse an archive that unpacks to many times its size: weights hardly compress."""
    with zipfile.ZipFile(path) as archive:
        whole = sum(entry.file_size for entry in archive.infolist())
    with path.open("rb") as file:
        file.seek(-min(path.stat().st_size, 2**16 + 22), os.SEEK_END)
        end = file.read().rpartition(b"PK\x05\x06")[2]  # sixteen bytes, the length of a comment, the comment
    if len(end) < 18 + int.from_bytes(end[16:18], "little"):
        raise VitrailError(f"{path} cannot be read: its end is missing")
    if whole > 20 * path.stat().st_size + 2**20:
        raise VitrailError(f"{path} would unpack to {whole:,} bytes, {whole // path.stat().st_size} times its size; refused")


def _npy(stream: Any, size: int, where: str) -> Tensor | None:
    """Read one array after checking its header against the number of bytes; return None if it is not numeric."""
    version = np.lib.format.read_magic(stream)
    header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if header is None:
        raise VitrailError(f"{where} has an array of format {version}")
    shape, fortran, dtype = header(stream)
    if dtype.hasobject:
        raise VitrailError(f"{where} contains Python objects, which are never unpickled")
    expected, there = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if min(shape, default=0) < 0 or expected != there:
        raise VitrailError(f"{where} claims {expected:,} bytes and has {there:,}")
    bfloat16 = dtype.kind == "V" and dtype.itemsize == 2  # how numpy spells it
    if not bfloat16 and (dtype.kind not in "fiub" or dtype.itemsize > 8):
        return None
    array = np.frombuffer(bytearray(stream.read(expected)), dtype="<i2" if bfloat16 else dtype)
    array = array.reshape(shape, order="F" if fortran else "C")
    native = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("=")))
    return torch.from_numpy(native).view(torch.bfloat16) if bfloat16 else torch.from_numpy(native)


def _pth(path: Path) -> Loose:
    zipped = zipfile.is_zipfile(path)
    if zipped:
        _refuse_bomb(path)
    try:
        # Training scripts store their options in a Namespace, which only holds attributes. Warnings concern old pickle formats.
        with warnings.catch_warnings(action="ignore"), torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        what = re.search(r"GLOBAL (\S+)", str(error))
        if what is None:
            raise VitrailError(f"{path} cannot be read: it is not a torch file that contains only tensors") from None
        raise VitrailError(f"{path} would execute code when read ({what[1]}), which is never done") from None
    return _unwrapped(content, str(path))


def _unwrapped(content: Any, where: str) -> Loose:
    """Take the weights out of what training scripts save around them; the names of the other entries are kept."""
    wrapper, left = None, []
    for _ in range(8):  # wrappers are not nested deeper, but may contain themselves
        if not isinstance(content, Mapping):
            break
        inner = [name for name in WRAPPERS if isinstance(content.get(name), Mapping)]
        if not inner:
            break
        wrapper = inner[0]
        left += [
            str(name)
            for name, value in content.items()
            if name != wrapper and isinstance(value, Mapping | Tensor) and len(value)
        ]
        content = content[wrapper]
    if not isinstance(content, Mapping):
        raise VitrailError(f"{where} contains a {type(content).__name__}, not tensors by name")
    tensors = {str(name): tensor for name, tensor in content.items() if isinstance(tensor, Tensor)}
    if not tensors:
        raise VitrailError(f"{where} contains no tensors by name")
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise VitrailError(f"{where} must hold plain tensors, got {name} as a sparse, quantised or meta one")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise VitrailError(f"{where} claims more values for {name} than it contains")
    return Loose(_bare(tensors, where), wrapper=wrapper, left=left)


def _bare(tensors: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """Remove the prefix that wrapping a module adds to the names of its tensors."""
    while prefix := next((p for p in PREFIXES if sum(name.startswith(p) for name in tensors) > len(tensors) / 2), None):
        bare = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        if len(bare) < len(tensors):
            raise VitrailError(
                f"{where} has the same names with and without the prefix {prefix!r}; it is ambiguous which to use"
            )
        tensors = bare
    return tensors
