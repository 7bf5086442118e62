"""The computed cost against the built model: every number two ways."""

import weakref
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from tests.small_models import small_config
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.models.config import ModelConfig, RelativeBiasConfig, ResNetConfig, RotaryConfig, StemConfig
from vitrail.models.cost import cost
from vitrail.models.variants import RESNETS, SIZES, variant

NAMES = [
    *(f"{size}/{patch}" for size in SIZES for patch in (8, 14, 16, 32)),
    *("R+Ti/16", "R26+S/32", "R26+B/32", "R50+B/16", "R50+L/32"),
    *("R50x1", "R50x2", "R101x1", "R152x1", "R152x2", "R152x4", "R200x3"),
]
QUICK = ("mu/16", "Ti/16", "B/16", "R+Ti/16", "R50x1")
CHANGES: list[dict[str, Any]] = [
    {},
    {"pool": "gap"},
    {"pool": "map"},
    {"pool": "map", "registers": 2, "classes": 0},
    {"pool": "gap", "class_token": True},
    {"head": "mlp", "head_hidden": 17},
    {"head": "mlp", "classes": 0},
    {"classes": 0},
    {"norm": "post"},
    {"final_norm": "pooled"},
    {"final_norm": "pooled", "pool": "gap"},
    {"final_norm": "pooled", "pool": "map", "classes": 0},
    {"registers": 3},
    {"registers": 3, "position_prefix": "all"},
    {"position_prefix": "none"},
    {"position": "none"},
    {"position": "learned2d"},
    {"position": "learned2d-sum", "position_at": "every-layer"},
    {"position_at": "every-layer"},
    {"position_at": "every-layer-shared"},
    {"position": "sincos1d"},
    {"position": "sincos2d", "position_at": "every-layer"},
    {"position": "rotary"},
    {"position": "rotary", "qk_norm": True},
    {"position": "relative"},
    {"position": "relative", "qk_norm": True},
    {"position": "relative", "attention_dropout": 0.1},
    {"qk_norm": True},
    {"gelu": "quick"},
    {"mlp_kind": "swiglu"},
    {"mlp_kind": "swiglu", "dropout": 0.1, "mlp": 100},
    {"mlp_kind": "swiglu", "norm": "post"},
    {"pool": "cls+gap"},
    {"pool": "cls+gap", "registers": 2, "head": "mlp"},
    {"pool": "cls+gap", "classes": 0},
    {"gelu": "quick", "pool": "map"},
    {"patch_bias": False, "embed_norm": True},
    {"embed_norm": True, "dropout": 0.1},
    {"norm": "branch"},
    {"norm": "branch", "layer_scale": 1e-4},
    {"final_norm": "none"},
    {"final_norm": "none", "pool": "gap"},
    {"qkv_bias": False},
    {"dropout": 0.1},
    {"attention_dropout": 0.1},
    {"attention_dropout": 0.1, "qk_norm": True},
    {"layer_scale": 1e-4},
    {"stochastic_depth": 0.2},
    {"channels": 5},
    {"rotary": RotaryConfig(coordinates="scaled", offset=1.0)},
    {"position": "none", "rotary": RotaryConfig(coordinates="normalised"), "registers": 2},
    {"position": "none", "rotary": RotaryConfig(mixed=True)},
    {"rotary": RotaryConfig(mixed=True), "qk_norm": True},
    {"rotary": RotaryConfig(mixed=True), "qk_norm": True, "attention_dropout": 0.1, "registers": 2},
    {"position": "relative", "rotary": RotaryConfig()},
    {"position": "relative", "rotary": RotaryConfig(mixed=True)},
    {"position": "none", "relative_bias": RelativeBiasConfig()},
    {"relative_bias": RelativeBiasConfig(), "pool": "gap"},
    {"position": "none", "relative_bias": RelativeBiasConfig(shared=True)},
    {"position": "none", "relative_bias": RelativeBiasConfig("mlp", hidden=11)},
    {"position": "none", "relative_bias": RelativeBiasConfig("mlp", shared=True), "registers": 2, "qk_norm": True},
    {"relative_bias": RelativeBiasConfig(), "attention_dropout": 0.1},
    {"position": "rotary", "relative_bias": RelativeBiasConfig("mlp"), "attention_norm": True},
    {"rotary": RotaryConfig(mixed=True), "relative_bias": RelativeBiasConfig("mlp", hidden=11), "pool": "gap"},
    {"norm_kind": "rms"},
    {"norm_kind": "rms", "qk_norm": True, "final_norm": "pooled", "embed_norm": True},
    {"norm_kind": "rms", "mlp_norm": True, "attention_norm": True, "pool": "map"},
    {"norm_kind": "rms", "norm": "branch", "layer_scale": 1e-4, "qk_norm": True, "attention_norm": True},
    {"norm_kind": "rms", "patch_norm": "both", "mlp_norm": True, "mlp_kind": "swiglu"},
    {"patch_norm": "output"},
    {"patch_norm": "both"},
    {"attention_norm": True},
    {"attention_norm": True, "qk_norm": True, "position": "rotary"},
    {"mlp_norm": True},
    {"mlp_norm": True, "mlp_kind": "swiglu"},
    {"mlp_norm": True, "dropout": 0.1},
    {"mlp_norm": True, "gelu": "quick"},
    {"mlp_norm": True, "mlp": 160},
    {"key_bias": False},
    {"out_bias": False},
    {"pool": "map", "pool_heads": 2, "pool_mlp": 13},
    {"pool": "map", "pool_prefix": True, "registers": 2, "class_token": True},
    {"pool": "cls+register", "registers": 2},
    {"pool": "cls+register", "registers": 1, "classes": 0},
]
# On 4 x 4 patches, which windows of 2 divide and others need padding for; on 5 x 4, only below; on 4 x 7, only on the right
WINDOWED: list[dict[str, Any]] = [
    {"window": 2},
    {"window": 3},
    {"window": 4, "global_blocks": ()},
    {"window": 2, "pool": "gap", "image": (30, 20)},
    {"window": 2, "pool": "gap", "image": (30, 20), "attention_norm": True, "qk_norm": True, "relative_axes": True},
    {"window": 2, "image": (24, 35)},
    {"window": 3, "registers": 2, "global_blocks": ()},
    {"window": 3, "pool": "gap", "relative_axes": True},
    {"window": 2, "registers": 2, "relative_axes": True},
    {"window": 3, "relative_axes": True, "qk_norm": True, "position": "rotary", "attention_dropout": 0.1},
    {"window": 3, "qk_norm": True, "norm_kind": "rms", "pool": "gap"},
    {"window": 2, "attention_dropout": 0.1},
    {"window": 3, "position": "rotary", "qkv_bias": False},
    {"window": 2, "position": "none", "rotary": RotaryConfig(mixed=True), "qk_norm": True},
    {"window": 2, "position": "none", "rotary": RotaryConfig(mixed=True), "pool": "gap"},
    {"relative_axes": True},
    {"relative_axes": True, "pool": "gap", "qk_norm": True},
    {"relative_axes": True, "attention_dropout": 0.1, "position": "rotary"},
]
SMALL: list[ModelConfig] = [
    *(small_config(depth=3, **changes) for changes in CHANGES),
    *(
        small_config(**{"depth": 3, "image": (24, 20), "global_blocks": (2,) * ("window" in changes) or None, **changes})
        for changes in WINDOWED
    ),
    small_config(patch=(1, 1), stem=StemConfig(stages=(1, 2), width=32), image=(64, 48)),
    small_config(patch=(4, 2), stem=StemConfig(), image=(64, 48)),
    small_config(patch=(1, 1), stem=StemConfig(stages=(1, 1), width=32), image=(64, 48), patch_norm="both"),
    small_config(patch=(4, 2), stem=StemConfig(), image=(64, 48), patch_norm="both", norm_kind="rms"),
    ResNetConfig(stages=(2, 1), width=32, image=(64, 80)),
    ResNetConfig(stages=(2, 1, 2), width=64, image=(65, 83), classes=0),
]


def describe_changes(settings: ModelConfig) -> str:
    """Return what differs from the defaults."""
    sizes = ("width", "depth", "mlp", "heads", "patch", "image")
    changed = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name not in sizes}
    return " ".join(
        str(changed[field.name]) for field in fields(settings) if changed.get(field.name, field.default) != field.default
    )


def count_macs_and_parameters(settings: ModelConfig) -> tuple[int, int]:
    """Count on the meta device, where the fused kernel is counted too."""
    model = build(settings, device="meta").eval()
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, settings.channels, *settings.image, device="meta"))
    return counter.get_total_flops() // 2, sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in NAMES])
def test_macs_and_parameters_of_every_variant(name: str) -> None:
    patch = int(name.partition("/")[2] or 1)
    settings = variant(name, image=16 * patch if name.partition("/")[0] in SIZES else 224)
    total = cost(settings)
    assert (total.macs, total.parameters) == count_macs_and_parameters(settings)


@pytest.mark.parametrize("settings", SMALL, ids=describe_changes)
def test_macs_parameters_and_shapes_of_every_option(settings: ModelConfig) -> None:
    total = cost(settings, batch=2)
    model = build(settings)
    assert (total.macs, total.parameters) == count_macs_and_parameters(settings)
    images = torch.zeros(2, settings.channels, *settings.image)
    assert total.stages[0].shape == images.shape
    assert total.stages[-1].shape == model(images).shape


@pytest.mark.parametrize("settings", SMALL, ids=describe_changes)
def test_training_memory_is_what_autograd_saves(settings: ModelConfig) -> None:
    model, images = build(settings).train(), torch.randn(2, settings.channels, *settings.image)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    saved_storages: dict[int, Tensor] = {}

    def pack(saved: Tensor) -> Tensor:
        if saved.numel() and saved.untyped_storage().data_ptr() not in weights:
            saved_storages[saved.untyped_storage().data_ptr()] = saved  # the reference keeps the address from being reused
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        model(images)
    assert cost(settings, batch=2).memory.training == sum(saved.untyped_storage().nbytes() for saved in saved_storages.values())


@pytest.mark.parametrize(
    "settings",
    [*SMALL, variant("Ti/16"), pytest.param(variant("R26+S/32"), marks=pytest.mark.thorough)],
    ids=describe_changes,
)
def test_inference_memory_is_the_peak(settings: ModelConfig) -> None:
    model, images = build(settings).eval(), torch.randn(2, settings.channels, *settings.image)
    with torch.inference_mode(), PeakMemory(model, images) as memory:
        model(images)
    is_convolutional = isinstance(settings, ResNetConfig) or settings.stem is not None
    tolerance = 0.15 if is_convolutional else 0  # standardised kernels exist one after the other
    assert cost(settings, batch=2).memory.inference == pytest.approx(memory.peak, rel=tolerance)


class PeakMemory(TorchDispatchMode):
    """Tracks every storage from its allocation to its release."""

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        allocated = [images, *model.parameters(), *model.buffers()]
        self.tracked = {tensor.untyped_storage()._cdata for tensor in allocated}
        self.current = self.peak = images.nbytes

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self.tracked:
                storage = tensor.untyped_storage()
                self.tracked.add(storage._cdata)
                self.current += storage.nbytes()
                self.peak = max(self.peak, self.current)
                weakref.finalize(storage, self.release, storage._cdata, storage.nbytes())
        return out

    def release(self, key: int, size: int) -> None:
        self.tracked.discard(key)
        self.current -= size


def test_a_batch_multiplies_activations_and_nothing_else() -> None:
    one, eight = cost(variant("S/16")), cost(variant("S/16"), batch=8)
    assert (one.macs, one.parameters, one.memory.weights) == (eight.macs, eight.parameters, eight.memory.weights)
    assert (8 * one.memory.training, 8 * one.memory.inference) == (eight.memory.training, eight.memory.inference)
    with pytest.raises(VitrailError, match="batch must be at least 1, got 0"):
        cost(variant("S/16"), batch=0)


def test_stages_add_up_and_have_the_papers_shapes() -> None:
    total = cost(variant("B/16"), batch=2)
    shapes = list(dict.fromkeys(stage.shape for stage in total.stages))
    assert shapes == [(2, 3, 224, 224), (2, 196, 768), (2, 197, 768), (2, 768), (2, 1000)]
    assert sum(stage.parameters for stage in total.stages) == total.parameters
    assert (total.tokens, total.grid) == (197, (14, 14))


def test_every_resnet_of_the_paper_is_counted() -> None:
    assert all(any(name.startswith(f"{resnet}x") for name in NAMES) for resnet in RESNETS)
