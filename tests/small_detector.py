"""A small detection model with random weights, and images with boxes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.small_models import small_config
from vitrail.config import to_dict
from vitrail.data.preprocess import Fit, Preprocess
from vitrail.data.sources.dataset import ArrayDataset, BoxTargets, DatasetSplits
from vitrail.data.sources.objects import NO_OBJECTS, Objects, build_objects
from vitrail.models.build import build, with_metadata_of
from vitrail.recipes.task_config import Detection
from vitrail.tasks.registry import model_task

CLASSES = ("disc", "square", "star")
SIZE = (36, 45)  # of the images


def random_detector(
    seed: int = 0, classes: tuple[str, ...] = CLASSES, layers: tuple[int, ...] = (), fit: Fit = "stretch", **changes: Any
) -> Any:
    """A detector, in images of 12 x 15 pixels unless changed, which finds boxes of various sizes at random places."""
    torch.manual_seed(seed)
    encoder: Any = build(small_config(classes=0, **changes))
    encoder.preprocess, encoder.class_names = Preprocess(encoder.config.image, 1.0, fit), classes
    config = Detection(classes=len(classes), layers=layers, map_width=8, upscale_blocks=1, max_detections=30)
    encoder.metadata = {"recipe": {"task": to_dict(config)}}
    model = model_task(encoder).build_model(encoder)
    for weight in model.parameters():
        weight.data.add_(0.5 * torch.randn_like(weight))
    return with_metadata_of(encoder, model.eval())


@dataclass(frozen=True, eq=False)
class BoxedImages(ArrayDataset):
    """Images of noise with boxes."""

    boxes: tuple[Objects, ...] = ()

    @property
    def box_names(self) -> tuple[str, ...]:
        return self.class_names

    def objects(self, index: int) -> Objects:
        return self.boxes[index]


def boxed_images(count: int = 9, seed: int = 0, classes: tuple[str, ...] = CLASSES) -> DatasetSplits:
    """A dataset whose last image has no objects, and whose first has a crowd; the classes may be in another order."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, *SIZE, 3), np.uint8)
    numbers = np.array([classes.index(name) for name in CLASSES])
    objects = []
    for index in range(count):
        sides = generator.integers(6, 30, (4, 2))
        corners = (generator.random((4, 2)) * (np.array(SIZE)[::-1] - sides)).round()
        crowd = np.arange(4) == (0 if index == 0 else -1)
        labels = numbers[generator.integers(0, len(CLASSES), 4)]
        objects.append(build_objects(np.concatenate([corners, corners + sides], axis=1), labels, crowd))
    objects[-1] = NO_OBJECTS
    dataset = BoxedImages(images, np.full(count, -1), classes, "noise", tuple(objects))
    split = BoxTargets(dataset, np.arange(count), np.full(count, -1, np.int64), classes)
    return DatasetSplits("noise", split, split, split, "")
