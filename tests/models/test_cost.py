"""The cost model against the built model: two routes to every number."""

import weakref
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from tests.small import config
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.models.cost import cost
from vitrail.models.settings import ModelConfig, ResNetConfig, Stem
from vitrail.models.variants import RESNETS, SIZES, variant

NAMES = [
    *(f"{size}/{patch}" for size in SIZES for patch in (8, 14, 16, 32)),
    *("R+Ti/16", "R26+S/32", "R26+B/32", "R50+B/16", "R50+L/32"),
    *("R50x1", "R50x2", "R101x1", "R152x1", "R152x2", "R152x4", "R200x3"),
]
CHANGES: list[dict[str, Any]] = [
    {},
    {"pool": "gap"},
    {"pool": "map"},
    {"pool": "map", "registers": 2, "classes": 0},
    {"pool": "gap", "class_token": True},
    {"head": "mlp", "head_width": 17},
    {"head": "mlp", "classes": 0},
    {"classes": 0},
    {"norm": "post"},
    {"norm_at": "pooled"},
    {"norm_at": "pooled", "pool": "gap"},
    {"norm_at": "pooled", "pool": "map", "classes": 0},
    {"registers": 3},
    {"registers": 3, "position_covers": "all"},
    {"position_covers": "patches"},
    {"position": "none"},
    {"position": "learned2d"},
    {"position": "learned2d-sum", "position_at": "every"},
    {"position_at": "every"},
    {"position_at": "shared"},
    {"position": "sincos1d"},
    {"position": "sincos2d", "position_at": "every"},
    {"position": "rotary"},
    {"position": "rotary", "qk_norm": True},
    {"position": "relative"},
    {"position": "relative", "qk_norm": True},
    {"position": "relative", "attention_dropout": 0.1},
    {"qk_norm": True},
    {"qkv_bias": False},
    {"dropout": 0.1},
    {"attention_dropout": 0.1},
    {"attention_dropout": 0.1, "qk_norm": True},
    {"layer_scale": 1e-4},
    {"stochastic_depth": 0.2},
    {"channels": 5},
]
SMALL: list[ModelConfig] = [
    *(config(depth=3, **changes) for changes in CHANGES),
    config(patch=(1, 1), stem=Stem(stages=(1, 2), width=32), image=(64, 48)),
    config(patch=(4, 2), stem=Stem(), image=(64, 48)),
    ResNetConfig(stages=(2, 1), width=32, image=(64, 80)),
    ResNetConfig(stages=(2, 1, 2), width=64, image=(65, 83), classes=0),
]


def label(settings: ModelConfig) -> str:
    """What differs from the defaults."""
    sizes = ("width", "depth", "mlp", "heads", "patch", "image")
    changed = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name not in sizes}
    return " ".join(
        str(changed[field.name]) for field in fields(settings) if changed.get(field.name, field.default) != field.default
    )


def counted_macs(settings: ModelConfig) -> int:
    """On the meta device, where the fused kernel is counted too."""
    with FlopCounterMode(display=False) as counter:
        build(settings, device="meta").eval()(torch.empty(1, settings.channels, *settings.image, device="meta"))
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("name", NAMES)
def test_macs_and_parameters_of_every_variant(name: str) -> None:
    patch = int(name.partition("/")[2] or 1)
    settings = variant(name, image=16 * patch if name.partition("/")[0] in SIZES else 224)
    bill = cost(settings)
    assert bill.macs == counted_macs(settings)
    assert bill.parameters == sum(weight.numel() for weight in build(settings, device="meta").parameters())


@pytest.mark.parametrize("settings", SMALL, ids=label)
def test_macs_parameters_and_shapes_of_every_option(settings: ModelConfig) -> None:
    bill = cost(settings, batch=2)
    model = build(settings)
    assert bill.macs == counted_macs(settings)
    assert bill.parameters == sum(weight.numel() for weight in model.parameters())
    images = torch.zeros(2, settings.channels, *settings.image)
    assert bill.stages[0].shape == images.shape
    assert bill.stages[-1].shape == model(images).shape


@pytest.mark.parametrize("settings", SMALL, ids=label)
def test_training_memory_is_what_autograd_keeps(settings: ModelConfig) -> None:
    model, images = build(settings).train(), torch.randn(2, settings.channels, *settings.image)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(saved: Tensor) -> Tensor:
        if saved.numel() and saved.untyped_storage().data_ptr() not in weights:
            kept[saved.untyped_storage().data_ptr()] = saved  # holding it keeps the address from being used again
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        model(images)
    assert cost(settings, batch=2).memory.training == sum(saved.untyped_storage().nbytes() for saved in kept.values())


@pytest.mark.parametrize("settings", [*SMALL, variant("Ti/16"), variant("R26+S/32")], ids=label)
def test_inference_memory_is_what_is_alive_at_most(settings: ModelConfig) -> None:
    model, images = build(settings).eval(), torch.randn(2, settings.channels, *settings.image)
    with torch.inference_mode(), Alive(model, images) as alive:
        model(images)
    assert cost(settings, batch=2).memory.inference == pytest.approx(alive.most, rel=0.15)


class Alive(TorchDispatchMode):
    """Follows every storage from its making to its end."""

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        given = [images, *model.parameters(), *model.buffers()]
        self.known = {tensor.untyped_storage()._cdata for tensor in given}
        self.now = self.most = images.nbytes

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self.known:
                storage = tensor.untyped_storage()
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self.gone, storage._cdata, storage.nbytes())
        return out

    def gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def test_a_batch_multiplies_activations_and_nothing_else() -> None:
    one, eight = cost(variant("S/16")), cost(variant("S/16"), batch=8)
    assert (one.macs, one.parameters, one.memory.weights) == (eight.macs, eight.parameters, eight.memory.weights)
    assert (8 * one.memory.training, 8 * one.memory.inference) == (eight.memory.training, eight.memory.inference)
    with pytest.raises(VitrailError, match="batch must be at least 1, got 0"):
        cost(variant("S/16"), batch=0)


def test_stages_add_up_and_read_like_the_textbook() -> None:
    bill = cost(variant("B/16"), batch=2)
    shapes = list(dict.fromkeys(stage.shape for stage in bill.stages))
    assert shapes == [(2, 3, 224, 224), (2, 196, 768), (2, 197, 768), (2, 768), (2, 1000)]
    assert sum(stage.parameters for stage in bill.stages) == bill.parameters
    assert (bill.tokens, bill.grid) == (197, (14, 14))


def test_every_resnet_of_the_paper_is_counted() -> None:
    assert all(any(name.startswith(f"{resnet}x") for name in NAMES) for resnet in RESNETS)
