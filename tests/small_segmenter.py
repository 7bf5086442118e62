"""A small segmentation model with named classes and random weights, also of its head."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tests.small_models import small_config
from vitrail.data.preprocess import Preprocess
from vitrail.models.build import build, with_metadata_of
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.registry import model_task

CLASS_NAMES = ("sky", "tree", "road")


def small_segmenter(preprocess: Preprocess | None = None, **settings: Any) -> Any:
    """Build a model of three classes and 12 x 15 pixels whose head has random weights."""
    torch.manual_seed(0)
    config = Segmentation(classes=3, **settings)
    encoder = build(replace(small_config(classes=0), depth=2, image=(12, 15)))
    encoder.preprocess = preprocess or Preprocess((12, 15), mean=(0.1, 0.5, 0.7), std=(0.2, 0.3, 0.4))
    encoder.class_names = CLASS_NAMES
    task = {"kind": "segmentation", "head": config.head, "classes": 3, "layers": config.layers}
    encoder.metadata = {"recipe": {"task": task}}
    model = model_task(encoder).build_model(encoder).eval()
    for weight in model.parameters():
        if not weight.any():  # a new head predicts nothing
            nn.init.normal_(weight, std=0.5)
    return with_metadata_of(encoder, model)
