"""Predictors: uint8 images in, logits out; by torch, by onnxruntime for an ONNX file, or by a torch.export program.

Images are as ``vitrail.data.transforms.resize_and_crop`` returns them; each predictor normalises them itself.
b images, c channels, k classes.
"""

from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float32, UInt8
from numpy import ndarray

from vitrail.data.preprocess import Preprocess
from vitrail.data.transforms import normalise
from vitrail.errors import VitrailError
from vitrail.inference.features import require_preprocess
from vitrail.models.build import Model
from vitrail.models.speedup_config import Speedups
from vitrail.models.speedups import speed_up
from vitrail.system import select_device
from vitrail.weights.load import load

Backend = Literal["auto", "torch", "onnxruntime"]


@runtime_checkable
class Predictor(Protocol):
    """Computes logits of uint8 images; called from one thread at a time.

    All weights are in memory, so the file may be replaced or deleted while it is in use.
    """

    @property
    def backend(self) -> str:
        """The backend: ``torch``, ``onnxruntime`` or ``program``."""

    @property
    def source(self) -> str:
        """The path or name it was loaded from."""

    @property
    def preprocess(self) -> Preprocess: ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class, its index if it has no name; empty without a classifier."""

    @property
    def sigmoid(self) -> bool:
        """Whether class probabilities are independent sigmoids instead of a softmax."""

    def logits(self, images: UInt8[ndarray, "b height width c"]) -> Float32[ndarray, "b k"]:
        """Return the logits; for a model without a classifier, its features."""


def load_predictor(
    source: str | Path,
    backend: Backend = "auto",
    threads: int | None = None,
    speedups: Speedups | None = None,
    device: str = "auto",
) -> Predictor:
    """Load a predictor: for an exported file (.onnx, .pt2) the backend it needs, for anything ``vitrail.load`` reads torch.

    ``threads`` is the number of CPU threads of one call; ``speedups`` and ``device`` apply to torch only.
    """
    suffix = Path(source).suffix.lower()
    if threads is not None and threads < 1:
        raise VitrailError(f"threads must be at least 1, got {threads}; leave it out to use every core")
    if suffix not in (".onnx", ".pt2"):
        if backend == "onnxruntime":
            raise VitrailError(f"onnxruntime runs .onnx files, got {source}; try `vitrail export {source} --to onnx` first")
        return _load_torch(source, threads, speedups, device)
    if speedups is not None:
        raise VitrailError(speedup_fixed_message(source))
    if backend != "auto" and (backend == "onnxruntime") != (suffix == ".onnx"):
        required = "onnxruntime" if suffix == ".onnx" else "torch"
        raise VitrailError(f"{source} must be run by {required}, got {backend}; leave the backend out")
    from vitrail.inference.onnx_predictor import OnnxPredictor
    from vitrail.inference.program_predictor import ProgramPredictor

    return OnnxPredictor(source, threads) if suffix == ".onnx" else ProgramPredictor(source, threads)


class TorchPredictor:
    """Predictor that runs a Vitrail model by torch."""

    backend = "torch"

    def __init__(self, model: Model, source: str = "a model") -> None:
        self.source = source
        self.preprocess = require_preprocess(model)
        self.class_names = class_names_or_indices(model.class_names, model.config.classes)
        self.sigmoid = trained_with_sigmoid(model.metadata)
        self.module = model.eval()

    @torch.inference_mode()
    def logits(self, images: UInt8[ndarray, "b height width c"]) -> Float32[ndarray, "b k"]:
        weight = next(self.module.parameters())
        normalised = normalise(rearrange(to_tensor(images), "b h w c -> b c h w").float().contiguous(), self.preprocess)
        return self.module(normalised.to(weight.device, weight.dtype)).float().cpu().numpy()


def speedup_fixed_message(source: str | Path) -> str:
    return f"{source} is an exported file, which cannot be sped up; give these options to `vitrail export`"


def class_names_or_indices(names: tuple[str, ...] | None, classes: int) -> tuple[str, ...]:
    return names or tuple(str(index) for index in range(classes))


def trained_with_sigmoid(metadata: dict[str, object]) -> bool:
    """Return whether the model was trained with the sigmoid loss, so that class probabilities are independent."""
    recipe = metadata.get("recipe")
    return isinstance(recipe, dict) and recipe.get("loss") == "sigmoid"


def to_tensor(images: UInt8[ndarray, "b height width c"]) -> torch.Tensor:
    """Convert an array to a tensor, without a copy if possible."""
    return torch.from_numpy(np.require(images, requirements=["C", "W"]))


def _load_torch(source: str | Path, threads: int | None, speedups: Speedups | None, device: str) -> Predictor:
    if threads is not None:
        torch.set_num_threads(threads)
    model = load(source, image=None if speedups is None else speedups.image)
    if speedups is not None:
        model = speed_up(model, speedups)
    return TorchPredictor(model.to(select_device(device)), str(source))
