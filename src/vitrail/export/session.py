"""An ONNX file at work in onnxruntime. Nobody is told of it: its telemetry is off before it is imported."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from numpy import ndarray

from vitrail.errors import VitrailError
from vitrail.export.engine import is_sigmoid, labels_of
from vitrail.export.travelling import NOTE, Told, read_told
from vitrail.models.settings import times

INPUT = "pictures"
AT_ONCE = 2  # pictures: of Ti/16 in 8 bits, a tenth more a second than eight at once on one thread, a sixth on two


class OnnxEngine:
    """Reads the whole file into memory; what it must know of the model is in the file's own note."""

    name = "onnxruntime"

    def __init__(self, source: str | Path, threads: int | None = None) -> None:
        self.model = str(source)
        self._session = session(source, threads)
        self.told = _told(self._session.together, str(source))
        self.preprocess = self.told.preprocess
        self.labels = labels_of(self.told.labels, self.told.config.classes)
        self.sigmoid = is_sigmoid(self.told.facts)
        self._size = self._session.together.get_inputs()[0].shape[1:]  # a name where any number will do
        self._most = 1 if self.told.export.get("activations") == "dynamic" else AT_ONCE  # or answers depend on the others

    def logits(self, pictures: UInt8[ndarray, "b height width c"]) -> Float32[ndarray, "b k"]:
        check_size(pictures, self._size, self.told)
        try:
            return self._session(pictures, self.told.output, self._most)
        except Exception as error:  # its own exceptions share no base
            raise VitrailError(f"{self.model} cannot be run on these pictures: {_reason(error)}") from None


class Session:
    """A graph in memory. One picture has all threads; of several, each thread takes a few at a time, so that what it works on
    stays in its cache and none waits for another."""

    def __init__(self, content: bytes, threads: int | None = None) -> None:
        self.threads = threads or torch.get_num_threads()
        self.together = over(content, self.threads)
        self._apart = over(content, 1) if self.threads > 1 else self.together
        self._pool = ThreadPoolExecutor(self.threads)

    def __call__(
        self, pictures: UInt8[ndarray, "b height width c"], output: str, most: int = AT_ONCE
    ) -> Float32[ndarray, "b k"]:
        pictures = np.ascontiguousarray(pictures)
        count = len(pictures)
        if count <= 1:
            return self.together.run([output], {INPUT: pictures})[0]
        each = min(most, -(-count // self.threads))
        parts = [{INPUT: pictures[start : start + each]} for start in range(0, count, each)]
        return np.concatenate(list(self._pool.map(lambda part: self._apart.run([output], part)[0], parts)))


def onnxruntime() -> ModuleType:
    """The library, or a sentence that says how to get it. The one place that imports it."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # it would write a device id on import, and send events
    try:
        return import_module("onnxruntime")
    except ImportError:
        raise VitrailError("an ONNX file needs onnxruntime; try `pip install 'vitrail[onnx]'`") from None


def session(source: str | Path, threads: int | None = None) -> Session:
    """A session on the CPU over the bytes of the file."""
    path = Path(source).expanduser()
    if not path.is_file():
        raise VitrailError(f"{source} does not exist; `vitrail export RUN --to onnx` makes such a file")
    try:
        return Session(path.read_bytes(), threads)
    except VitrailError:
        raise
    except OSError as error:
        raise VitrailError(f"{source} cannot be read: {error}") from None
    except Exception as error:  # its own exceptions share no base
        raise VitrailError(f"{source} is no ONNX file that onnxruntime can run: {_reason(error)}") from None


def over(content: bytes, threads: int | None = None) -> Any:
    library = onnxruntime()
    settings = library.SessionOptions()
    settings.log_severity_level = 4  # what is wrong is raised
    settings.inter_op_num_threads = 1
    if threads is not None:
        settings.intra_op_num_threads = threads
    return library.InferenceSession(content, settings, providers=["CPUExecutionProvider"])


def check_size(pictures: ndarray, size: list[Any], told: Told) -> None:
    """Height, width and channels as the graph has them; a name stands for any number."""
    if pictures.dtype != np.uint8 or pictures.ndim != 4:
        raise VitrailError(f"pictures must be uint8 (b, height, width, c), got {pictures.dtype} of {pictures.shape}")
    for name, have, want in zip(("high", "wide", "channels deep"), pictures.shape[1:], size, strict=True):
        if isinstance(want, int) and have != want:
            raise VitrailError(f"pictures must be {want} {name}, got {have}; they are made ready by the file's preprocessing")
    stride = getattr(told.config, "stride", (1, 1))
    if any(side % step or not side for side, step in zip(pictures.shape[1:3], stride, strict=True)):
        raise VitrailError(f"pictures must be a multiple of {times(stride)}, got {times(pictures.shape[1:3])}")


def _told(opened: Any, source: str) -> Told:
    note = opened.get_modelmeta().custom_metadata_map.get(NOTE)
    if note is None:
        raise VitrailError(f"{source} does not say what it is; it takes a file that `vitrail export` made")
    return read_told(note, source)


def _reason(error: Exception) -> str:
    """What onnxruntime says, without its codes."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", lines[0])[:200]
