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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.weights.model_folder import read_json
from vitrail.weights.unwrap import strip_prefix, unwrap

INERT_GLOBALS = (
    *(f"numpy.{core}.multiarray.scalar" for core in ("core", "_core")),
    "numpy.dtype",
    *(
        f"numpy.dtypes.{kind}{bits}DType"
        for kind, sizes in (("Float", (16, 32, 64)), ("Int", (8, 16, 32, 64)), ("UInt", (8, 16, 32, 64)))
        for bits in sizes
    ),
    *(f"numpy.dtypes.{kind}DType" for kind in ("Bool", "Str", "Bytes", "LongLong", "ULongLong")),
    *(
        f"{module}.{name}"
        for module in ("pathlib", "pathlib._local")
        for name in ("Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath")
    ),
    *(f"datetime.{name}" for name in ("date", "datetime", "time", "timedelta", "timezone")),
    *(f"builtins.{name}" for name in ("dict", "float", "int", "list", "set", "str", "tuple")),  # what a defaultdict makes
    "types.SimpleNamespace",
)
SIDECAR_STEMS = ("model", "pytorch_model", "open_clip_model", "open_clip_pytorch_model")  # of files with a config.json
SEGMENTER_FILES = ("checkpoint.pth", "variant.yml")
MAX_VARIANT_BYTES = 2**20
METADATA_KEY = "vitrail"  # the key of our metadata in a safetensors header; an .npz has it in its comment
CLASS_NAMES_KEY = "class_names_of_timm"  # in the metadata of a folder whose tensors have the names of one of timm's classes


@dataclass(frozen=True)
class RawCheckpoint:
    """Tensors by name, with the metadata found in the file and next to it."""

    tensors: dict[str, Tensor]
    sidecar: dict[str, Any] = field(default_factory=dict)
    vitrail_metadata: dict[str, Any] = field(default_factory=dict)  # the metadata that our own ``save`` wrote
    wrapper: str | None = None  # the key under which the weights were nested
    unused: list[str] = field(default_factory=list)  # other entries of the file


def read_file(path: Path) -> RawCheckpoint:
    """Read a file of any supported format, or a folder of Hugging Face or timm."""
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise VitrailError(
            f"{path} does not exist; name a run, a model folder, a file of weights, hf:owner/name, or "
            "a published model (`vitrail models` lists them)"
        )
    sidecar = _read_sidecars(path.parent) if path.stem in SIDECAR_STEMS else _read_variant(path.parent)
    return replace(_without_prefix(_read_tensors(path), path), sidecar=sidecar)


def _read_folder(path: Path) -> RawCheckpoint:
    if (path / SEGMENTER_FILES[0]).is_file() and (path / SEGMENTER_FILES[1]).is_file():
        return read_file(path / SEGMENTER_FILES[0])
    sidecar = _read_sidecars(path)
    for name in ("model.safetensors", "pytorch_model.bin", "open_clip_model.safetensors", "open_clip_pytorch_model.bin"):
        if (path / f"{name}.index.json").is_file():
            shards = RawCheckpoint(_read_shards(path, path / f"{name}.index.json"), sidecar)
            return _without_prefix(shards, path)
        if (path / name).is_file():
            return replace(_without_prefix(_read_tensors(path / name), path / name), sidecar=sidecar)
    raise VitrailError(
        f"{path} contains no weights: no model.safetensors, no pytorch_model.bin; name a run or a model folder, and in a "
        "command the model before the data"
    )


def _without_prefix(raw: RawCheckpoint, path: Path) -> RawCheckpoint:
    tensors, others = strip_prefix(raw.tensors, str(path))
    return replace(raw, tensors=tensors, unused=[*raw.unused, *others])


def _read_sidecars(folder: Path) -> dict[str, Any]:
    sidecar = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    if (folder / "open_clip_config.json").is_file():
        sidecar = {**sidecar, "open_clip": read_json(folder / "open_clip_config.json")}
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            content = read_json(folder / name)
            return sidecar | {"preprocessor": content.get("image_processor", content)}
    return sidecar


def _read_variant(folder: Path) -> dict[str, Any]:
    """Read the settings next to the weights of Segmenter as text."""
    path = folder / SEGMENTER_FILES[1]
    if not path.is_file() or path.stat().st_size > MAX_VARIANT_BYTES:
        return {}
    return {path.name: path.read_text(errors="replace")}


def _read_shards(folder: Path, index: Path) -> dict[str, Tensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise VitrailError(f"{index} must have a weight_map of file names")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name or name in ("", ".", ".."):
            raise VitrailError(f"{index} points outside its folder: {name!r}")
        if not (folder / name).is_file():
            raise VitrailError(f"{folder} lacks the shard {name}")
        tensors |= _read_tensors(folder / name).tensors
    missing = [name for name in weight_map if name not in tensors]
    if missing:
        raise VitrailError(f"the shards of {folder} lack {', '.join(missing[:4])}")
    return tensors


def _read_tensors(path: Path) -> RawCheckpoint:
    try:
        match path.suffix.lower():
            case ".npz":
                return _read_npz(path)
            case ".safetensors":
                return _read_safetensors(path)
            case ".pth" | ".pt" | ".bin" | ".ckpt" | ".tar":
                return _read_pth(path)
    except VitrailError:
        raise
    except Exception as error:  # a damaged file can fail its reader in any way
        reason = str(error).strip().splitlines()
        raise VitrailError(f"{path} cannot be read: {reason[0] if reason else type(error).__name__}") from None
    if path.suffix.lower() in (".onnx", ".pt2"):
        raise VitrailError(f"{path} is an exported file, which can only predict; name the run it was exported from")
    raise VitrailError(f"{path} has an unknown format; supported are .npz, .safetensors, .pth, and folders")


def own_copy(tensor: Tensor) -> Tensor:
    """Copy a tensor: a mapped file may be overwritten, and its alignment changes the last bits of sums."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _read_safetensors(path: Path) -> RawCheckpoint:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        return RawCheckpoint(tensors, vitrail_metadata=_parse_metadata((file.metadata() or {}).get(METADATA_KEY, "")))


def _parse_metadata(text: str) -> dict[str, Any]:
    """Parse the metadata that ``save`` wrote; other comments are ignored."""
    if not text.startswith('{"format"'):
        return {}
    try:
        return dict(json.loads(text))
    except (ValueError, RecursionError):
        raise VitrailError("the metadata stored with the weights is damaged") from None


def _read_npz(path: Path) -> RawCheckpoint:
    tensors: dict[str, Tensor] = {}
    unused: list[str] = []
    _check_unpacked_size(path)
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.is_dir():
                continue
            try:
                with archive.open(entry) as stream:
                    array = _read_npy(stream, entry.file_size, f"{entry.filename} in {path}")
                    stream.read()  # to the end, so that the checksum is verified
            except VitrailError:
                raise
            except Exception as error:  # every codec has its own exceptions
                raise VitrailError(f"{entry.filename} in {path} cannot be read: {error}") from None
            name = entry.filename.removesuffix(".npy")
            if array is None:
                unused.append(name)
            else:
                tensors[name] = array
        return RawCheckpoint(tensors, unused=unused, vitrail_metadata=_parse_metadata(archive.comment.decode(errors="replace")))


def _check_unpacked_size(path: Path) -> None:
    """Refuse an archive that unpacks to many times its size: weights hardly compress."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    with path.open("rb") as file:
        file.seek(-min(path.stat().st_size, 2**16 + 22), os.SEEK_END)
        directory_end = file.read().rpartition(b"PK\x05\x06")[2]  # sixteen bytes, the length of a comment, the comment
    if len(directory_end) < 18 + int.from_bytes(directory_end[16:18], "little"):
        raise VitrailError(f"{path} cannot be read: its end is missing")
    if unpacked > 20 * path.stat().st_size + 2**20:
        raise VitrailError(
            f"{path} would unpack to {unpacked:,} bytes, {unpacked // path.stat().st_size} times its size; refused"
        )


def _read_npy(stream: Any, size: int, description: str) -> Tensor | None:
    """Read one array after checking its header against the number of bytes; return None if it is not numeric."""
    version = np.lib.format.read_magic(stream)
    header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if header is None:
        raise VitrailError(f"{description} has an array of format {version}")
    shape, fortran, dtype = header(stream)
    if dtype.hasobject:
        raise VitrailError(f"{description} contains Python objects, which are never unpickled")
    expected, available = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if min(shape, default=0) < 0 or expected != available:
        raise VitrailError(f"{description} claims {expected:,} bytes and has {available:,}")
    bfloat16 = dtype.kind == "V" and dtype.itemsize == 2  # how numpy spells it
    if not bfloat16 and (dtype.kind not in "fiub" or dtype.itemsize > 8):
        return None
    array = np.frombuffer(bytearray(stream.read(expected)), dtype="<i2" if bfloat16 else dtype)
    array = array.reshape(shape, order="F" if fortran else "C")
    native = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("=")))
    return torch.from_numpy(native).view(torch.bfloat16) if bfloat16 else torch.from_numpy(native)


class _Inert:
    """Stands for an object in a file that is not a tensor, such as a path or a date: nothing of it is made or kept."""

    def __new__(cls, *args: object) -> "_Inert":
        return object.__new__(cls)

    def __init__(self, *args: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def _empty_dict(*args: object) -> dict[Any, Any]:
    """Stand for a defaultdict: a plain dict, which the reader fills."""
    return {}


def _read_pth(path: Path) -> RawCheckpoint:
    zipped = zipfile.is_zipfile(path)
    if zipped:
        _check_unpacked_size(path)
        _refuse_torchscript(path)
    # Training scripts store their options in a Namespace, which only holds attributes.
    safe: list[Any] = [
        argparse.Namespace,
        (_empty_dict, "collections.defaultdict"),
        *((_Inert, name) for name in INERT_GLOBALS),
    ]
    try:
        # Warnings concern old pickle formats.
        with warnings.catch_warnings(action="ignore"), torch.serialization.safe_globals(safe):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        match = re.search(r"GLOBAL (\S+)", str(error))
        if match is None:
            raise VitrailError(f"{path} cannot be read: it is not a torch file that contains only tensors") from None
        raise VitrailError(f"{path} would execute code when read ({match[1]}), which is never done") from None
    tensors, wrapper, unused = unwrap(content, str(path))
    return RawCheckpoint(tensors, wrapper=wrapper, unused=unused)


def _refuse_torchscript(path: Path) -> None:
    """Refuse a program that torch.jit saved: it is code, of which the weights are a part."""
    with zipfile.ZipFile(path) as archive:
        parts = {entry.partition("/")[2] for entry in archive.namelist()}
    if "constants.pkl" in parts or any(part.startswith("code/") for part in parts):
        raise VitrailError(
            f"{path} is a TorchScript program, which is code with weights in it and never executed; "
            "try the same model's file of weights, such as a model.safetensors"
        )
