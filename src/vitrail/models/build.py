"""From settings, or a name, to a module."""

from typing import Any

import torch

from vitrail.errors import VitrailError
from vitrail.models.resnet import ResNet
from vitrail.models.settings import ModelConfig, ViTConfig
from vitrail.models.variants import variant
from vitrail.models.vit import ViT

Model = ViT | ResNet


def build(what: ModelConfig | str, *, device: torch.device | str = "cpu", **changes: Any) -> Model:
    """``build(config)``, or ``build("B/16", image=(224, 448), pool="gap")``; on the meta device it takes no memory."""
    if isinstance(what, str):
        config = variant(what, **changes)
    elif changes:
        raise VitrailError(f"changes go with a name; use dataclasses.replace(config, {next(iter(changes))}=...) instead")
    else:
        config = what
    with torch.device(device):
        model = _module(config)
    return model.to(device)  # also what is always computed on the CPU: the fixed position tables


def skeleton(config: ModelConfig) -> Model:
    """A model whose weights are still to be assigned: they take no memory, while fixed position tables are there."""
    with torch.device("meta"):
        return _module(config)


def _module(config: ModelConfig) -> Model:
    return ViT(config) if isinstance(config, ViTConfig) else ResNet(config)
