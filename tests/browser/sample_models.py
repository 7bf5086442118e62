"""Runs and models that are quick to build and have everything that the studio shows: checkpoints, curves, predictions."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitrail
from tests.data.images import write_label_table
from tests.small_models import small_vit
from vitrail.config import override
from vitrail.data.preprocess import Preprocess
from vitrail.models.build import build
from vitrail.models.config import RelativeBiasConfig, RotaryConfig, StemConfig
from vitrail.models.vit import ViT
from vitrail.recipes.context import RecipeContext
from vitrail.recipes.demo import demo
from vitrail.training.trainer import Hardware, fit
from vitrail.weights.save import save

MODEL_CHANGES: dict[str, dict[str, Any]] = {  # on 2 x 3 patches, except the last ones
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
    "relative bias, gated MLP": {
        "position": "none",
        "relative_bias": RelativeBiasConfig(),
        "mlp_kind": "swiglu",
        "attention_norm": True,
        "mlp_norm": True,
        "norm": "branch",
    },
    "two tokens pooled, rotary beside a table": {"pool": "cls+register", "registers": 2, "rotary": RotaryConfig(mixed=True)},
    "hybrid": {"patch": (1, 1), "stem": StemConfig(stages=(1, 2), width=32), "image": (64, 48)},
    "one of everything": {"image": (6, 5), "depth": 1, "heads": 1, "classes": 1, "registers": 1, "head": "mlp"},
}


def train_small_run(folder: Path) -> Path:
    """Train a small run on Fashion-MNIST: 4 x 4 patches and a class token, two layers, four checkpoints."""
    context = RecipeContext("fashion", 60_000, 10, (28, 28), 1, None, None, class_names=tuple(map(str, range(10))))
    model = ["model.pool=cls", "model.depth=2", "model.width=24", "model.heads=3", "model.mlp=40"]
    steps = ["steps=12", "batch_size=16", "checkpoint_every=3", "eval_every=6", "keep_checkpoints=9", "schedule.warmup_steps=2"]
    recipe = override(demo(context), [*model, *steps])
    fit(recipe, folder / "small", hardware=Hardware("cpu", 1, 0))
    return folder / "small"


def train_small_label_run(folder: Path) -> Path:
    """Train a run for four steps on 40 images with up to three labels each."""
    random, names = np.random.default_rng(0), np.array(["cup", "lamp", "tree"])
    sets = [";".join(names[random.random(3) < 0.5]) for _ in range(40)]
    table = write_label_table(folder / "data", sets)
    lines = table.read_text().splitlines()
    splits = ["train"] * 15 + ["validation"] * 10 + ["test"] * 15
    table.write_text(
        "\n".join([lines[0], *(line.replace(",test", f",{split}") for line, split in zip(lines[1:], splits, strict=True))])
    )
    settings = {"steps": 4, "eval_every": 2, "checkpoint_every": 2, "schedule.warmup_steps": 0}
    run = vitrail.train(
        table,
        out=folder / "labels",
        model="mu/8",
        image_size=(16, 24),
        augment="none",
        batch_size=8,
        workers=0,
        settings=settings,
    )
    return run.folder


def save_model(folder: Path, **changes: object) -> Path:
    """Save the weights of a small model with no two equal axes."""
    torch.manual_seed(0)
    model: ViT = small_vit(**changes)
    channels = model.config.channels
    model.preprocess = Preprocess(model.config.image, crop_pct=0.9, mean=(0.5,) * channels, std=(0.25,) * channels)
    model.class_names = tuple(f"class {number}" for number in range(model.config.classes)) or None
    save(model, folder)
    return folder


def save_large_model(folder: Path) -> Path:
    """Save an untrained Ti/16: 14 x 14 patches, 12 layers of 3 heads, 1000 classes."""
    torch.manual_seed(0)
    model = build("Ti/16")
    assert isinstance(model, ViT)
    for weight in model.parameters():  # a zero head would give uniform probabilities
        weight.data.add_(0.02 * torch.randn_like(weight))
    model.preprocess = Preprocess((224, 224), crop_pct=0.875, mean=(0.5,) * 3, std=(0.5,) * 3)
    save(model.eval(), folder)
    return folder
