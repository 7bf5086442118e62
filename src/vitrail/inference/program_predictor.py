"""Run a ``torch.export`` program as a predictor."""

import hashlib
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from numpy import ndarray

from vitrail.errors import VitrailError, first_line
from vitrail.inference.export_metadata import EXPORT_METADATA_KEY, parse_export_metadata
from vitrail.inference.onnx_predictor import check_image_shape, read_exported_file
from vitrail.inference.predictor import Predictor, to_tensor
from vitrail.inference.program_allowlist import check_allowlist


class ProgramPredictor(Predictor):
    """Predictor that runs a ``torch.export`` program.

    The whole file is in memory; one that might do more than compute is refused before torch reads it.
    """

    backend = "program"

    def __init__(self, source: str | Path, threads: int | None = None) -> None:
        content, extra_files = read_exported_file(source, "program"), {EXPORT_METADATA_KEY: ""}
        self._sha256 = hashlib.sha256(content).hexdigest()
        check_allowlist(content, str(source))
        try:
            with suppress_warnings():
                self._program = torch.export.load(io.BytesIO(content), extra_files=extra_files).module()
        except Exception as error:  # a damaged file can fail its reader in any way
            raise VitrailError(f"{source} is damaged: {first_line(error)}") from None
        if threads is not None:
            torch.set_num_threads(threads)
        self.exported = exported = parse_export_metadata(extra_files[EXPORT_METADATA_KEY], str(source))
        super().__init__(str(source), exported.config, exported.preprocess, exported.class_names, exported.training)
        height_and_width = [None, None] if exported.export.get("dynamic") else [*exported.preprocess.image_size]
        self._size = [*height_and_width, exported.config.channels]

    @torch.inference_mode()
    def outputs(self, images: UInt8[ndarray, "b height width c"]) -> Float32[ndarray, "b ..."]:
        check_image_shape(images, self._size, self.config)
        return self._program(to_tensor(np.ascontiguousarray(images)))[0].numpy()

    def hash(self) -> str:
        return self._sha256


@contextmanager
def suppress_warnings() -> Iterator[None]:
    """Suppress torch's warnings about deprecated classes that its own exporter uses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*LeafSpec", category=FutureWarning)
        yield
