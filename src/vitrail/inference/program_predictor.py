"""Run a ``torch.export`` program as a predictor."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from jaxtyping import Float32, UInt8
from numpy import ndarray

from vitrail.errors import VitrailError
from vitrail.inference.export_metadata import EXPORT_METADATA_KEY, parse_export_metadata
from vitrail.inference.onnx_predictor import check_image_shape
from vitrail.inference.predictor import class_names_or_indices, to_tensor, trained_with_sigmoid
from vitrail.inference.program_allowlist import check_allowlist


class ProgramPredictor:
    """Predictor that runs a ``torch.export`` program.

    The whole file is in memory; one that might do more than compute is refused before torch reads it.
    """

    backend = "program"

    def __init__(self, source: str | Path, threads: int | None = None) -> None:
        self.source = str(source)
        path, extra_files = Path(source).expanduser(), {EXPORT_METADATA_KEY: ""}
        if not path.is_file():
            raise VitrailError(f"{source} does not exist; `vitrail export RUN --to program` writes such a file")
        content = path.read_bytes()
        check_allowlist(content, str(source))
        try:
            with suppress_warnings():
                self._run = torch.export.load(io.BytesIO(content), extra_files=extra_files).module()
        except Exception as error:  # a damaged file can fail its reader in any way
            raise VitrailError(f"{source} is damaged: {first_line(error)}") from None
        if threads is not None:
            torch.set_num_threads(threads)
        self.metadata = parse_export_metadata(extra_files[EXPORT_METADATA_KEY], str(source))
        self.preprocess = self.metadata.preprocess
        self.class_names = class_names_or_indices(self.metadata.class_names, self.metadata.config.classes)
        self.sigmoid = trained_with_sigmoid(self.metadata.training)
        height_and_width = [None, None] if self.metadata.export.get("dynamic") else [*self.metadata.preprocess.image_size]
        self._size = [*height_and_width, self.metadata.config.channels]

    @torch.inference_mode()
    def logits(self, images: UInt8[ndarray, "b height width c"]) -> Float32[ndarray, "b k"]:
        check_image_shape(images, self._size, self.metadata)
        return self._run(to_tensor(images))[0].numpy()


@contextmanager
def suppress_warnings() -> Iterator[None]:
    """Suppress torch's warnings about deprecated classes that its own exporter uses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*LeafSpec", category=FutureWarning)
        yield


def first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
