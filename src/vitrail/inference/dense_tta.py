"""Test-time augmentation of masks: the mean of the class probabilities of each pixel over several views of an image.

``flip``: the image and its mirror image, whose prediction is mirrored back. ``scales``: the image at 0.75, 1 and 1.25 times the
model's input size, rounded to whole patches, each with its mirror image; the probabilities are brought back bilinearly. The
image is read at the largest of these sizes, from which the others are resized. b images, c channels, k classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Float32, Num
from numpy import ndarray
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.inference.predictor import Predictor, TorchPredictor
from vitrail.inference.tta import TTAMode
from vitrail.models.config import ViTConfig

SCALES = (0.75, 1.0, 1.25)
LEAST_PROBABILITY = 1e-12  # so that every logarithm is finite


class DenseTTAPredictor(Predictor):
    """Returns the logarithms of mean probabilities, which are usable as logits."""

    def __init__(self, predictor: Predictor, mode: TTAMode) -> None:
        if mode == "crops":
            raise VitrailError("crops show parts of an image, and segmentation needs all of it; try tta=flip or tta=scales")
        self.sizes = [predictor.preprocess.image_size]
        if mode == "scales":
            self.sizes = scaled_sizes(_any_size_config(predictor), predictor.preprocess)
        preprocess = with_image_size(predictor.preprocess, max(self.sizes))
        super().__init__(
            predictor.source, predictor.config, preprocess, predictor.names, predictor.metadata, predictor.has_outputs
        )
        self.predictor, self.mode, self.backend = predictor, mode, predictor.backend

    @torch.inference_mode()
    def outputs(self, images: Num[ndarray, "b high wide c"]) -> Float32[ndarray, "b k height width"]:
        size, total, count = self.predictor.preprocess.image_size, torch.zeros(()), 0
        for view in self._iter_views(images):
            for flipped in (False, True):
                shown = view[:, :, ::-1].copy() if flipped else view
                found = self._probabilities(shown, size)
                total, count = total + (found.flip(-1) if flipped else found), count + 1
        return (total / count).clamp(min=LEAST_PROBABILITY).log().numpy()

    def _probabilities(self, images: ndarray, size: tuple[int, int]) -> Float[Tensor, "b k height width"]:
        with _any_image_size(self.predictor) if self.mode == "scales" else nullcontext():
            outputs = torch.from_numpy(self.predictor.outputs(images))
        probabilities = self.task.probabilities(outputs)
        if outputs.shape[-2:] == size:
            return probabilities
        return F.interpolate(probabilities, size, mode="bilinear", antialias=True)

    def _iter_views(self, images: Num[ndarray, "b high wide c"]) -> Iterator[ndarray]:
        for size in self.sizes:
            yield images if images.shape[1:3] == size else resize_pixels(images, size)

    def hash(self) -> str:
        return f"{self.predictor.hash()} {self.mode}"


def scaled_sizes(config: ViTConfig, preprocess: Preprocess) -> list[tuple[int, int]]:
    """Return the input sizes, in whole patches."""
    height, width = preprocess.image_size
    down, across = config.patch_stride
    return [(max(round(scale * height / down), 1) * down, max(round(scale * width / across), 1) * across) for scale in SCALES]


def with_image_size(preprocess: Preprocess, size: tuple[int, int]) -> Preprocess:
    """Return the preprocessing that shows the same part of an image at another size."""
    trim = tuple(round(cut * new / old) for cut, new, old in zip(preprocess.trim, size, preprocess.image_size, strict=True))
    return replace(preprocess, image_size=size, trim=(trim[0], trim[1]))


def resize_pixels(images: Num[ndarray, "b high wide c"], size: tuple[int, int]) -> Float32[ndarray, "b height width c"]:
    """Resize images, 8-bit ones without values beyond their range."""
    pixels = rearrange(torch.from_numpy(np.ascontiguousarray(images)), "b h w c -> b c h w").float()
    resized = F.interpolate(pixels, size, mode="bicubic", antialias=True)
    resized = resized.clamp(0, 255) if images.dtype == np.uint8 else resized
    return rearrange(resized, "b c h w -> b h w c").numpy()


def _any_size_config(predictor: Predictor) -> ViTConfig:
    """Return the config of a model that can be run at any size; others are refused."""
    config = predictor.config
    if not isinstance(predictor, TorchPredictor):
        raise VitrailError(
            f"{predictor.source} is an exported file, which takes images of one size; try tta=flip, or name the run that it "
            "was exported from"
        )
    if not isinstance(config, ViTConfig) or config.position == "relative":
        raise VitrailError(f"{predictor.source} takes images of one size, because of its relative positions; try tta=flip")
    return config


@contextmanager
def _any_image_size(predictor: Predictor) -> Iterator[None]:
    """Let the encoder, whose position table is resized on the fly, take images of any size within the context."""
    assert isinstance(predictor, TorchPredictor)  # others were refused
    encoder, config = predictor.encoder, predictor.encoder.config
    assert isinstance(config, ViTConfig)
    encoder.config = replace(config, flexible=True)
    try:
        yield
    finally:
        encoder.config = config
