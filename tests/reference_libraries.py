"""Reference libraries for comparisons, and models of theirs with no weight left at zero."""

import re
from collections.abc import Mapping
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from vitrail.weights.verify import declare_torchvision_operators


def reference_library(name: str) -> ModuleType:
    declare_torchvision_operators()
    module: ModuleType = pytest.importorskip(name)
    return module


def randomise_weights(model: nn.Module, scale: float = 0.1) -> nn.Module:
    for weight in model.parameters():
        weight.data.add_(scale * torch.randn_like(weight))
    return model.eval()


def randomise_sharply(model: nn.Module) -> nn.Module:
    """Give a model random weights that show a wrong number of heads, by sharp attention, and epsilon, by small tokens."""
    for name, weight in model.named_parameters():
        noise = torch.randn_like(weight)
        if re.search(r"pos_embed|token|latent|patch_embed\.proj\.bias|to_patch_embedding\.2\.bias", name):
            weight.data = 0.003 * noise
        elif weight.ndim in (2, 4):
            weight.data = noise * (2 * weight.shape[0] / weight.numel()) ** 0.5
        else:
            weight.data.add_(0.1 * noise)
    return model.eval()


def rename_tensors(state: Mapping[str, Tensor], rules: Mapping[str, str]) -> dict[str, Tensor]:
    """Return copies of tensors, their names changed by regular expressions, each applied in turn."""
    renamed = {}
    for name, tensor in state.items():
        for old, new in rules.items():
            name = re.sub(old, new, name)
        renamed[name] = tensor.clone()
    return renamed
