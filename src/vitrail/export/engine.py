"""Predictors: uint8 images in, logits out; by torch, by onnxruntime for an ONNX file, or by a torch.export program.

Images are as ``vitrail.data.prepare.fitted`` returns them; each predictor normalises them itself.
b images, c channels, k classes.
"""

from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float32, UInt8
from numpy import ndarray

from vitrail.data.prepare import normalise
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.evaluate.features import preprocess_of
from vitrail.models.build import Model
from vitrail.models.device import device as chosen
from vitrail.models.faster import Faster
from vitrail.models.faster import faster as quickened
from vitrail.weights.load import load

Kind = Literal["auto", "torch", "onnxruntime"]


@runtime_checkable
class Engine(Protocol):
    """Computes logits of uint8 images; called from one thread at a time.

    All weights are in memory, so the file may be replaced or deleted while it is in use.
    """

    @property
    def name(self) -> str:
        """The backend: ``torch``, ``onnxruntime`` or ``program``."""

    @property
    def model(self) -> str:
        """The path or name it was loaded from."""

    @property
    def preprocess(self) -> Preprocess: ...

    @property
    def labels(self) -> tuple[str, ...]:
        """One name per class, its index if it has no name; empty without a classifier."""

    @property
    def sigmoid(self) -> bool:
        """Whether class probabilities are independent sigmoids instead of a softmax."""

    def logits(self, pictures: UInt8[ndarray, "b height width c"]) -> Float32[ndarray, "b k"]:
        """Return the logits; for a model without a classifier, its features."""


def open_engine(
    source: str | Path,
    kind: Kind = "auto",
    threads: int | None = None,
    faster: Faster | None = None,
    device: str = "auto",
) -> Engine:
    """Load a predictor: for an exported file (.onnx, .pt2) the backend it needs, for anything ``vitrail.load`` reads torch.

    ``threads`` is the number of CPU threads of one call; ``faster`` and ``device`` apply to torch only.
    """
    ending = Path(source).suffix.lower()
    if threads is not None and threads < 1:
        raise VitrailError(f"threads must be at least 1, got {threads}; leave it out to use every core")
    if ending not in (".onnx", ".pt2"):
        if kind == "onnxruntime":
            raise VitrailError(f"onnxruntime runs .onnx files, got {source}; try `vitrail export {source} --to onnx` first")
        return _by_torch(source, threads, faster, device)
    if faster is not None:
        raise VitrailError(as_exported(source))
    if kind != "auto" and (kind == "onnxruntime") != (ending == ".onnx"):
        engine = "onnxruntime" if ending == ".onnx" else "torch"
        raise VitrailError(f"{source} must be run by {engine}, got {kind}; leave the engine out")
    from vitrail.export.program import ProgramEngine
    from vitrail.export.session import OnnxEngine

    return OnnxEngine(source, threads) if ending == ".onnx" else ProgramEngine(source, threads)


class TorchEngine:
    """Predictor that runs a Vitrail model by torch."""

    name = "torch"

    def __init__(self, model: Model, source: str = "a model") -> None:
        self.model = source
        self.preprocess = preprocess_of(model)
        self.labels = labels_of(model.labels, model.config.classes)
        self.sigmoid = is_sigmoid(model.facts)
        self.module = model.eval()

    @torch.inference_mode()
    def logits(self, pictures: UInt8[ndarray, "b height width c"]) -> Float32[ndarray, "b k"]:
        weight = next(self.module.parameters())
        images = normalise(rearrange(tensor(pictures), "b h w c -> b c h w").float().contiguous(), self.preprocess)
        return self.module(images.to(weight.device, weight.dtype)).float().cpu().numpy()


def as_exported(source: str | Path) -> str:
    return f"{source} is an exported file, which cannot be sped up; give these options to `vitrail export`"


def labels_of(names: tuple[str, ...] | None, classes: int) -> tuple[str, ...]:
    return names or tuple(str(number) for number in range(classes))


def is_sigmoid(facts: dict[str, object]) -> bool:
    """Return whether the model was trained with the sigmoid loss, so that class probabilities are independent."""
    recipe = facts.get("recipe")
    return isinstance(recipe, dict) and recipe.get("loss") == "sigmoid"


def tensor(pictures: UInt8[ndarray, "b height width c"]) -> torch.Tensor:
    """Convert an array to a tensor, without a copy if possible."""
    return torch.from_numpy(np.require(pictures, requirements=["C", "W"]))


def _by_torch(source: str | Path, threads: int | None, faster: Faster | None, device: str) -> Engine:
    if threads is not None:
        torch.set_num_threads(threads)
    model = load(source, image=None if faster is None else faster.image)
    if faster is not None:
        model = quickened(model, faster)
    return TorchEngine(model.to(chosen(device)), str(source))
