"""Every recipe, with a smaller model and fewer steps, overfits eight images; the rest of it is unchanged."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from vitrail.data.loader import build_eval_loader, build_train_loader
from vitrail.data.sources.dataset import ArrayDataset, Dataset, Subset, with_box_targets, with_mask_targets
from vitrail.data.sources.panes.dataset import PANES_CLASSES, PanesDataset
from vitrail.models.build import build
from vitrail.models.config import ModelConfig, ViTConfig
from vitrail.models.vit import ViT
from vitrail.recipes.context import RecipeContext
from vitrail.recipes.recipe import Recipe
from vitrail.recipes.registry import RECIPES, SSL_METHODS, get_recipe
from vitrail.tasks.registry import build_task
from vitrail.training.state import TrainState, create_state
from vitrail.training.step import train_step

SIZE = (24, 32)
BATCH = 32  # each of the eight four times, cropped and mixed differently
STEPS, EVAL_EVERY = 500, 25  # at most, and between two evaluations
MASK_RECIPES = {"segment": 0.65, "segment-small": 0.75, "segment-demo": 0.75}  # mean IoU; the first is for pretrained weights
BOX_RECIPES = {"detect": 0.6, "detect-small": 0.6, "detect-demo": 0.6}  # AP50
LONG = ("textbook", "augreg", "plain", "paper-imagenet21k", "resnet", *SSL_METHODS)  # take most of the steps, or are large


def marked(names: Iterable[str]) -> list[Any]:
    """Mark the long ones as thorough."""
    return [pytest.param(name, marks=pytest.mark.thorough if name in LONG else ()) for name in names]


def eight_images() -> ArrayDataset:
    """One image of each of eight classes."""
    samples = PanesDataset(5, 100, SIZE)
    first = [int(np.flatnonzero(samples.labels == label)[0]) for label in range(8)]
    return ArrayDataset(np.stack([samples.read(index) for index in first]), np.arange(8), PANES_CLASSES[:8])


def shrunk(built: Recipe) -> Recipe:
    """Make the recipe narrow, shallow and short; pool, head, positions, augmentation, optimiser and loss are unchanged."""
    return replace(
        built,
        model=_small(built.model),
        preprocess=replace(built.preprocess, image_size=SIZE),
        steps=STEPS,
        schedule=replace(built.schedule, warmup_steps=min(built.schedule.warmup_steps, STEPS // 10), cooldown_steps=0),
    )


def _small(model: ModelConfig) -> ModelConfig:
    if isinstance(model, ViTConfig):
        return replace(model, width=48, depth=2, mlp=144, heads=3, patch=(6, 8), image=SIZE)
    return replace(model, stages=(1, 1), width=32, image=SIZE)


def train_until_learned(settings: Recipe, images: ArrayDataset) -> tuple[TrainState, dict[str, float]]:
    """Train until all eight are learned, or to the end; return the state and the scores on the clean images."""
    torch.manual_seed(settings.seed)
    state = create_state(build(settings.model).train(), settings)
    task = build_task(settings.task, settings.model, settings.preprocess)
    clean = build_eval_loader(images, settings.preprocess, len(images))
    scores: dict[str, float] = {}
    for batch in build_train_loader(images, settings.preprocess, settings.batch_size, settings.augment, settings.seed).batches(
        workers=0
    ):
        train_step(state, task, batch, settings)
        if state.step % EVAL_EVERY == 0:
            scores = task.evaluate(state.eval_model, clean, workers=0)
            if is_learned(scores) or state.step == settings.steps:
                break
    return state, scores


def is_learned(scores: dict[str, float]) -> bool:
    return scores["top1"] == 1 and scores["loss"] < math.log(8) / 2  # a uniform prediction has loss log 8


@pytest.mark.parametrize("name", marked(name for name in RECIPES if name not in (*SSL_METHODS, *MASK_RECIPES, *BOX_RECIPES)))
def test_every_recipe_overfits_eight_images(name: str) -> None:
    settings = shrunk(get_recipe(name, RecipeContext("eight", num_images=10 * BATCH, classes=8, native_size=None, channels=3)))
    assert settings.batch_size == BATCH
    state, scores = train_until_learned(settings, eight_images())
    assert is_learned(scores), f"after {state.step} steps: {scores['top1']:.1%}, loss {scores['loss']:.3f}"
    assert state.skipped_steps == 0


@pytest.mark.parametrize("name", marked(SSL_METHODS))
def test_every_self_supervised_recipe_learns_to_reconstruct_eight_images(name: str) -> None:
    """Evaluated under other masks and crops than in training, so that the loss cannot be memorised."""
    settings = shrunk(get_recipe(name, RecipeContext("eight", num_images=10 * BATCH, classes=8, native_size=None, channels=3)))
    assert isinstance(settings.model, ViTConfig)
    task = build_task(settings.task, settings.model, settings.preprocess)
    torch.manual_seed(settings.seed)
    encoder = build(settings.model)
    assert isinstance(encoder, ViT)
    state, images = create_state(task.build_model(encoder).train(), settings), eight_images()
    clean = build_eval_loader(images, settings.preprocess, len(images))
    first = task.evaluate(state.eval_model, clean, workers=0)["loss"]
    for batch in build_train_loader(images, settings.preprocess, settings.batch_size, settings.augment, settings.seed).batches(
        0, STEPS // 2, workers=0
    ):
        train_step(state, task, batch, settings)
    last = task.evaluate(state.eval_model, clean, workers=0)["loss"]
    assert last < 0.6 * first
    assert state.skipped_steps == 0


@pytest.mark.parametrize(("name", "enough"), MASK_RECIPES.items())
def test_every_recipe_for_masks_overfits_eight_images(name: str, enough: float) -> None:
    images = with_mask_targets(Subset(PanesDataset(5, 8, SIZE), np.arange(8), np.full(8, -1), ()), "panes")
    check_overfits(name, images, "miou", enough)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "enough"), BOX_RECIPES.items())
def test_every_recipe_for_boxes_overfits_eight_images(name: str, enough: float) -> None:
    images = with_box_targets(Subset(PanesDataset(5, 8, SIZE), np.arange(8), np.full(8, -1), ()), "panes")
    check_overfits(name, images, "ap50", enough)


def check_overfits(name: str, images: Dataset, metric: str, enough: float) -> None:
    """Train until the metric on the clean images is high enough."""
    names = images.class_names
    context = RecipeContext("eight", num_images=10 * BATCH, classes=0, native_size=None, channels=3, class_names=names)
    settings = replace(shrunk(get_recipe(name, context)), batch_size=BATCH)
    torch.manual_seed(settings.seed)
    task = build_task(settings.task, settings.model, settings.preprocess, names)
    state = create_state(task.build_model(build(settings.model)).train(), settings)
    loader, scores = build_train_loader(images, settings.preprocess, BATCH, settings.augment, settings.seed), {metric: 0.0}
    for batch in loader.batches(workers=0):
        train_step(state, task, batch, settings)
        if state.step % EVAL_EVERY == 0:
            scores = task.evaluate(state.eval_model, build_eval_loader(images, settings.preprocess, 8), workers=0)
            if scores[metric] > enough or state.step == settings.steps:
                break
    assert scores[metric] > enough, f"after {state.step} steps: {scores[metric]:.1%}"
    assert state.skipped_steps == 0
