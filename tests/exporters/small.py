"""A small model that can be exported, and images for it."""

from typing import Any

import numpy as np
from numpy import ndarray

from tests.small_models import small_vit
from vitrail.data.preprocess import Preprocess
from vitrail.models.vit import ViT

CLASS_NAMES = ("ash", "birch", "cedar", "douglas fir", "elm")


def exportable_vit(**changes: Any) -> ViT:
    """Build a model of 2 layers, 12 x 15 pixels, five named classes and uneven normalisation."""
    model = small_vit(**{"depth": 2, **changes})
    channels = model.config.channels
    model.preprocess = Preprocess(model.config.image, mean=(0.1, 0.5, 0.7)[:channels], std=(0.2, 0.3, 0.4)[:channels])
    model.class_names = CLASS_NAMES if model.config.classes == 5 else None
    return model


def random_images(count: int, height: int = 12, width: int = 15, channels: int = 3) -> ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, height, width, channels), np.uint8)
