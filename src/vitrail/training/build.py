"""Build the task and the model of a recipe, and reload the model that a run has saved."""

from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.data.sources.dataset import DatasetSplits
from vitrail.errors import VitrailError
from vitrail.models.build import build, get_encoder
from vitrail.recipes.recipe import Recipe
from vitrail.tasks.registry import build_task
from vitrail.tasks.task import Loss, Task
from vitrail.weights.init_from import init_model_from
from vitrail.weights.load import attach_decoder, load, read_checkpoint
from vitrail.weights.model_folder import DECODER_FILE


def recipe_task(recipe: Recipe, data: DatasetSplits, custom_loss: Loss | None = None) -> Task:
    """Build the task of a recipe for a dataset."""
    task = build_task(recipe.task, recipe.model, recipe.preprocess, data.class_names, recipe.seed).with_data(data)
    return task if custom_loss is None else task.with_loss(_checked(custom_loss))


def _checked(loss: Loss) -> Loss:
    """Return the loss with a check of what it takes and returns."""
    try:
        signature(loss).bind(None, None)
    except TypeError:
        raise VitrailError(f"loss must take two arguments, outputs and targets, got loss{signature(loss)}") from None
    except ValueError:  # of a function that is not written in Python, which has no signature
        pass

    def checked_loss(outputs: Tensor, targets: Any) -> Tensor:
        value = loss(outputs, targets)
        if not isinstance(value, Tensor) or value.ndim:
            kind = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise VitrailError(f"loss must return the mean over the batch as a tensor, got {kind}; try reduction='mean'")
        if outputs.requires_grad and not value.requires_grad:
            raise VitrailError(
                "loss must return a tensor with a gradient, got one without; compute it from outputs, without detach or argmax"
            )
        return value

    return checked_loss


def build_model(recipe: Recipe, task: Task, resumed: bool) -> nn.Module:
    """Build the model with its initial weights. ``resumed``: a checkpoint will replace them, so none are loaded."""
    torch.manual_seed(recipe.seed)
    if recipe.init_from is None or resumed:
        encoder = build(recipe.model)
    else:
        encoder = init_model_from(recipe.init_from, recipe.model, recipe.init_sha256, recipe.keep_head)
    encoder.preprocess = recipe.preprocess
    if recipe.task.labelled or recipe.task.is_dense:
        encoder.class_names = task.class_names
    model = task.build_model(encoder)
    if recipe.init_from is not None and recipe.keep_head and not resumed and model is not encoder:
        decoder = read_checkpoint(recipe.init_from).decoder
        return model if decoder is None else attach_decoder(encoder, task, decoder)
    return model


def reload_model(folder: Path, task: Task) -> nn.Module:
    """Load a model that the training loop has saved, with its decoder if it has one."""
    model, decoder = load(folder), folder / DECODER_FILE
    if get_encoder(model) is not model or not decoder.is_file():
        return model
    return attach_decoder(model, task, decoder, needed=True)
