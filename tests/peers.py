"""Reference libraries for comparisons, and models of theirs with no weight left at zero."""

from types import ModuleType

import pytest
import torch
from torch import nn

from vitrail.weights.verify import declare_operators


def peer(name: str) -> ModuleType:
    declare_operators()
    module: ModuleType = pytest.importorskip(name)
    return module


def scrambled(model: nn.Module, by: float = 0.1) -> nn.Module:
    for weight in model.parameters():
        weight.data.add_(by * torch.randn_like(weight))
    return model.eval()
