"""Hashes of a model: of all that its predictions depend on (weights, config, preprocessing, task), or its features alone."""

import hashlib
from dataclasses import replace
from typing import Any

import torch

from vitrail.models.build import Model
from vitrail.tasks.registry import model_task


def model_hash(model: Model) -> str:
    """Return a hash of all that predictions depend on, the same on every host and device."""
    return _hash(model, (model.config, model.preprocess, model.class_names, model_task(model).config))


def features_hash(model: Model) -> str:
    """Return a hash of all that features depend on, which excludes the head."""
    return _hash(model, (replace(model.config, classes=0), model.preprocess), without="head.")


def _hash(model: Model, settings: Any, without: str | None = None) -> str:
    digest = hashlib.sha256(repr(settings).encode())
    digest.update(model.extra_repr().encode())  # token merging, patch dropping: empty for a plain model
    for name, tensor in sorted(model.state_dict().items()):
        if without is None or not name.startswith(without):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
