"""What learning from hidden patches costs, against the built model."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.small import config
from vitrail.models.build import build
from vitrail.models.cost_masked import masked_cost
from vitrail.models.masked import masked
from vitrail.models.masking import Masking
from vitrail.models.settings import ViTConfig
from vitrail.models.variants import variant
from vitrail.models.vit import ViT

LITTLE = replace(config(depth=3, classes=0), image=(24, 20), patch=(6, 5))
LARGE = variant("S/16", image=(96, 160), classes=0, class_token=True, position="sincos2d-mae")
METHODS = [
    Masking("masked-patch", target="colour"),
    Masking("masked-patch", 0.4, target="pixels"),
    Masking("simmim", 0.6, unit=2),
    Masking("mae", 0.75, decoder_width=48, decoder_depth=2, decoder_heads=3),
]
CASES = [(model, how) for model in (LITTLE, LARGE) for how in METHODS]
NAMES = [f"{how.method} {how.target} {model.width}" for model, how in CASES]


def counted(model: ViTConfig, how: Masking) -> tuple[int, int]:
    """Parameters, and MACs of one picture."""
    encoder = build(model)
    assert isinstance(encoder, ViT)
    built = masked(encoder, how).to("meta")  # where the fused kernel is counted, too
    images, noise = torch.empty(1, model.channels, *model.image), torch.empty(1, how.slots(model.grid))
    with FlopCounterMode(display=False) as counter:
        built(images.to("meta"), noise.to("meta"))
    return sum(weight.numel() for weight in built.parameters()), counter.get_total_flops() // 2


@pytest.mark.parametrize(("model", "how"), CASES, ids=NAMES)
def test_parameters_and_macs_are_those_of_the_built_model(model: ViTConfig, how: Masking) -> None:
    bill = masked_cost(model, how)
    assert (bill.parameters, bill.macs) == counted(model, how)


@pytest.mark.parametrize(("model", "how"), CASES, ids=NAMES)
def test_what_autograd_keeps_is_near_what_is_said(model: ViTConfig, how: Masking) -> None:
    """Within a tenth: places of patches and copies of the corrupted ones are left out."""
    encoder = build(model)
    assert isinstance(encoder, ViT)
    built = masked(encoder, how).train()
    weights = {weight.untyped_storage().data_ptr() for weight in built.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(saved: Tensor) -> Tensor:
        if saved.numel() and saved.untyped_storage().data_ptr() not in weights:
            kept[saved.untyped_storage().data_ptr()] = saved
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        built(torch.randn(2, model.channels, *model.image), torch.rand(2, how.slots(model.grid)))
    measured = sum(saved.untyped_storage().nbytes() for saved in kept.values())
    assert masked_cost(model, how, batch=2).memory.training == pytest.approx(measured, rel=0.1)


def test_mae_is_cheaper_the_more_it_hides() -> None:
    bills = [masked_cost(LARGE, replace(METHODS[3], share=share)) for share in (0.2, 0.5, 0.9)]
    assert bills[0].macs > bills[1].macs > bills[2].macs
    assert len({bill.parameters for bill in bills}) == 1
