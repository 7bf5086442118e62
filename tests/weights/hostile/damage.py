"""Small files of every format and ways to damage them, for the tests of hostile files."""

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.small_models import small_vit
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.weights.convert.inspect import Origin
from vitrail.weights.load import load
from vitrail.weights.save import save

ROOT = Path(__file__).parents[3]
SMALL_CONFIG: dict[str, Any] = {"depth": 1, "patch": (5, 5), "image": (10, 10)}
IMAGES = torch.randn(2, 3, 10, 10)
MAX_MEGABYTES = 1_000  # of peak memory, of which importing torch takes a quarter
FILES: dict[Origin, str] = {
    "official": "official.npz",
    "timm": "timm.safetensors",
    "torchvision": "torchvision.pth",
    "huggingface": "huggingface",
    "vitrail": "own",
}


def refusal_message(source: str | Path, **overrides: Any) -> str:
    """Return the message with which a source was refused."""
    with pytest.raises(VitrailError) as caught:
        load(source, **overrides)
    assert _is_clear_message(str(caught.value)), str(caught.value)[:2000]
    return str(caught.value)


def load_outcome(source: str | Path, **overrides: Any) -> str:
    """Return ``loaded``, ``refused``, or what else happened."""
    try:
        load(source, **overrides)
    except VitrailError as error:
        return "refused" if _is_clear_message(str(error)) else f"not a clear message: {str(error)[:200]!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "loaded"


def _is_clear_message(text: str) -> bool:
    return text.isprintable() and len(text) < 1000


def save_small(format: Origin, folder: Path, **changes: Any) -> Path:
    gelu = "exact" if format in ("timm", "torchvision") else "tanh"
    model = small_vit(**{**SMALL_CONFIG, "gelu": gelu, **changes})
    model.preprocess = Preprocess((10, 10), crop_pct=0.5)
    model.class_names = ("ant", "bee", "cat", "dog", "elk")
    return save(model, folder / FILES[format], format=format)


def read_tensors(path: Path) -> dict[str, Tensor]:
    match path.suffix:
        case ".npz":
            with np.load(path) as file:
                return {name: torch.from_numpy(file[name]) for name in file.files}
        case ".pth":
            tensors: dict[str, Tensor] = torch.load(path)
            return tensors
        case ".safetensors":
            return load_file(path)
    return load_file(path / "model.safetensors")


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> Path:
    match path.suffix:
        case ".npz":
            arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
            np.savez(path, **arrays)
        case ".pth":
            torch.save(tensors, path)
        case _:
            file = path / "model.safetensors" if path.is_dir() else path
            save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, file)
    return path


def write_arrays(path: Path, arrays: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return path


def npy_bytes(array: Any, **header: Any) -> bytes:
    """Return an array's bytes with a header that may be wrong."""
    stream = io.BytesIO()
    order = array.flags.f_contiguous and not array.flags.c_contiguous
    correct = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": order, "shape": array.shape}
    np.lib.format.write_array_header_1_0(stream, {**correct, **header})
    return stream.getvalue() + array.tobytes("A")


def write_safetensors(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


class Exploit:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def read_arrays(path: Path) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in read_tensors(path).items()}
