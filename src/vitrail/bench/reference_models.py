"""The same Vision Transformer in other libraries, randomly initialised, as references for speed.

A library that is not installed, or has no such model, is left out.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.models.config import ViTConfig
from vitrail.weights.verify import declare_torchvision_operators

WEIGHT_DECAY = 0.05
TRAINING_LIBRARIES = ("timm", "transformers", "vit-pytorch")
INFERENCE_LIBRARIES = ("timm", "transformers", "torchvision", "vit-pytorch")  # inference only


def reference_models(config: ViTConfig, names: tuple[str, ...] = TRAINING_LIBRARIES) -> dict[str, nn.Module]:
    """Return models of this shape, by library."""
    declare_torchvision_operators()
    built: dict[str, nn.Module] = {}
    builders = {"timm": timm_vit, "transformers": _transformers, "torchvision": _torchvision, "vit-pytorch": _vit_pytorch}
    for name in names:
        try:
            built[name] = builders[name](config)
        except ImportError:
            continue
    return built


def plain_train_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], int]:
    """Return an eager training step as in tutorials: forward, cross-entropy, backward, AdamW. It returns the batch size."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=WEIGHT_DECAY)
    model.train()

    def step() -> int:
        optimiser.zero_grad()
        output: Any = model(images)
        loss = F.cross_entropy(getattr(output, "logits", output), labels)
        loss.backward()
        optimiser.step()
        loss.item()
        return len(labels)

    return step


def timm_vit(config: ViTConfig) -> nn.Module:
    declare_torchvision_operators()
    from timm.models.vision_transformer import VisionTransformer

    cls = config.has_class_token
    return VisionTransformer(
        img_size=config.image, patch_size=config.patch, in_chans=config.channels, num_classes=config.classes,
        embed_dim=config.width, depth=config.depth, num_heads=config.heads, mlp_ratio=(config.mlp + 0.5) / config.width,
        class_token=cls, global_pool="token" if cls else "avg",
    )  # fmt: skip


def _transformers(config: ViTConfig) -> nn.Module:
    """Build a ViT of transformers. It always has a class token, one token more than a config without it."""
    from transformers import ViTConfig as Theirs
    from transformers import ViTForImageClassification

    make: Any = Theirs  # it accepts more arguments than it declares
    return ViTForImageClassification(
        make(
            hidden_size=config.width, num_hidden_layers=config.depth, num_attention_heads=config.heads,
            intermediate_size=config.mlp, image_size=config.image, patch_size=config.patch, num_channels=config.channels,
            num_labels=config.classes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def _torchvision(config: ViTConfig) -> nn.Module:
    """Build a ViT of torchvision, for square images with a class token."""
    from torchvision.models.vision_transformer import VisionTransformer  # type: ignore[import-untyped]

    return VisionTransformer(
        image_size=config.image[0], patch_size=config.patch[0], num_layers=config.depth, num_heads=config.heads,
        hidden_dim=config.width, mlp_dim=config.mlp, num_classes=config.classes,
    )  # fmt: skip


def _vit_pytorch(config: ViTConfig) -> nn.Module:
    from vit_pytorch import SimpleViT, ViT  # type: ignore[import-untyped]

    make = ViT if config.has_class_token else SimpleViT
    return make(
        image_size=config.image, patch_size=config.patch, num_classes=config.classes, dim=config.width, depth=config.depth,
        heads=config.heads, mlp_dim=config.mlp, channels=config.channels, dim_head=config.width // config.heads,
    )  # fmt: skip
