"""Runs and models that are quick to build and have everything that the studio shows: checkpoints, curves, predictions."""

from pathlib import Path
from typing import Any

import torch

from tests.small import vit
from vitrail.config import override
from vitrail.data.preprocess import Preprocess
from vitrail.models.build import build
from vitrail.models.settings import Stem
from vitrail.models.vit import ViT
from vitrail.recipes.demo import demo
from vitrail.recipes.given import Given
from vitrail.train.loop import Machine, fit
from vitrail.weights.checkpoint import save

MODELS: dict[str, dict[str, Any]] = {  # on 2 x 3 patches, except the last ones
    "gap, one channel": {"pool": "gap", "channels": 1},
    "map, relative": {"pool": "map", "position": "relative"},
    "registers, rotary": {"registers": 3, "position": "rotary"},
    "no head, no positions": {"classes": 0, "position": "none", "registers": 1},
    "gap with a class token, post-norm": {
        "pool": "gap",
        "class_token": True,
        "position": "sincos2d",
        "width": 36,
        "norm": "post",
    },
    "hybrid": {"patch": (1, 1), "stem": Stem(stages=(1, 2), width=32), "image": (64, 48)},
    "one of everything": {"image": (6, 5), "depth": 1, "heads": 1, "classes": 1, "registers": 1, "head": "mlp"},
}


def small_run(folder: Path) -> Path:
    """Train a small run on Fashion-MNIST: 4 x 4 patches and a class token, two layers, four checkpoints."""
    given = Given("fashion", 60_000, 10, (28, 28), 1, None, None, names=tuple(map(str, range(10))))
    model = ["model.pool=cls", "model.depth=2", "model.width=24", "model.heads=3", "model.mlp=40"]
    steps = ["steps=12", "batch=16", "checkpoint=3", "evaluate=6", "keep=9", "schedule.warmup=2"]
    recipe = override(demo(given), [*model, *steps])
    fit(recipe, folder / "small", Machine("cpu", 1, 0))
    return folder / "small"


def saved(folder: Path, **changes: object) -> Path:
    """Save the weights of a small model with no two equal axes."""
    torch.manual_seed(0)
    model: ViT = vit(**changes)
    channels = model.config.channels
    model.preprocess = Preprocess(model.config.image, crop=0.9, mean=(0.5,) * channels, std=(0.25,) * channels)
    model.labels = tuple(f"class {number}" for number in range(model.config.classes)) or None
    save(model, folder)
    return folder


def large(folder: Path) -> Path:
    """Save an untrained Ti/16: 14 x 14 patches, 12 layers of 3 heads, 1000 classes."""
    torch.manual_seed(0)
    model = build("Ti/16")
    assert isinstance(model, ViT)
    for weight in model.parameters():  # a zero head would give uniform probabilities
        weight.data.add_(0.02 * torch.randn_like(weight))
    model.preprocess = Preprocess((224, 224), crop=0.875, mean=(0.5,) * 3, std=(0.5,) * 3)
    save(model.eval(), folder)
    return folder
