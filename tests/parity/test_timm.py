"""timm's ResNets and hybrids for the same random weights: names differ, numbers must not."""

from functools import partial
from importlib import import_module

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.peers import peer
from vitrail.models.build import build
from vitrail.models.variants import ResNetConfig

pytestmark = pytest.mark.parity


def ours(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's resnetv2 names as ours."""
    state: dict[str, Tensor] = {}
    for name, weight in theirs.items():
        name = name.removeprefix("stem.").replace(".blocks.", ".").replace("downsample.conv", "shortcut")
        if name.startswith("head.fc"):
            name, weight = name.replace("head.fc", "head"), weight.flatten(1) if weight.ndim == 4 else weight
        state[name] = weight
    return state


def scrambled(model: nn.Module) -> nn.Module:
    for weight in model.parameters():
        weight.data.add_(0.1 * torch.randn_like(weight))
    return model.eval()


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("side", [64, 75])
def test_a_bit_resnet_is_timms(factor: int, side: int) -> None:
    peer("timm")
    make = import_module("timm.models.resnetv2").ResNetV2
    conv = partial(import_module("timm.layers.std_conv").StdConv2d, eps=1e-8)
    theirs = scrambled(
        make((2, 1), channels=(256, 512), width_factor=factor, num_classes=7, stem_type="fixed", conv_layer=conv)
    )
    model = build(ResNetConfig(stages=(2, 1), width=64 * factor, image=(side, side), classes=7)).eval()
    model.load_state_dict(ours(theirs.state_dict()))
    images = torch.randn(2, 3, side, side)
    assert_close(model(images), theirs(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["R50x1", "R50x3", "R101x1", "R152x2", "R152x4"])
def test_parameters_of_the_published_ones(name: str) -> None:
    timm = peer("timm")
    depth, _, factor = name.removeprefix("R").partition("x")
    with torch.device("meta"):
        theirs = timm.create_model(f"resnetv2_{depth}x{factor}_bit", num_classes=1000)
    counts = [sum(weight.numel() for weight in model.parameters()) for model in (build(name, device="meta"), theirs)]
    assert counts[0] == counts[1]
