"""Every recipe, its model shrunk and its steps shortened, learns eight pictures by heart; the rest of it stays as it is."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from vitrail.data.loader import evaluation, training
from vitrail.data.sources.panes import CLASSES, Panes
from vitrail.data.sources.source import Arrays
from vitrail.models.build import build
from vitrail.models.masked import masked
from vitrail.models.settings import ModelConfig, ViTConfig
from vitrail.models.vit import ViT
from vitrail.recipes.book import METHODS, RECIPES, recipe
from vitrail.recipes.given import Given
from vitrail.tasks.classify import Classify
from vitrail.tasks.masked import Masks
from vitrail.train.recipe import Recipe
from vitrail.train.state import State, fresh
from vitrail.train.step import train_step

SIZE = (24, 32)
BATCH = 32  # each of the eight four times, cropped and mixed anew
STEPS, LOOK = 500, 25  # at most, and between two looks


def eight() -> Arrays:
    """One picture of each of eight classes."""
    drawn = Panes(5, 100, SIZE)
    first = [int(np.flatnonzero(drawn.labels == label)[0]) for label in range(8)]
    return Arrays(np.stack([drawn.content(index) for index in first]), np.arange(8), CLASSES[:8])


def shrunk(made: Recipe) -> Recipe:
    """Narrow, shallow and short; pool, head, positions, dropout, augmentation, optimiser and loss are the recipe's own."""
    return replace(
        made,
        model=_small(made.model),
        preprocess=replace(made.preprocess, image=SIZE),
        steps=STEPS,
        schedule=replace(made.schedule, warmup=min(made.schedule.warmup, STEPS // 10), cooldown=0),
    )


def _small(model: ModelConfig) -> ModelConfig:
    if isinstance(model, ViTConfig):
        return replace(model, width=48, depth=2, mlp=144, heads=3, patch=(6, 8), image=SIZE)
    return replace(model, stages=(1, 1), width=32, image=SIZE)


def learned(settings: Recipe, pictures: Arrays) -> tuple[State, dict[str, float]]:
    """Train until all eight are known, or to the end; what is said of the pictures as they are."""
    torch.manual_seed(settings.seed)
    state = fresh(build(settings.model).train(), settings)
    task = Classify(len(pictures), settings.loss, settings.smoothing)
    clean = evaluation(pictures, settings.preprocess, len(pictures))
    found: dict[str, float] = {}
    for batch in training(pictures, settings.preprocess, settings.batch, settings.augment, settings.seed).batches(workers=0):
        train_step(state, task, batch, settings)
        if state.step % LOOK == 0:
            found = task.evaluate(state.shown, clean, workers=0)
            if known(found) or state.step == settings.steps:
                break
    return state, found


def known(found: dict[str, float]) -> bool:
    return found["top1"] == 1 and found["loss"] < math.log(8) / 2  # knowing nothing costs log 8


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in METHODS])
def test_every_recipe_learns_eight_pictures_by_heart(name: str) -> None:
    settings = shrunk(recipe(name, Given("eight", pictures=10 * BATCH, classes=8, size=None, channels=3)))
    assert settings.batch == BATCH
    state, found = learned(settings, eight())
    assert known(found), f"after {state.step} steps: {found['top1']:.1%}, loss {found['loss']:.3f}"
    assert state.skipped == 0


@pytest.mark.parametrize("name", METHODS)
def test_every_recipe_without_labels_learns_to_fill_in_eight_pictures(name: str) -> None:
    """Under other masks and crops than it learns from, so it is no loss that could be had by heart."""
    settings = shrunk(recipe(name, Given("eight", pictures=10 * BATCH, classes=8, size=None, channels=3)))
    assert settings.masking is not None
    assert isinstance(settings.model, ViTConfig)
    torch.manual_seed(settings.seed)
    encoder = build(settings.model)
    assert isinstance(encoder, ViT)
    state, pictures = fresh(masked(encoder, settings.masking).train(), settings), eight()
    task = Masks(settings.masking, settings.model.patch, settings.preprocess)
    clean = evaluation(pictures, settings.preprocess, len(pictures))
    first = task.evaluate(state.shown, clean, workers=0)["loss"]
    for batch in training(pictures, settings.preprocess, settings.batch, settings.augment, settings.seed).batches(
        0, STEPS // 2, workers=0
    ):
        train_step(state, task, batch, settings)
    last = task.evaluate(state.shown, clean, workers=0)["loss"]
    assert last < 0.6 * first
    assert state.skipped == 0
