"""Build the task and the model of a recipe: classification, or masked-image pre-training.

The training loop knows no other difference between the two.
"""

from pathlib import Path

import torch
from torch import nn

from vitrail.data.sources.source import Data
from vitrail.errors import VitrailError
from vitrail.models.build import Model, build
from vitrail.models.masked import Masked, masked
from vitrail.models.masking import check_masking
from vitrail.models.vit import ViT
from vitrail.tasks.classify import Classify, class_weights
from vitrail.tasks.masked import Masks
from vitrail.tasks.task import Task
from vitrail.train.recipe import Recipe
from vitrail.weights.load import load
from vitrail.weights.masked import load_masked
from vitrail.weights.start import begin


def task_of(recipe: Recipe, data: Data) -> Task:
    if recipe.masking is not None:
        config = check_masking(recipe.masking, recipe.model)
        return Masks(recipe.masking, config.patch, recipe.preprocess, recipe.seed)
    classes = len(data.names)
    if classes < 2:
        raise VitrailError(f"{data.name} has {classes} class{'' if classes == 1 else 'es'}; classification needs at least two")
    if recipe.model.classes != classes:
        raise VitrailError(f"model.classes must be {classes}, the number of classes of {data.name}, got {recipe.model.classes}")
    weights = class_weights(torch.from_numpy(data.train.labels), classes) if recipe.class_weights else None
    return Classify(classes, recipe.loss, recipe.smoothing, weights)


def model_of(recipe: Recipe, data: Data, resumed: bool) -> Model | Masked:
    """Build the model with its initial weights. ``resumed``: a checkpoint will replace them, so none are loaded."""
    torch.manual_seed(recipe.seed)
    if recipe.start is None or resumed:
        model = build(recipe.model)
    else:
        model = begin(recipe.start, recipe.model, recipe.start_hash, recipe.keep_head)
    model.preprocess = recipe.preprocess
    if recipe.masking is None:
        model.labels = data.names
        return model
    assert isinstance(model, ViT)
    return masked(model, recipe.masking)


def again(folder: Path, recipe: Recipe) -> nn.Module:
    """Load a model that the training loop has saved."""
    return load(folder) if recipe.masking is None else load_masked(folder)


def encoder_of(model: nn.Module) -> nn.Module:
    """Return the encoder of a masked model, or the model itself."""
    return model.encoder if isinstance(model, Masked) else model
