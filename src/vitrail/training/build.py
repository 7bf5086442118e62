"""Build the task and the model of a recipe: classification, or masked-image pre-training.

The training loop knows no other difference between the two.
"""

from pathlib import Path

import torch
from torch import nn

from vitrail.data.sources.dataset import DatasetSplits
from vitrail.errors import VitrailError
from vitrail.models.build import Model, build
from vitrail.models.masked_autoencoders import MaskedModel, build_masked_model
from vitrail.models.masking_config import check_masking
from vitrail.models.vit import ViT
from vitrail.tasks.classification import ClassificationTask, balanced_class_weights
from vitrail.tasks.masked_image import MaskedImageTask
from vitrail.tasks.task import Task
from vitrail.training.recipe import Recipe
from vitrail.weights.init_from import init_model_from
from vitrail.weights.load import load
from vitrail.weights.load_masked import load_masked


def build_task(recipe: Recipe, data: DatasetSplits) -> Task:
    if recipe.masking is not None:
        config = check_masking(recipe.masking, recipe.model)
        return MaskedImageTask(recipe.masking, config.patch, recipe.preprocess, recipe.seed)
    classes = len(data.class_names)
    if classes < 2:
        raise VitrailError(f"{data.name} has {classes} class{'' if classes == 1 else 'es'}; classification needs at least two")
    if recipe.model.classes != classes:
        raise VitrailError(f"model.classes must be {classes}, the number of classes of {data.name}, got {recipe.model.classes}")
    weights = balanced_class_weights(torch.from_numpy(data.train.labels), classes) if recipe.balanced_loss else None
    return ClassificationTask(classes, recipe.loss, recipe.label_smoothing, weights)


def build_model(recipe: Recipe, data: DatasetSplits, resumed: bool) -> Model | MaskedModel:
    """Build the model with its initial weights. ``resumed``: a checkpoint will replace them, so none are loaded."""
    torch.manual_seed(recipe.seed)
    if recipe.init_from is None or resumed:
        model = build(recipe.model)
    else:
        model = init_model_from(recipe.init_from, recipe.model, recipe.init_sha256, recipe.keep_head)
    model.preprocess = recipe.preprocess
    if recipe.masking is None:
        model.class_names = data.class_names
        return model
    assert isinstance(model, ViT)
    return build_masked_model(model, recipe.masking)


def reload_model(folder: Path, recipe: Recipe) -> nn.Module:
    """Load a model that the training loop has saved."""
    return load(folder) if recipe.masking is None else load_masked(folder)


def get_encoder(model: nn.Module) -> nn.Module:
    """Return the encoder of a masked model, or the model itself."""
    return model.encoder if isinstance(model, MaskedModel) else model
