"""Predictors: uint8 images, or bands in float32, in, outputs out; by torch, by onnxruntime for an ONNX file, or by a
torch.export program.

Images are as ``vitrail.data.transforms.to_pixels`` returns them; each predictor normalises them itself.
b images, c channels, k outputs per image, d wide.
"""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Float32, Num
from numpy import ndarray
from torch import Tensor, nn

from vitrail.data.preprocess import Preprocess
from vitrail.data.transforms import normalise
from vitrail.errors import VitrailError
from vitrail.inference.model_hash import features_hash, model_hash
from vitrail.models.build import get_encoder
from vitrail.models.config import ModelConfig
from vitrail.models.resnet import ResNet
from vitrail.models.vit import ViT
from vitrail.tasks.registry import recorded_task
from vitrail.tasks.task import Task


class Predictor(ABC):
    """Computes outputs of images; called from one thread at a time.

    All weights are in memory, so the file may be replaced or deleted while it is in use.
    """

    backend: str  # torch, onnxruntime or program

    def __init__(
        self,
        source: str,
        config: ModelConfig,
        preprocess: Preprocess,
        names: tuple[str, ...] | None,
        metadata: dict[str, Any],
        has_decoder: bool = False,
    ) -> None:
        self.source = source  # the path or name it was loaded from
        self.config, self.preprocess = config, preprocess
        self.names = names  # of the classes, None if the file has none
        self.metadata = metadata  # from its file: recipe, dataset, metrics
        self.has_outputs = has_decoder or config.classes > 0  # besides features

    @cached_property
    def task(self) -> Task:
        """The task that the model was trained for, which knows what the outputs mean."""
        return recorded_task(self.config, self.preprocess, self.names, self.metadata)

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class, its index if it has no name; empty without a classifier."""
        return self.task.class_names

    @abstractmethod
    def outputs(self, images: Num[ndarray, "b height width c"]) -> Float32[ndarray, "b ..."]:
        """Return the outputs of the model, such as logits; of a model without a classifier, its features."""

    def features(self, images: Num[ndarray, "b height width c"]) -> Float32[ndarray, "b d"]:
        """Return the features before the head."""
        if self.has_outputs:
            raise VitrailError(f"{self.source} can only predict, since it was exported; use the run it was exported from")
        return self.outputs(images)

    @abstractmethod
    def hash(self) -> str:
        """Return a hash of all that the outputs depend on, the same on every host and device."""

    def features_hash(self) -> str:
        """Return a hash of all that the features depend on, which excludes the head."""
        return self.hash()

    def to(self, device: torch.device) -> "Predictor":
        """Move the weights to a device, if they are torch's."""
        return self


def require_outputs(predictor: Predictor) -> Predictor:
    """Raise unless the model predicts something."""
    if not predictor.has_outputs:
        raise VitrailError("the model has no classifier (classes=0); add one first: vitrail finetune RUN DATA")
    return predictor


def require_classifier(predictor: Predictor, purpose: str = "this") -> Predictor:
    """Raise unless the model is a classifier."""
    if not require_outputs(predictor).task.has_classes:
        kind = predictor.task.config.name
        raise VitrailError(f"{purpose} needs a classifier, and {predictor.source} is a model for {kind}; name a classifier")
    return predictor


class NonFiniteOutputs(VitrailError):
    """The outputs of a model for an image are not finite."""


def require_finite(outputs: Float[Tensor, "*shape"], predictor: Predictor) -> Float[Tensor, "*shape"]:
    """Raise unless the outputs are finite."""
    if not outputs.isfinite().all():
        raise NonFiniteOutputs(f"makes the model's {predictor.task.output_name} non-finite (NaN/Inf)")
    return outputs


def require_preprocess(model: nn.Module) -> Preprocess:
    described: Any = model
    preprocess: Preprocess | None = described.preprocess
    if preprocess is None:
        raise VitrailError(
            "the model has no preprocessing config; set model.preprocess, such as "
            "vitrail.data.preprocess.vit_preprocess(model.config.image)"
        )
    if not preprocess.raw and preprocess.channels not in (1, 3):
        raise VitrailError(
            f"the model takes {preprocess.channels} bands, and its preprocessing is for 8-bit images, which have 1 or 3; set "
            "model.preprocess with raw=True and the mean and std of the bands, or fine-tune it on such images"
        )
    return preprocess


class TorchPredictor(Predictor):
    """Predictor that runs a Vitrail model by torch."""

    backend = "torch"

    def __init__(self, model: nn.Module, source: str = "the model") -> None:
        self.model: Any = model
        self.encoder = get_encoder(model)
        if not isinstance(self.encoder, ViT | ResNet):
            kind = type(model).__name__
            raise VitrailError(f"the model must be one of vitrail.load or vitrail.build, got a {kind}; give it, or its path")
        encoder, preprocess = self.encoder, require_preprocess(self.encoder)
        super().__init__(
            source, encoder.config, preprocess, encoder.class_names, encoder.metadata, has_decoder=encoder is not model
        )

    def outputs(self, images: Num[ndarray, "b height width c"]) -> Float32[ndarray, "b ..."]:
        return self._run(self.model, images)

    def features(self, images: Num[ndarray, "b height width c"]) -> Float32[ndarray, "b d"]:
        return self._run(self.encoder.features, images)

    @torch.inference_mode()
    def _run(self, function: Any, images: ndarray) -> ndarray:
        was_training = self.model.training
        try:
            if was_training:
                self.model.eval()
            return function(self.normalised(images)).float().cpu().numpy()
        finally:
            if was_training:
                self.model.train()

    def normalised(self, images: Num[ndarray, "b height width c"]) -> Float[Tensor, "b c height width"]:
        """Return the images as the model takes them, on its device and in its precision."""
        weight = next(self.model.parameters())
        pixels = rearrange(to_tensor(images), "b h w c -> b c h w").to(torch.float32, memory_format=torch.contiguous_format)
        return normalise(pixels, self.preprocess).to(weight.device, weight.dtype)

    def hash(self) -> str:
        return model_hash(self.model)

    def features_hash(self) -> str:
        return features_hash(self.encoder)

    def to(self, device: torch.device) -> "TorchPredictor":
        self.model.to(device)
        return self


def to_tensor(images: Num[ndarray, "b height width c"]) -> Num[Tensor, "b height width c"]:
    """Convert an array to a tensor, without a copy if possible."""
    return torch.from_numpy(images if images.flags.writeable else np.array(images))
