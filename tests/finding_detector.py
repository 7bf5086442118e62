"""A small detection model with named classes and random weights, which finds objects."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tests.small_models import small_config
from vitrail.config import to_dict
from vitrail.data.preprocess import Preprocess
from vitrail.models.build import build, with_metadata_of
from vitrail.recipes.task_config import Detection
from vitrail.tasks.registry import model_task

CLASS_NAMES = ("cat", "dog", "hen")


def small_detector(preprocess: Preprocess | None = None, names: tuple[str, ...] = CLASS_NAMES, **settings: Any) -> Any:
    """Build a model of three classes and 24 x 30 pixels, with a map of 8 x 12 cells."""
    torch.manual_seed(0)
    config = Detection(classes=3, **{"upscale_blocks": 1, "map_width": 10, "max_detections": 13, **settings})
    encoder = build(replace(small_config(classes=0), depth=2, image=(24, 30)))
    encoder.preprocess = preprocess or Preprocess((24, 30), mean=(0.1, 0.5, 0.7), std=(0.2, 0.3, 0.4), fit="stretch")
    encoder.class_names = names
    encoder.metadata = {"recipe": {"task": to_dict(config)}}
    model: Any = model_task(encoder).build_model(encoder).eval()
    nn.init.normal_(model.head.heat.weight, std=0.8)
    nn.init.normal_(model.head.boxes.weight, std=0.2)
    nn.init.zeros_(model.head.heat.bias)
    return with_metadata_of(encoder, model)
