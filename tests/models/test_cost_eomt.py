"""Cost of EoMT against the built model."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.small_models import small_config
from vitrail.data.preprocess import Preprocess
from vitrail.models.build import build
from vitrail.models.config import RelativeBiasConfig, ViTConfig
from vitrail.models.variants import variant
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.registry import build_task

SMALL = replace(small_config(depth=3, classes=0), image=(24, 40), patch=(8, 8))
LARGE: Any = variant("S/16", image=(96, 160), classes=0, class_token=True, registers=2, layer_scale=1.0)
CASES: dict[str, tuple[ViTConfig, dict[str, Any]]] = {
    "eomt": (SMALL, {"head": "eomt"}),
    "eomt without upscaling": (SMALL, {"head": "eomt", "query_blocks": 1, "upscale_blocks": 0, "queries": 7}),
    "eomt in all blocks": (replace(SMALL, mlp_kind="swiglu"), {"head": "eomt", "query_blocks": 3, "upscale_blocks": 2}),
    "eomt, rotary": (replace(SMALL, position="rotary"), {"head": "eomt"}),
    "eomt, tables in every layer": (replace(SMALL, position_at="every-layer"), {"head": "eomt"}),
    "eomt, a bias of offsets": (replace(SMALL, relative_bias=RelativeBiasConfig("mlp")), {"head": "eomt"}),
    "eomt, a table of offsets": (replace(SMALL, relative_bias=RelativeBiasConfig()), {"head": "eomt"}),
    "eomt, large": (LARGE, {"head": "eomt", "classes": 20}),
}


def built(config: ViTConfig, settings: dict[str, Any]) -> tuple[Segmentation, nn.Module]:
    names = tuple(map(str, range(settings.get("classes", 3))))
    task = build_task(Segmentation(**{"classes": 3, **settings}), config, Preprocess(config.image, 1.0, "stretch"), names)
    return task.config, task.build_model(build(config))


@pytest.mark.parametrize(("config", "settings"), CASES.values(), ids=CASES)
def test_parameters_and_macs_are_those_of_the_built_model(config: ViTConfig, settings: dict[str, Any]) -> None:
    task, model = built(config, settings)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.to("meta")(torch.empty(1, config.channels, *config.image, device="meta"))
    total = task.cost(config)
    assert (total.parameters, total.macs) == (
        sum(weight.numel() for weight in model.parameters()),
        counter.get_total_flops() // 2,
    )


@pytest.mark.parametrize(("config", "settings"), [CASES["eomt"], CASES["eomt, large"]], ids=["small", "large"])
def test_training_memory_is_close_to_what_autograd_saves(config: ViTConfig, settings: dict[str, Any]) -> None:
    """Within a twentieth: attention masks are not counted, nor the prefix tokens that the norms of a prediction get."""
    task, model = built(config, settings)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    saved_storages: dict[int, Tensor] = {}

    def pack(saved: Tensor) -> Tensor:
        if saved.numel() and saved.untyped_storage().data_ptr() not in weights:
            saved_storages[saved.untyped_storage().data_ptr()] = saved
        return saved

    blocks = task.num_query_blocks(config.depth)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        model.train()(torch.randn(2, config.channels, *config.image), torch.ones(2, blocks, task.num_queries, dtype=torch.bool))
    measured = sum(saved.untyped_storage().nbytes() for saved in saved_storages.values())
    assert task.cost(config, 2).memory.training == pytest.approx(measured, rel=0.05)
