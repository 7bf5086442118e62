"""The common part of predictors of exported files: the file in memory, its metadata and hash, checks of the input."""

import hashlib
from abc import abstractmethod
from pathlib import Path
from typing import Any

from jaxtyping import Num
from numpy import ndarray

from vitrail.errors import VitrailError
from vitrail.inference.export_metadata import ExportMetadata
from vitrail.inference.predictor import Predictor
from vitrail.models.config import format_size


class ExportedPredictor(Predictor):
    """Predictor of an exported file, configured by the file's own metadata."""

    def __init__(self, source: str | Path, content: bytes, exported: ExportMetadata) -> None:
        super().__init__(
            str(source),
            exported.config,
            exported.preprocess,
            exported.class_names,
            exported.training,
            has_decoder=bool(exported.export.get("decoder")),
        )
        self._sha256 = hashlib.sha256(content).hexdigest()

    def hash(self) -> str:
        return self._sha256

    @abstractmethod
    def named_outputs(self, images: Num[ndarray, "b height width c"]) -> dict[str, Num[ndarray, "b ..."]]:
        """Return all that the file computes, by name: first the outputs of the model, then what its task exports besides."""


def read_exported_file(source: str | Path, to: str) -> bytes:
    path = Path(source).expanduser()
    if not path.is_file():
        raise VitrailError(f"{source} does not exist; `vitrail export RUN --to {to}` writes such a file")
    try:
        return path.read_bytes()
    except OSError as error:
        raise VitrailError(f"{source} cannot be read: {error}") from None


def check_image_shape(images: ndarray, expected: list[Any], predictor: Predictor) -> None:
    """Check dtype, height, width and channels against the graph's input; a name stands for a dynamic size."""
    pixel_type, config = predictor.preprocess.pixel_type, predictor.config
    if images.dtype != pixel_type or images.ndim != 4:
        raise VitrailError(f"images must be {pixel_type} (b, height, width, c), got {images.dtype} of {images.shape}")
    for name, actual, required in zip(("height", "width", "channels"), images.shape[1:], expected, strict=True):
        if isinstance(required, int) and actual != required:
            raise VitrailError(
                f"the {name} of images must be {required}, got {actual}; preprocess them as the file's metadata says"
            )
    stride = getattr(config, "patch_stride", (1, 1))
    if any(side % step or not side for side, step in zip(images.shape[1:3], stride, strict=True)):
        raise VitrailError(
            f"the size of images must be a multiple of {format_size(stride)}, got {format_size(images.shape[1:3])}"
        )
