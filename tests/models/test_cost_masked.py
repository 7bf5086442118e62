"""Cost of masked pre-training against the built model."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.small_models import small_config
from tests.tiers import quick_first
from vitrail.models.build import build
from vitrail.models.config import RelativeBiasConfig, RotaryConfig, ViTConfig
from vitrail.models.cost.masked import masked_cost
from vitrail.models.masked_autoencoders import build_masked_model
from vitrail.models.masking_config import Masking
from vitrail.models.variants import variant
from vitrail.models.vit import ViT

SMALL = replace(small_config(depth=3, classes=0), image=(24, 20), patch=(6, 5))
LARGE = variant("S/16", image=(96, 160), classes=0, class_token=True, position="sincos2d-mae")
METHODS = [
    Masking("masked-patch", target="mean-colour"),
    Masking("masked-patch", 0.4, target="pixels"),
    Masking("simmim", 0.6, mask_unit=2),
    Masking("mae", 0.75, decoder_width=48, decoder_depth=2, decoder_heads=3),
]
KINDS: dict[str, dict[str, Any]] = {  # with learned angles or biases of the visible patches
    "quick GELU, rotary": {"gelu": "quick", "position": "rotary"},
    "mixed rotary, RMSNorm": {"position": "none", "rotary": RotaryConfig(mixed=True), "norm_kind": "rms", "patch_norm": "both"},
    "bias by a table": {"relative_bias": RelativeBiasConfig()},
    "bias by an MLP": {"relative_bias": RelativeBiasConfig("mlp"), "registers": 2},
    "bias by an MLP for all": {"relative_bias": RelativeBiasConfig("mlp", shared=True)},
    "tables in every layer": {"position_at": "every-layer", "qk_norm": True},
}
CASES = [
    *((SMALL, masking) for masking in METHODS),
    *((replace(SMALL, **changes), METHODS[3]) for changes in KINDS.values()),
    *((LARGE, masking) for masking in METHODS),
]
NAMES = [
    *(f"{masking.method} {masking.target} small" for masking in METHODS),
    *KINDS,
    *(f"{masking.method} {masking.target} large" for masking in METHODS),
]


def count_built(model: ViTConfig, masking: Masking) -> tuple[int, int]:
    """Return parameters, and MACs for one image."""
    encoder = build(model)
    assert isinstance(encoder, ViT)
    built = build_masked_model(encoder, masking).to("meta")  # where the fused kernel is counted too
    images, noise = torch.empty(1, model.channels, *model.image), torch.empty(1, masking.num_noise_values(model.grid))
    with FlopCounterMode(display=False) as counter:
        built(images.to("meta"), noise.to("meta"))
    return sum(weight.numel() for weight in built.parameters()), counter.get_total_flops() // 2


@pytest.mark.parametrize(("model", "masking"), quick_first(CASES, len(METHODS) + len(KINDS)), ids=NAMES)
def test_parameters_and_macs_are_those_of_the_built_model(model: ViTConfig, masking: Masking) -> None:
    total = masked_cost(model, masking)
    assert (total.parameters, total.macs) == count_built(model, masking)


@pytest.mark.parametrize(("model", "masking"), quick_first(CASES, len(METHODS) + len(KINDS)), ids=NAMES)
def test_training_memory_is_close_to_what_autograd_saves(model: ViTConfig, masking: Masking) -> None:
    """Within a hundredth: patch indices and copies of the corrupted patches are not counted."""
    encoder = build(model)
    assert isinstance(encoder, ViT)
    built = build_masked_model(encoder, masking).train()
    weights = {weight.untyped_storage().data_ptr() for weight in built.parameters()}
    saved_storages: dict[int, Tensor] = {}

    def pack(saved: Tensor) -> Tensor:
        if saved.numel() and saved.untyped_storage().data_ptr() not in weights:
            saved_storages[saved.untyped_storage().data_ptr()] = saved
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        built(torch.randn(2, model.channels, *model.image), torch.rand(2, masking.num_noise_values(model.grid)))
    measured = sum(saved.untyped_storage().nbytes() for saved in saved_storages.values())
    assert masked_cost(model, masking, batch=2).memory.training == pytest.approx(measured, rel=0.01)


def test_mae_is_cheaper_the_more_it_masks() -> None:
    totals = [masked_cost(LARGE, replace(METHODS[3], mask_ratio=ratio)) for ratio in (0.2, 0.5, 0.9)]
    assert totals[0].macs > totals[1].macs > totals[2].macs
    assert len({total.parameters for total in totals}) == 1
