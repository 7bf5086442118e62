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
from jaxtyping import Float32, Num
from numpy import ndarray

from vitrail.errors import VitrailError
from vitrail.inference.export_metadata import EXPORT_METADATA_KEY, ExportMetadata, parse_export_metadata
from vitrail.inference.exported_predictor import ExportedPredictor, check_image_shape, read_exported_file

INPUT_NAME = "images"
IMAGES_PER_RUN = 2  # for Ti/16 in int8, 10 % more images per second than eight per run on one thread, 17 % on two


class OnnxPredictor(ExportedPredictor):
    """Predictor that runs an ONNX file in memory, configured by the file's own metadata."""

    backend = "onnxruntime"

    def __init__(self, source: str | Path, threads: int | None = None) -> None:
        content = read_exported_file(source, "onnx")
        self._session = open_session(content, source, threads)
        exported = _read_metadata(self._session.multi_threaded, str(source))
        super().__init__(source, content, exported)
        self._input_shape = self._session.multi_threaded.get_inputs()[0].shape[1:]  # a name where the size is dynamic
        # With dynamic activation scales, logits would depend on the rest of the batch.
        self._images_per_run = 1 if exported.export.get("activations") == "dynamic" else IMAGES_PER_RUN

    def outputs(self, images: Num[ndarray, "b height width c"]) -> Float32[ndarray, "b ..."]:
        check_image_shape(images, self._input_shape, self)
        try:
            return self._session(images, self._images_per_run)
        except Exception as error:  # its exceptions have no common base class
            raise VitrailError(f"{self.source} cannot be run on these images: {_error_message(error)}") from None

    def named_outputs(self, images: Num[ndarray, "b height width c"]) -> dict[str, Num[ndarray, "b ..."]]:
        session = self._session.multi_threaded
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, {INPUT_NAME: np.ascontiguousarray(images)}), strict=True))


class OnnxSession:
    """An ONNX graph in memory. A single image uses all threads; a batch is divided among single-threaded runs of a few images,
    so that activations stay in each core's cache."""

    def __init__(self, content: bytes, threads: int | None = None) -> None:
        self.threads = threads or torch.get_num_threads()
        self.multi_threaded = create_inference_session(content, self.threads)
        self._single_threaded = create_inference_session(content, 1) if self.threads > 1 else self.multi_threaded
        self._pool = ThreadPoolExecutor(self.threads)

    def __call__(
        self, images: Num[ndarray, "b height width c"], images_per_run: int = IMAGES_PER_RUN
    ) -> Float32[ndarray, "b ..."]:
        """Return the first output."""
        images, output = np.ascontiguousarray(images), self.multi_threaded.get_outputs()[0].name
        count = len(images)
        if count <= 1:
            return self.multi_threaded.run([output], {INPUT_NAME: images})[0]
        chunk_size = min(images_per_run, -(-count // self.threads))
        feeds = [{INPUT_NAME: images[start : start + chunk_size]} for start in range(0, count, chunk_size)]
        return np.concatenate(list(self._pool.map(lambda feed: self._single_threaded.run([output], feed)[0], feeds)))


def import_onnxruntime() -> ModuleType:
    """Import onnxruntime, or say how to install it. Nothing else imports it."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # it would write a device id on import, and send events
    try:
        return import_module("onnxruntime")
    except ImportError:
        raise VitrailError("an ONNX file needs onnxruntime; try pip install 'vitrail[onnx]'") from None


def open_session(content: bytes, source: str | Path, threads: int | None = None) -> OnnxSession:
    """Open the content of an ONNX file on the CPU."""
    try:
        return OnnxSession(content, threads)
    except VitrailError:
        raise
    except Exception as error:  # its exceptions have no common base class
        raise VitrailError(f"{source} is not an ONNX file that onnxruntime can run: {_error_message(error)}") from None


def create_inference_session(content: bytes, threads: int | None = None) -> Any:
    library = import_onnxruntime()
    options = library.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    options.inter_op_num_threads = 1
    if threads is not None:
        options.intra_op_num_threads = threads
    return library.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _read_metadata(inference_session: Any, source: str) -> ExportMetadata:
    text = inference_session.get_modelmeta().custom_metadata_map.get(EXPORT_METADATA_KEY)
    if text is None:
        raise VitrailError(f"{source} has no Vitrail metadata; use a file that `vitrail export` wrote")
    return parse_export_metadata(text, source)


def _error_message(error: Exception) -> str:
    """Return onnxruntime's message without its error codes."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", lines[0])[:200]
