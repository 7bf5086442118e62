"""Run an ONNX file by onnxruntime, whose telemetry is disabled before it is imported."""

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

INPUT = "images"
AT_ONCE = 2  # for Ti/16 in int8, 10 % more images per second than eight per run on one thread, 17 % on two


class OnnxEngine:
    """Predictor that runs an ONNX file in memory, configured by the file's own metadata."""

    name = "onnxruntime"

    def __init__(self, source: str | Path, threads: int | None = None) -> None:
        self.model = str(source)
        self._session = session(source, threads)
        self.told = _told(self._session.together, str(source))
        self.preprocess = self.told.preprocess
        self.labels = labels_of(self.told.labels, self.told.config.classes)
        self.sigmoid = is_sigmoid(self.told.facts)
        self._size = self._session.together.get_inputs()[0].shape[1:]  # a name where the size is dynamic
        self._most = 1 if self.told.export.get("activations") == "dynamic" else AT_ONCE  # else logits would depend on the batch

    def logits(self, pictures: UInt8[ndarray, "b height width c"]) -> Float32[ndarray, "b k"]:
        check_size(pictures, self._size, self.told)
        try:
            return self._session(pictures, self.told.output, self._most)
        except Exception as error:  # its exceptions have no common base class
            raise VitrailError(f"{self.model} cannot be run on these images: {_reason(error)}") from None


class Session:
    """An ONNX graph in memory. A single image uses all threads; a batch is divided among single-threaded runs of a few images,
    so that activations stay in each core's cache."""

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
    """Import onnxruntime, or say how to install it. Nothing else imports it."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # it would write a device id on import, and send events
    try:
        return import_module("onnxruntime")
    except ImportError:
        raise VitrailError("an ONNX file needs onnxruntime; try `pip install 'vitrail[onnx]'`") from None


def session(source: str | Path, threads: int | None = None) -> Session:
    """Read an ONNX file into a session on the CPU."""
    path = Path(source).expanduser()
    if not path.is_file():
        raise VitrailError(f"{source} does not exist; `vitrail export RUN --to onnx` writes such a file")
    try:
        return Session(path.read_bytes(), threads)
    except VitrailError:
        raise
    except OSError as error:
        raise VitrailError(f"{source} cannot be read: {error}") from None
    except Exception as error:  # its exceptions have no common base class
        raise VitrailError(f"{source} is not an ONNX file that onnxruntime can run: {_reason(error)}") from None


def over(content: bytes, threads: int | None = None) -> Any:
    library = onnxruntime()
    settings = library.SessionOptions()
    settings.log_severity_level = 4  # errors are raised
    settings.inter_op_num_threads = 1
    if threads is not None:
        settings.intra_op_num_threads = threads
    return library.InferenceSession(content, settings, providers=["CPUExecutionProvider"])


def check_size(pictures: ndarray, size: list[Any], told: Told) -> None:
    """Check dtype, height, width and channels against the graph's input; a name stands for a dynamic size."""
    if pictures.dtype != np.uint8 or pictures.ndim != 4:
        raise VitrailError(f"images must be uint8 (b, height, width, c), got {pictures.dtype} of {pictures.shape}")
    for name, have, want in zip(("height", "width", "channels"), pictures.shape[1:], size, strict=True):
        if isinstance(want, int) and have != want:
            raise VitrailError(f"the {name} of images must be {want}, got {have}; preprocess them as the file's metadata says")
    stride = getattr(told.config, "stride", (1, 1))
    if any(side % step or not side for side, step in zip(pictures.shape[1:3], stride, strict=True)):
        raise VitrailError(f"the size of images must be a multiple of {times(stride)}, got {times(pictures.shape[1:3])}")


def _told(opened: Any, source: str) -> Told:
    note = opened.get_modelmeta().custom_metadata_map.get(NOTE)
    if note is None:
        raise VitrailError(f"{source} has no Vitrail metadata; use a file that `vitrail export` wrote")
    return read_told(note, source)


def _reason(error: Exception) -> str:
    """Return onnxruntime's message without its error codes."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", lines[0])[:200]
