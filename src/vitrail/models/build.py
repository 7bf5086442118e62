"""From settings, or a name, to a module."""

from typing import Any

import torch

from vitrail.errors import VitrailError
from vitrail.models.resnet import ResNet
from vitrail.models.variants import ModelConfig, ResNetConfig, ViTConfig, variant
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
    return model.to(device)  # fixed tables are always computed on the CPU, see layers/position.py


def _module(config: ModelConfig) -> Model:
    match config:
        case ViTConfig():
            return ViT(config)
        case ResNetConfig():
            return ResNet(config)
