"""Run a ``torch.export`` program as a predictor."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Num
from numpy import ndarray

from vitrail.errors import VitrailError, first_line
from vitrail.inference.export_metadata import EXPORT_METADATA_KEY, parse_export_metadata
from vitrail.inference.exported_predictor import ExportedPredictor, check_image_shape, read_exported_file
from vitrail.inference.predictor import to_tensor
from vitrail.inference.program_allowlist import check_allowlist


class ProgramPredictor(ExportedPredictor):
    """Predictor that runs a ``torch.export`` program.

    The whole file is in memory; one that might do more than compute is refused before torch reads it.
    """

    backend = "program"

    def __init__(self, source: str | Path, threads: int | None = None) -> None:
        content, extra_files = read_exported_file(source, "program"), {EXPORT_METADATA_KEY: ""}
        check_allowlist(content, str(source))
        try:
            with suppress_warnings():
                self._program = torch.export.load(io.BytesIO(content), extra_files=extra_files).module()
        except Exception as error:  # a damaged file can fail its reader in any way
            raise VitrailError(f"{source} is damaged: {first_line(error)}") from None
        if threads is not None:
            torch.set_num_threads(threads)
        exported = parse_export_metadata(extra_files[EXPORT_METADATA_KEY], str(source))
        super().__init__(source, content, exported)
        height_and_width = [None, None] if exported.export.get("dynamic") else [*exported.preprocess.image_size]
        self._size = [*height_and_width, exported.config.channels]

    @torch.inference_mode()
    def outputs(self, images: Num[ndarray, "b height width c"]) -> Float32[ndarray, "b ..."]:
        check_image_shape(images, self._size, self)
        return self._program(to_tensor(np.ascontiguousarray(images)))[0].numpy()

    @torch.inference_mode()
    def named_outputs(self, images: Num[ndarray, "b height width c"]) -> dict[str, Num[ndarray, "b ..."]]:
        outputs = [each.numpy() for each in self._program(to_tensor(np.ascontiguousarray(images)))]
        names = list(self.task.export_outputs(torch.from_numpy(outputs[0]))) if self.has_outputs else ["features"]
        return dict(zip(names, outputs, strict=True))


@contextmanager
def suppress_warnings() -> Iterator[None]:
    """Suppress torch's warnings about deprecated classes that its own exporter uses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*LeafSpec", category=FutureWarning)
        yield
