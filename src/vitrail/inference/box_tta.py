"""Test-time augmentation of boxes: the mean of the heat maps and boxes of an image and of its mirror image, mirrored back.

b images; a map has rows by columns cells, its channels are the classes and the four sides.
"""

import numpy as np
import torch
from jaxtyping import Float, Float32, Num
from numpy import ndarray
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.inference.predictor import Predictor
from vitrail.inference.tta import TTAMode

LEAST_PROBABILITY = 1e-12  # so that every logit is finite
MIRRORED_SIDES = [2, 1, 0, 3]  # of left, top, right, bottom


class BoxTTAPredictor(Predictor):
    """Returns the logits of mean probabilities, and the mean distances from each cell to the sides of its box."""

    def __init__(self, predictor: Predictor, mode: TTAMode) -> None:
        if mode != "flip":
            raise VitrailError(f"tta={mode} is not for boxes, whose maps must have the same cells in all views; try tta=flip")
        super().__init__(
            predictor.source,
            predictor.config,
            predictor.preprocess,
            predictor.names,
            predictor.metadata,
            predictor.has_outputs,
        )
        self.predictor, self.mode, self.backend = predictor, mode, predictor.backend

    def outputs(self, images: Num[ndarray, "b height width c"]) -> Float32[ndarray, "b channels rows columns"]:
        views = images, np.ascontiguousarray(images[:, :, ::-1])
        shown, mirrored = (torch.from_numpy(self.predictor.outputs(view)) for view in views)
        unmirrored = mirrored.flip(-1)
        sides = (shown[:, -4:] + unmirrored[:, -4:][:, MIRRORED_SIDES]) / 2
        return torch.cat([_mean_logits(shown[:, :-4], unmirrored[:, :-4]), sides], dim=1).numpy()

    def hash(self) -> str:
        return f"{self.predictor.hash()} {self.mode}"


def _mean_logits(first: Float[Tensor, "*shape"], second: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the logits of the mean of the probabilities that logits stand for."""
    return ((first.double().sigmoid() + second.double().sigmoid()) / 2).logit(eps=LEAST_PROBABILITY).float()
