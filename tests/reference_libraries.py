"""Reference libraries for comparisons, and models of theirs with no weight left at zero."""

from types import ModuleType

import pytest
import torch
from torch import nn

from vitrail.weights.verify import declare_torchvision_operators


def reference_library(name: str) -> ModuleType:
    declare_torchvision_operators()
    module: ModuleType = pytest.importorskip(name)
    return module


def randomise_weights(model: nn.Module, scale: float = 0.1) -> nn.Module:
    for weight in model.parameters():
        weight.data.add_(scale * torch.randn_like(weight))
    return model.eval()
