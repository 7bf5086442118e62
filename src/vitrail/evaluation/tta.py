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
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.data.preprocess import Preprocess
from vitrail.models.build import Model

TTAMode = Literal["flip", "crops"]
DEFAULT_CROP_PCT = 7 / 8  # crop_pct for preprocessing without a crop


class TTAModel(nn.Module):
    """Return logits whose softmax is the mean over the views, usable wherever logits are."""

    def __init__(self, model: Model, mode: TTAMode) -> None:
        super().__init__()
        self.model, self.mode = model, mode
        self.train(model.training)

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b k"]:
        log_probabilities = [self.model(view).double().log_softmax(1) for view in self._iter_views(images)]
        return torch.stack(log_probabilities).logsumexp(0) - math.log(len(log_probabilities))

    def _iter_views(self, images: Tensor) -> Iterator[Tensor]:
        parts = [images] if self.mode == "flip" else five_crop(images, self.model.config.image)
        for part in parts:
            yield part
            yield part.flip(-1)


def five_crop(images: Float[Tensor, "b c high wide"], size: tuple[int, int]) -> list[Float[Tensor, "b c height width"]]:
    """Return the centre crop, as preprocessing has it, and the corners."""
    down, across = images.shape[-2] - size[0], images.shape[-1] - size[1]
    corners = [(round(down / 2), round(across / 2)), (0, 0), (0, across), (down, 0), (down, across)]
    return [images[..., top : top + size[0], left : left + size[1]] for top, left in corners]


def without_crop(preprocess: Preprocess) -> Preprocess:
    """Return the preprocessing of the image that ``five_crop`` crops from."""
    crop = preprocess.crop_pct if preprocess.resize_to != preprocess.image_size else DEFAULT_CROP_PCT
    return replace(preprocess, image_size=replace(preprocess, crop_pct=crop).resize_to, crop_pct=1.0, trim=(0, 0))
