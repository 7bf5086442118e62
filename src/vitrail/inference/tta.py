"""Test-time augmentation: the mean of the probabilities over several views of an image. b images, v views.

``flip``: the image and its mirror image. ``crops``: the four corners and the centre, each with its mirror image, ten in all
(Krizhevsky et al. 2012), of the image as it is resized before the centre crop. If a model's preprocessing crops nothing, the
image is resized to 8/7 of the size first, as 256 is to 224.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float, Float32, Num
from numpy import ndarray
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.inference.predictor import Predictor

TTAMode = Literal["flip", "crops", "scales"]
DEFAULT_CROP_PCT = 7 / 8  # crop_pct for preprocessing without a crop


class TTAPredictor(Predictor):
    """Returns logits whose probabilities are the mean over the views, usable wherever logits are."""

    def __init__(self, predictor: Predictor, mode: TTAMode) -> None:
        if mode == "scales":
            raise VitrailError(f"tta=scales is for masks, and {predictor.source} predicts classes of images; try tta=crops")
        preprocess = without_crop(predictor.preprocess) if mode == "crops" else predictor.preprocess
        super().__init__(predictor.source, predictor.config, preprocess, predictor.names, predictor.metadata)
        self.predictor, self.mode, self.backend = predictor, mode, predictor.backend

    def outputs(self, images: Num[ndarray, "b high wide c"]) -> Float32[ndarray, "b k"]:
        logits = torch.stack([torch.from_numpy(self.predictor.outputs(view)) for view in self._iter_views(images)]).double()
        if self.task.has_sigmoid:
            mean = _log_mean(F.logsigmoid(logits)) - _log_mean(F.logsigmoid(-logits))
        else:
            mean = _log_mean(logits.log_softmax(-1))
        return mean.float().numpy()

    def _iter_views(self, images: ndarray) -> Iterator[ndarray]:
        parts = [images] if self.mode == "flip" else five_crop(images, self.predictor.preprocess.image_size)
        for part in parts:
            yield part
            yield part[:, :, ::-1].copy()

    def hash(self) -> str:
        return f"{self.predictor.hash()} {self.mode}"


def _log_mean(log_probabilities: Float[Tensor, "v b k"]) -> Float[Tensor, "b k"]:
    """Return the logarithm of the mean probability over the views."""
    return log_probabilities.logsumexp(0) - math.log(len(log_probabilities))


def five_crop(images: Num[ndarray, "b high wide c"], size: tuple[int, int]) -> list[Num[ndarray, "b height width c"]]:
    """Return the centre crop, as preprocessing has it, and the corners."""
    down, across = images.shape[1] - size[0], images.shape[2] - size[1]
    corners = [(round(down / 2), round(across / 2)), (0, 0), (0, across), (down, 0), (down, across)]
    return [images[:, top : top + size[0], left : left + size[1]] for top, left in corners]


def without_crop(preprocess: Preprocess) -> Preprocess:
    """Return the preprocessing of the image that ``five_crop`` crops from."""
    height, width = preprocess.resize_to
    if (height, width) == preprocess.image_size:
        height, width = int(height / DEFAULT_CROP_PCT + 1e-6), int(width / DEFAULT_CROP_PCT + 1e-6)
    return replace(preprocess, image_size=(height, width), crop_pct=1.0, trim=(0, 0))
