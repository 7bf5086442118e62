"""A small segmentation model with random weights, and images with masks."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from tests.small_models import small_config
from vitrail.config import to_dict
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import ArrayDataset, DatasetSplits, MaskTargets
from vitrail.models.build import build, with_metadata_of
from vitrail.models.vit import ViT
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.segmentation_model import LinearSegmenter

CLASSES = ("sky", "tree", "road")
SIZE = (20, 23)  # of the images


def random_segmenter(seed: int = 0, classes: tuple[str, ...] = CLASSES, **changes: Any) -> Any:
    """A segmenter of images of 12 x 15 pixels."""
    torch.manual_seed(seed)
    encoder = build(small_config(classes=0, **changes))
    assert isinstance(encoder, ViT)
    encoder.preprocess, encoder.class_names = Preprocess((12, 15), 1.0, "stretch"), classes
    encoder.metadata = {"recipe": {"task": to_dict(Segmentation(classes=len(classes)))}}
    model = LinearSegmenter(encoder, len(classes))
    for weight in model.parameters():
        weight.data.add_(0.1 * torch.randn_like(weight))
    return with_metadata_of(encoder, model.eval())


@dataclass(frozen=True, eq=False)
class MaskedImages(ArrayDataset):
    """Images of noise with masks of rectangles, and an object in each, which is a tree."""

    masks: ndarray = None  # type: ignore[assignment]
    tells_objects_apart: bool = True

    @property
    def mask_names(self) -> tuple[str, ...]:
        return self.class_names

    def mask(self, index: int) -> ndarray:
        return np.asarray(self.masks[index])

    def instances(self, index: int) -> ndarray | None:
        return (self.masks[index] == self.class_names.index("tree")).astype(np.int32) if self.tells_objects_apart else None


def masked_images(count: int = 9, seed: int = 0, classes: tuple[str, ...] = CLASSES, objects: bool = True) -> DatasetSplits:
    """A dataset whose last image has a mask of ignored pixels alone; the classes may be in another order."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, *SIZE, 3), np.uint8)
    numbers = np.array([classes.index(name) for name in CLASSES], np.int16)
    masks = np.full((count, *SIZE), numbers[0], np.int16)
    for mask in masks:
        top, left = generator.integers(0, 12, 2)
        mask[top : top + 7, left : left + 9] = numbers[1]
        mask[-3:, :10] = numbers[2]
        mask[:2] = -1
    masks[-1] = -1
    dataset = MaskedImages(images, np.full(count, -1), classes, "noise", masks, objects)
    split = MaskTargets(dataset, np.arange(count), np.full(count, -1, np.int64), classes)
    return DatasetSplits("noise", split, split, split, "")
