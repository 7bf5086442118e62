"""Small models with no two axes equal, for tests."""

from typing import Any

from vitrail.models.build import build
from vitrail.models.config import ViTConfig
from vitrail.models.vit import ViT


def small_config(**changes: Any) -> ViTConfig:
    """Return a config of 2 x 3 patches, width 24 in 3 heads of 8, MLP width 40, 4 layers, 5 classes."""
    defaults: dict[str, Any] = {
        "width": 24,
        "depth": 4,
        "mlp": 40,
        "heads": 3,
        "patch": (6, 5),
        "image": (12, 15),
        "classes": 5,
    }
    return ViTConfig(**{**defaults, **changes})


def small_vit(**changes: Any) -> ViT:
    """Return a small ViT in eval mode with random weights: zero heads and equal tokens would hide differences."""
    model = build(small_config(**changes))
    assert isinstance(model, ViT)
    for weight in model.parameters():
        weight.data.add_(0.1 * weight.data.new_empty(weight.shape).normal_())
    return model.eval()
