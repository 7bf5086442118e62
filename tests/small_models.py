"""Small models with no two axes equal, for tests."""

from typing import Any

import torch

from vitrail.data.preprocess import Preprocess
from vitrail.models.build import build
from vitrail.models.config import RelativeBiasConfig, RotaryConfig, ViTConfig
from vitrail.models.masking_config import Masking
from vitrail.models.vit import ViT
from vitrail.recipes.task_config import Classification, MaskedImage
from vitrail.tasks.classification import ClassificationTask
from vitrail.tasks.masked_image import MaskedImageTask

# What published models have that the paper's do not; the heads of a width of 24 are 8 wide.
PUBLISHED_KINDS: dict[str, dict[str, Any]] = {
    "normalised rotary, registers": {"position": "none", "rotary": RotaryConfig(coordinates="normalised"), "registers": 4},
    "scaled rotary beside a table": {"rotary": RotaryConfig(10.0, "scaled", 1.0), "position_grid": (4, 5)},
    "mixed rotary": {"rotary": RotaryConfig(10.0, "index", mixed=True)},
    "bias by a table": {"position": "none", "relative_bias": RelativeBiasConfig(), "pool": "gap", "class_token": True},
    "bias by an MLP for all": {
        "position": "none",
        "relative_bias": RelativeBiasConfig("mlp", shared=True, hidden=7),
        "pool": "gap",
    },
    "RMSNorm, no biases": {"norm_kind": "rms", "mlp_kind": "swiglu", "out_bias": False, "patch_norm": "output"},
    "norms inside": {"attention_norm": True, "mlp_norm": True, "mlp_kind": "swiglu"},
    "keys without a bias": {"key_bias": False, "patch_norm": "both"},
    "pool all tokens": {"pool": "map", "pool_prefix": True, "pool_heads": 2, "pool_mlp": 11, "class_token": True},
    "class token and register": {"pool": "cls+register", "registers": 2},
    "windows, which need padding": {"window": 2, "global_blocks": (2,), "registers": 1},
    "windows, relative axes": {"window": 2, "global_blocks": (2,), "relative_axes": True, "pool": "gap"},
}


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


def classification_task(classes: int = 10, **settings: Any) -> ClassificationTask:
    """Return a classification task for images of any size."""
    return ClassificationTask(Classification(**settings), small_config(classes=classes), Preprocess((12, 15)))


def multi_label_vit(seed: int = 0, names: tuple[str, ...] = ("ant", "bee", "cat", "dog", "elk"), **changes: Any) -> ViT:
    """Return a small ViT that predicts several labels per image, with a threshold of its own for every class."""
    torch.manual_seed(seed)
    model = small_vit(classes=len(names), **changes)
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    model.preprocess, model.class_names = Preprocess((12, 15)), names
    thresholds = [0.2 + 0.6 * number / len(names) for number in range(len(names))]
    model.metadata = {"recipe": {"task": {"kind": "multi-label"}}, "task_state": {"thresholds": thresholds}}
    return model


def masked_task(masking: Masking, patch: tuple[int, int], preprocess: Preprocess, seed: int = 0) -> MaskedImageTask:
    """Return a task for a model with patches of this size, of as many channels as the preprocessing has."""
    model = small_config(patch=patch, image=preprocess.image_size, channels=len(preprocess.mean), classes=0)
    return MaskedImageTask(MaskedImage(masking), model, preprocess, seed=seed)
