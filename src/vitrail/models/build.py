"""Build a model from its config or its name."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.models.config import ModelConfig, ViTConfig
from vitrail.models.resnet import ResNet
from vitrail.models.variants import variant
from vitrail.models.vit import ViT

Model = ViT | ResNet


def build(config_or_name: ModelConfig | str, *, device: torch.device | str = "cpu", **changes: Any) -> Model:
    """Build a model: ``build(config)`` or ``build("B/16", image=(224, 448), pool="gap")``; device "meta" allocates nothing."""
    if isinstance(config_or_name, str):
        config = variant(config_or_name, **changes)
    elif changes:
        raise VitrailError(f"changes go with a name; use dataclasses.replace(config, {next(iter(changes))}=...) instead")
    else:
        config = config_or_name
    with torch.device(device):
        model = _build_module(config)
    return model.to(device)  # fixed position tables are always computed on the CPU


def build_on_meta(config: ModelConfig) -> Model:
    """Build a model on the meta device, its weights to be assigned later; fixed position tables are materialised."""
    with torch.device("meta"):
        return _build_module(config)


def get_encoder(model: nn.Module) -> Model:
    """Return the encoder of a model with a decoder, or the model itself."""
    encoder: Any = getattr(model, "encoder", model)
    return encoder


def with_encoder(model: nn.Module, encoder: Model) -> Any:
    """Return the model with another encoder in place of its own, and a copy of its decoder."""
    return encoder if get_encoder(model) is model else deepcopy(model, {id(get_encoder(model)): encoder})


def decoder_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights that a model with a decoder has besides its encoder; none if it is an encoder."""
    if get_encoder(model) is model:
        return {}
    return {name: weight for name, weight in model.state_dict().items() if not name.startswith("encoder.")}


def with_metadata_of(encoder: Model, model: nn.Module) -> Any:
    """Return a model that a task has built around an encoder, with the encoder's config and metadata as attributes."""
    for name in ("config", "preprocess", "class_names", "metadata", "load_report"):
        if not hasattr(model, name):
            setattr(model, name, getattr(encoder, name))
    return model


def _build_module(config: ModelConfig) -> Model:
    return ViT(config) if isinstance(config, ViTConfig) else ResNet(config)
