"""Every recipe, with a smaller model and fewer steps, overfits eight images; the rest of it is unchanged."""

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
BATCH = 32  # each of the eight four times, cropped and mixed differently
STEPS, LOOK = 500, 25  # at most, and between two evaluations


def eight() -> Arrays:
    """One image of each of eight classes."""
    drawn = Panes(5, 100, SIZE)
    first = [int(np.flatnonzero(drawn.labels == label)[0]) for label in range(8)]
    return Arrays(np.stack([drawn.content(index) for index in first]), np.arange(8), CLASSES[:8])


def shrunk(made: Recipe) -> Recipe:
    """Make the recipe narrow, shallow and short; pool, head, positions, augmentation, optimiser and loss are unchanged."""
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


def learned(settings: Recipe, images: Arrays) -> tuple[State, dict[str, float]]:
    """Train until all eight are learned, or to the end; return the state and the scores on the clean images."""
    torch.manual_seed(settings.seed)
    state = fresh(build(settings.model).train(), settings)
    task = Classify(len(images), settings.loss, settings.smoothing)
    clean = evaluation(images, settings.preprocess, len(images))
    scores: dict[str, float] = {}
    for batch in training(images, settings.preprocess, settings.batch, settings.augment, settings.seed).batches(workers=0):
        train_step(state, task, batch, settings)
        if state.step % LOOK == 0:
            scores = task.evaluate(state.shown, clean, workers=0)
            if known(scores) or state.step == settings.steps:
                break
    return state, scores


def known(scores: dict[str, float]) -> bool:
    return scores["top1"] == 1 and scores["loss"] < math.log(8) / 2  # a uniform prediction has loss log 8


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in METHODS])
def test_every_recipe_overfits_eight_images(name: str) -> None:
    settings = shrunk(recipe(name, Given("eight", pictures=10 * BATCH, classes=8, size=None, channels=3)))
    assert settings.batch == BATCH
    state, scores = learned(settings, eight())
    assert known(scores), f"after {state.step} steps: {scores['top1']:.1%}, loss {scores['loss']:.3f}"
    assert state.skipped == 0


@pytest.mark.parametrize("name", METHODS)
def test_every_self_supervised_recipe_learns_to_reconstruct_eight_images(name: str) -> None:
    """Evaluated under other masks and crops than in training, so that the loss cannot be memorised."""
    settings = shrunk(recipe(name, Given("eight", pictures=10 * BATCH, classes=8, size=None, channels=3)))
    assert settings.masking is not None
    assert isinstance(settings.model, ViTConfig)
    torch.manual_seed(settings.seed)
    encoder = build(settings.model)
    assert isinstance(encoder, ViT)
    state, images = fresh(masked(encoder, settings.masking).train(), settings), eight()
    task = Masks(settings.masking, settings.model.patch, settings.preprocess)
    clean = evaluation(images, settings.preprocess, len(images))
    first = task.evaluate(state.shown, clean, workers=0)["loss"]
    for batch in training(images, settings.preprocess, settings.batch, settings.augment, settings.seed).batches(
        0, STEPS // 2, workers=0
    ):
        train_step(state, task, batch, settings)
    last = task.evaluate(state.shown, clean, workers=0)["loss"]
    assert last < 0.6 * first
    assert state.skipped == 0
