"""Cost of segmentation models against the built ones."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from tests.models.test_cost import PeakMemory
from tests.small_models import small_config
from tests.tiers import quick_first
from vitrail.data.preprocess import Preprocess
from vitrail.models.build import build
from vitrail.models.config import StemConfig, ViTConfig
from vitrail.models.variants import variant
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.registry import build_task

HEADS: list[dict[str, Any]] = [
    {},
    {"layers": (2, 4)},
    {"subpatch": False},
    {"subpatch": False, "layers": (1, 4)},
    {"head": "segmenter"},
    {"head": "segmenter", "decoder_depth": 1, "decoder_width": 30, "decoder_heads": 2},
]
ENCODERS: list[dict[str, Any]] = [
    {"registers": 2, "pool": "map", "dropout": 0.1},
    {"pool": "gap", "gelu": "quick"},
    {"pool": "gap", "final_norm": "pooled"},
    {"patch": (4, 2), "stem": StemConfig(), "image": (64, 48)},
]
CASES = [
    *((small_config(classes=0), head) for head in HEADS),
    *((variant("Ti/16", classes=0, image=(96, 160)), head) for head in HEADS),
    *((small_config(classes=0, **changes), head) for changes in ENCODERS for head in HEADS),
]
every_case = pytest.mark.parametrize(("config", "settings"), quick_first(CASES, 2 * len(HEADS)))


def build_segmenter(config: ViTConfig, settings: dict[str, Any], classes: int = 7) -> torch.nn.Module:
    task = build_task(Segmentation(classes=classes, **settings), config, Preprocess(config.image), tuple("abcdefg"))
    return task.build_model(build(config))


@every_case
def test_parameters_macs_and_shapes_are_those_of_the_built_model(config: ViTConfig, settings: dict[str, Any]) -> None:
    total = Segmentation(classes=7, **settings).cost(config, batch_size=2)
    model, images = build_segmenter(config, settings).to("meta"), torch.empty(2, config.channels, *config.image, device="meta")
    with FlopCounterMode(display=False) as counter:
        logits = model(images)
    assert total.macs == counter.get_total_flops() // 4
    assert total.parameters == sum(weight.numel() for weight in model.parameters())
    assert total.stages[-1].shape == logits.shape == (2, 7, *config.image)


@every_case
def test_training_memory_is_what_autograd_saves(config: ViTConfig, settings: dict[str, Any]) -> None:
    """Up to the loss, whose masks count as 64-bit indices."""
    model, images = build_segmenter(config, settings).train(), torch.randn(2, config.channels, *config.image)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    saved_storages: dict[int, Tensor] = {}

    def pack(saved: Tensor) -> Tensor:
        if saved.numel() > 1 and saved.untyped_storage().data_ptr() not in weights:
            saved_storages[saved.untyped_storage().data_ptr()] = saved
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        F.cross_entropy(model(images), torch.zeros(2, *config.image, dtype=torch.int64))
    measured = sum(saved.untyped_storage().nbytes() for saved in saved_storages.values())
    assert Segmentation(classes=7, **settings).cost(config, batch_size=2).memory.training == measured


@every_case
def test_inference_memory_is_the_peak(config: ViTConfig, settings: dict[str, Any]) -> None:
    model, images = build_segmenter(config, settings).eval(), torch.randn(2, config.channels, *config.image)
    with torch.inference_mode(), PeakMemory(model, images) as memory:
        model(images)
    tolerance = 0.15 if config.stem else 0  # standardised kernels exist one after the other
    assert Segmentation(classes=7, **settings).cost(config, batch_size=2).memory.inference == pytest.approx(
        memory.peak, rel=tolerance
    )
