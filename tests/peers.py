"""The libraries we compare with. PyPI's torchvision has compiled operators that do not load beside a CPU build of torch;
declaring two of them is enough for it, and so for timm and transformers, to be imported."""

from types import ModuleType

import pytest
import torch

_torchvision = torch.library.Library("torchvision", "DEF")  # kept: it lives as long as the process
for _name in ("nms", "qnms"):
    _torchvision.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def peer(name: str) -> ModuleType:
    module: ModuleType = pytest.importorskip(name)
    return module
