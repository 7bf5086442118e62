"""SmoothQuant moves a factor from the activations to the weights, and changes nothing else."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.exporters.small import exportable_vit
from vitrail.exporters.smoothquant import smooth_activations
from vitrail.models.build import build
from vitrail.models.config import ResNetConfig
from vitrail.models.vit import ViT

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "without a bias, registers": {"qkv_bias": False, "registers": 2},
    "rotary, qk-norm": {"position": "rotary", "heads": 2, "qk_norm": True},
    "gated MLP": {"mlp_kind": "swiglu"},
    "post-norm": {"norm": "post"},
}


def uneven_vit(**changes: Any) -> ViT:
    """Build a model in which a few channels of norms and values are a hundred times the others."""
    model = exportable_vit(**changes)
    with torch.no_grad():
        blocks: Any = model.blocks
        for block in blocks:
            for norm in (block.norm1, block.norm2):
                norm.weight[3] *= 100
            block.attention.qkv.weight[-2] *= 100
    return model


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS.keys())
def test_a_smoothed_model_has_the_same_outputs(changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, images = uneven_vit(**changes), torch.randn(5, 3, 12, 15)
    with torch.no_grad():
        expected = model(images)
        assert_close(smooth_activations(model, images)(images), expected, rtol=1e-4, atol=1e-4)
        assert_close(model(images), expected, rtol=0, atol=0)  # the original is unchanged


def test_the_largest_channel_is_no_longer_far_beyond_the_others() -> None:
    torch.manual_seed(0)
    model, images = uneven_vit(), torch.randn(5, 3, 12, 15)
    for name in ("blocks.0.attention.qkv", "blocks.1.mlp.up", "blocks.1.attention.out"):
        before, after = (channel_spread(each, name, images) for each in (model, smooth_activations(model, images)))
        assert after < before / 4, name


def channel_spread(model: nn.Module, name: str, images: Tensor) -> float:
    """Return the largest input of a layer divided by the median of its channels' maxima."""
    inputs: list[Tensor] = []
    hook = model.get_submodule(name).register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.no_grad():
        model(images)
    hook.remove()
    channels = inputs[0].abs().flatten(0, -2).amax(dim=0)
    return float(channels.max() / channels.median())


def test_a_resnet_is_returned_unchanged() -> None:
    model = build(ResNetConfig(stages=(1, 1), classes=3, image=(32, 32)))
    assert smooth_activations(model, torch.zeros(1, 3, 32, 32)) is model
