"""A tiny run that takes seconds, and one batch of it, for tests."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitrail.augment.policy import get_policy
from vitrail.data.loader import Batch
from vitrail.data.preprocess import Preprocess
from vitrail.models.build import build
from vitrail.models.config import ViTConfig
from vitrail.recipes.recipe import Optim, Recipe, Schedule


def recipe(**changes: object) -> Recipe:
    """A recipe that takes seconds, with dropout, stochastic depth, mixing and EMA."""
    model = ViTConfig(
        width=24, depth=2, mlp=48, heads=3, patch=(8, 8), image=(16, 16), channels=3, classes=10, dropout=0.1,
        stochastic_depth=0.1, gelu="exact",
    )  # fmt: skip
    fields: dict[str, object] = {
        "name": "tiny", "model": model, "preprocess": Preprocess((16, 16)), "data": "panes:train_size=200,size=16", "steps": 12,
        "batch_size": 10, "augment": get_policy("none", mixup=0.4), "ema_decay": 0.9,
        "optim": Optim(name="muon", weight_decay=0.1, grad_clip=1.0),
        "schedule": Schedule(warmup_steps=3), "eval_every": 4, "checkpoint_every": 3, "seed": 5,
    }  # fmt: skip
    return Recipe(**{**fields, **changes})  # type: ignore[arg-type]


def batch(count: int = 8, classes: int = 10) -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 3, 16, 16, generator=generator)
    return Batch(images, torch.arange(count) % classes, torch.arange(count))


def deterministic_recipe(**changes: object) -> Recipe:
    model = ViTConfig(width=24, depth=2, mlp=48, heads=3, patch=(8, 8), image=(16, 16), channels=3, classes=10)
    return recipe(model=model, augment=get_policy("none"), **changes)


def build_test_model(settings: Recipe) -> torch.nn.Module:
    torch.manual_seed(3)
    model = build(settings.model)
    torch.nn.init.normal_(model.get_parameter("head.weight"))  # a zero head would hide what is below it
    return model


def write_noise_images(folder: Path, classes: int, each: int) -> None:
    """Write images of noise, no two equal, in one folder per class."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class {label}").mkdir(parents=True)
        for number in range(each):
            pixels = rng.integers(0, 256, (17, 19, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"class {label}" / f"{number}.png")
