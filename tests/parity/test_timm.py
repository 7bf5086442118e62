"""Equal logits to timm for the same random weights, in both directions, also at another size."""

import json
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

from tests.reference_libraries import randomise_weights, reference_library
from tests.small_models import small_vit
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.models.config import ResNetConfig, ViTConfig
from vitrail.weights.load import load
from vitrail.weights.save import save
from vitrail.weights.verify import verify

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def make_reference(**options: Any) -> nn.Module:
    reference_library("timm")
    small = {"img_size": 24, "patch_size": 6, "num_classes": 5, "embed_dim": 24, "depth": 3, "num_heads": 3, "mlp_ratio": 2}
    return randomise_weights(import_module("timm.models.vision_transformer").VisionTransformer(**{**small, **options}))


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "not square": {"img_size": (24, 40), "patch_size": (6, 5)},
    "average of normed tokens": {"class_token": False, "global_pool": "avg", "fc_norm": False},
    "norm of the average": {"class_token": False, "global_pool": "avg"},
    "average with a class token": {"global_pool": "avg"},
    "registers": {"reg_tokens": 2},
    "registers without a position": {"reg_tokens": 2, "no_embed_class": True},
    "registers and average": {"reg_tokens": 3, "class_token": False, "global_pool": "avg", "no_embed_class": True},
    "map": {"class_token": False, "global_pool": "map", "reg_tokens": 2, "no_embed_class": True},
    "average of normed tokens with a class token": {"global_pool": "avg", "fc_norm": False},
    "layer scale": {"init_values": 0.1},
    "qk-norm without bias": {"qk_norm": True, "qkv_bias": False},
    "five channels": {"in_chans": 5},
    "no classifier": {"num_classes": 0},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
def test_theirs_is_ours_and_ours_is_theirs(options: dict[str, Any], tmp_path: Path) -> None:
    theirs = make_reference(**options)
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    size = options.get("img_size", 24)
    grid = (4, 8) if isinstance(size, tuple) else None
    pool: Any = {"avg": "gap", "map": "map"}.get(options.get("global_pool", ""), "cls")
    ours = load(tmp_path / "theirs.pth", grid=grid, heads=3, pool=pool)
    images = torch.randn(2, options.get("in_chans", 3), *ours.config.image)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)
    save(ours, tmp_path / "ours.safetensors", format="timm")
    again = load(tmp_path / "ours.safetensors")  # grid and heads are in the file's header
    assert again.config == ours.config
    back = make_reference(**options)
    back.load_state_dict(load_file(tmp_path / "ours.safetensors"), strict=True)
    for name, weight in theirs.state_dict().items():
        assert_close(back.state_dict()[name], weight, rtol=0, atol=0)


@pytest.mark.parametrize(
    "options", [{}, {"reg_tokens": 2, "no_embed_class": True}, {"class_token": False, "global_pool": "avg"}], ids=str
)
@pytest.mark.parametrize("size", [36, (24, 42), 12])
def test_a_resized_position_table_is_timms(options: dict[str, Any], size: Any, tmp_path: Path) -> None:
    theirs = make_reference(**options)
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    larger = make_reference(img_size=size, **options)
    fit = import_module("timm.models.vision_transformer").checkpoint_filter_fn
    larger.load_state_dict(fit(dict(theirs.state_dict()), larger))
    ours = load(tmp_path / "theirs.pth", image=size, heads=3)
    images = torch.randn(2, 3, *ours.config.image)
    with torch.inference_mode():
        assert_close(ours(images), larger(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("vit_tiny_patch16_224", 224),
        ("vit_tiny_patch16_224", 384),
        pytest.param("vit_base_patch32_224", 224, marks=pytest.mark.thorough),
        ("vit_tiny_r_s16_p8_224", 224),
        pytest.param("vit_small_r26_s32_224", 224, marks=pytest.mark.thorough),
        pytest.param("vit_base_r50_s16_224", 224, marks=pytest.mark.thorough),
        pytest.param("vit_base_patch16_gap_224", 224, marks=pytest.mark.thorough),
        ("vit_small_patch14_reg4_dinov2", 98),
    ],
)
def test_published_shapes(name: str, side: int, tmp_path: Path) -> None:
    timm = reference_library("timm")
    options: dict[str, Any] = {"img_size": side} if side == 98 else {}
    theirs = randomise_weights(timm.create_model(name, num_classes=10, **options), scale=0.02)
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    heads = 16 if "gap" in name else None  # width 48 per head, which no file contains
    ours = load(tmp_path / "theirs.safetensors", image=side, heads=heads)
    if side == 384:
        larger = timm.create_model(name, num_classes=10, img_size=384).eval()
        larger.load_state_dict(
            import_module("timm.models.vision_transformer").checkpoint_filter_fn(theirs.state_dict(), larger)
        )
        theirs = larger
    images = torch.randn(1, 3, side, side)
    with torch.inference_mode():
        reference = theirs(images)
        assert_close(ours(images), reference, rtol=1e-5, atol=1e-5)
    save(ours, tmp_path / "back.safetensors", format="timm")
    theirs.load_state_dict(load_file(tmp_path / "back.safetensors"), strict=True)


WRAPPED: dict[str, Any] = {
    "DeiT": lambda state: {"model": state},
    "DINO": lambda state: {"teacher": {f"module.backbone.{name}": w for name, w in state.items()}, "student": {}, "epoch": 3},
    "a bare module": lambda state: {"state_dict": {f"module.{name}": weight for name, weight in state.items()}, "epoch": 7},
    "compiled": lambda state: {f"_orig_mod.{name}": weight for name, weight in state.items()},
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED.keys())
def test_wrappers_of_training_scripts_are_removed(wrap: Any, tmp_path: Path) -> None:
    theirs = make_reference()
    torch.save(wrap(theirs.state_dict()), tmp_path / "theirs.pth")
    images = torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        assert_close(load(tmp_path / "theirs.pth", heads=3)(images), theirs(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize("registers", [0, 2])
def test_dinos_own_files_are_resized_as_dino_does(registers: int, tmp_path: Path) -> None:
    """DINOv2's release without registers interpolates by (n + 0.1) / old, the one with registers as timm does."""
    theirs = make_reference(reg_tokens=registers, no_embed_class=bool(registers), init_values=0.1, num_classes=0)
    state = {name.replace("reg_token", "register_tokens"): weight for name, weight in theirs.state_dict().items()}
    torch.save({**state, "mask_token": torch.zeros(1, 24)}, tmp_path / "dinov2.pth")
    small, large = load(tmp_path / "dinov2.pth", heads=3), load(tmp_path / "dinov2.pth", heads=3, image=(36, 30))
    assert isinstance(large.config, ViTConfig)
    assert large.config.position_resize == ("timm" if registers else "dino")
    assert large.preprocess is not None
    assert large.preprocess.mean[0] == 0.485
    if not registers:
        table = small.get_parameter("positions.0.table.weight").detach().permute(2, 0, 1)[None]
        expected = nn.functional.interpolate(table, scale_factor=(6.1 / 4, 5.1 / 4), mode="bicubic")[0].permute(1, 2, 0)
        assert_close(large.get_parameter("positions.0.table.weight").detach(), expected, rtol=0, atol=1e-5)


def test_a_dino_head_is_reported_as_unused(tmp_path: Path) -> None:
    state = dict(make_reference(num_classes=0).state_dict()) | {
        "head.mlp.0.weight": torch.ones(3, 24),
        "head.last_layer.weight": torch.ones(2),
    }
    torch.save({"teacher": state}, tmp_path / "dino.pth")
    model = load(tmp_path / "dino.pth", heads=3)
    assert model.load_report.unused == ("head.mlp.0.weight", "head.last_layer.weight")


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("side", [64, 75])
def test_a_bit_resnet_is_timms(factor: int, side: int, tmp_path: Path) -> None:
    reference_library("timm")
    resnet = import_module("timm.models.resnetv2").ResNetV2
    conv = partial(import_module("timm.layers.std_conv").StdConv2d, eps=1e-8)
    options: dict[str, Any] = {"width_factor": factor, "num_classes": 7, "stem_type": "fixed", "conv_layer": conv}
    theirs = randomise_weights(resnet((2, 1), channels=(256, 512), **options))
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    ours = load(tmp_path / "theirs.pth", image=side)
    assert ours.config == ResNetConfig(stages=(2, 1), width=64 * factor, image=(side, side), classes=7)
    images = torch.randn(2, 3, side, side)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)
    save(ours, tmp_path / "back.pth", format="timm")
    back = torch.load(tmp_path / "back.pth", weights_only=True)
    for name, weight in theirs.state_dict().items():
        assert_close(back[name], weight, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["R50x1", "R50x3", "R101x1", "R152x2", "R152x4"])
def test_parameters_of_the_published_ones(name: str) -> None:
    timm = reference_library("timm")
    depth, _, factor = name.removeprefix("R").partition("x")
    with torch.device("meta"):
        theirs = timm.create_model(f"resnetv2_{depth}x{factor}_bit", num_classes=1000)
    counts = [sum(weight.numel() for weight in model.parameters()) for model in (build(name, device="meta"), theirs)]
    assert counts[0] == counts[1]


def test_a_config_file_supplies_what_the_weights_do_not(tmp_path: Path) -> None:
    """A folder as timm pushes it to the hub: not square, averaged, its own preprocessing and labels."""
    theirs = make_reference(img_size=(24, 40), patch_size=(6, 5), class_token=True, global_pool="avg", fc_norm=False)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    pretrained_cfg = {
        "input_size": [3, 24, 40],
        "crop_pct": 0.8,
        "crop_mode": "squash",
        "interpolation": "bilinear",
        "mean": [0.1, 0.2, 0.3],
        "std": [1, 1, 1],
    }
    config = {
        "architecture": "vit_base_patch16_224",
        "global_pool": "avg",
        "pretrained_cfg": pretrained_cfg,
        "model_args": {"num_heads": 3, "embed_dim": 24, "img_size": [24, 40], "fc_norm": False},
        "label_names": list("abcde"),
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = load(tmp_path)
    assert isinstance(ours.config, ViTConfig)
    assert (ours.config.grid, ours.config.pool, ours.config.heads) == ((4, 8), "gap", 3)
    assert ours.preprocess is not None
    assert (ours.preprocess.crop_pct, ours.preprocess.interpolation, ours.preprocess.mean) == (0.8, "bilinear", (0.1, 0.2, 0.3))
    assert ours.preprocess.fit == "stretch"
    assert ours.class_names == tuple("abcde")
    images = torch.randn(2, 3, 24, 40)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)


def test_the_pre_logits_layer_of_older_timm_is_read(tmp_path: Path) -> None:
    """As in the in21k files of 2021: a dense layer with tanh before the head."""
    theirs = make_reference(num_classes=0)
    hidden, head = nn.Linear(24, 24), nn.Linear(24, 5)
    extra = {f"pre_logits.fc.{name}": weight for name, weight in hidden.state_dict().items()}
    extra |= {f"head.{name}": weight for name, weight in head.state_dict().items()}
    torch.save({**theirs.state_dict(), **extra}, tmp_path / "in21k.pth")
    ours = load(tmp_path / "in21k.pth", heads=3)
    images = torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        assert_close(ours(images), head(torch.tanh(hidden(theirs(images)))), rtol=0, atol=1e-5)


def test_names_of_dinov2_and_deit_3(tmp_path: Path) -> None:
    theirs = make_reference(reg_tokens=2, init_values=0.1, no_embed_class=True, num_classes=0)
    state = {name.replace("reg_token", "register_tokens"): weight for name, weight in theirs.state_dict().items()}
    state = {name.replace(".ls1.gamma", ".gamma_1").replace(".ls2.gamma", ".gamma_2"): weight for name, weight in state.items()}
    torch.save({"model": {**state, "mask_token": torch.zeros(1, 24)}}, tmp_path / "deit_3_small.pth")
    ours = load(tmp_path / "deit_3_small.pth", heads=3)
    images = torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)
    assert ours.load_report.unused == ("mask_token",)
    (tmp_path / "deit_3_small.pth").rename(tmp_path / "small.pth")  # RoPE-ViT's files have the same tensors
    with pytest.raises(VitrailError, match=r"rotary positions without a tensor; .* deit_3_"):
        load(tmp_path / "small.pth", heads=3)


@pytest.mark.parametrize(
    "change", [{"global_pool": "max"}, {"model_args": {"pool_include_prefix": True}}, {"architecture": "vit_x_quickgelu"}]
)
def test_a_config_file_with_unsupported_options_is_rejected(change: dict[str, Any], tmp_path: Path) -> None:
    save_file(make_reference().state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(change))
    with pytest.raises(
        VitrailError, match=r"global_pool in config.json must be|Vision Transformers do not have|must be one that Vitrail knows"
    ):
        load(tmp_path)


def test_the_architecture_name_supplies_what_the_weights_do_not(tmp_path: Path) -> None:
    theirs = make_reference(class_token=False, global_pool="map", num_heads=4, act_layer="gelu_tanh")
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    config = {"architecture": "vit_so400m_patch16_siglip_256", "model_args": {"embed_dim": 24, "num_heads": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    images = torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        assert_close(load(tmp_path)(images), theirs(images), rtol=0, atol=1e-5)


def test_the_patch_resampling_is_flexivits(tmp_path: Path) -> None:
    """timm has the same construction; with its interpolation set to ours, the kernels are the same."""
    reference_library("timm")
    resample = import_module("timm.layers").resample_patch_embed
    model = small_vit(gelu="exact", patch=(6, 6), image=(12, 18))
    save(model, tmp_path / "ours.safetensors", format="timm")
    for patch in ((8, 8), (9, 4), (4, 4)):
        ours = load(tmp_path / "ours.safetensors", patch=patch, image=(patch[0] * 2, patch[1] * 3))
        theirs = resample(model.embed.project.weight.detach(), list(patch), interpolation="bilinear", antialias=False)
        assert_close(dict(ours.named_parameters())["embed.project.weight"].detach(), theirs, rtol=1e-4, atol=1e-5)


GATED = {"act_layer": nn.SiLU, "init_values": 0.1, "num_classes": 5}


@pytest.mark.parametrize("kind", ["SwiGLUPacked", "SwiGLU"])
def test_gated_mlps_are_timms(kind: str, tmp_path: Path) -> None:
    """Packed as in DINOv2's giant, or with gate and value apart; written packed, as timm's Vision Transformers have it."""
    layers = import_module("timm.layers")
    theirs = make_reference(mlp_layer=getattr(layers, kind), mlp_ratio=3, **GATED)
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    ours = load(tmp_path / "theirs.pth", heads=3)
    assert isinstance(ours.config, ViTConfig)
    assert (ours.config.mlp_kind, ours.config.mlp) == ("swiglu", 72 if kind == "SwiGLU" else 36)
    assert any(item.startswith("SwiGLU") for item in ours.load_report.assumed)
    images = torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)
    assert verify(tmp_path / "theirs.pth", heads=3).difference == pytest.approx(0, abs=1e-5)
    save(ours, tmp_path / "ours.safetensors", format="timm")
    assert load(tmp_path / "ours.safetensors").config == ours.config
    back = make_reference(mlp_layer=layers.SwiGLUPacked, mlp_ratio=ours.config.mlp_outputs / 24, **GATED)
    back.load_state_dict(load_file(tmp_path / "ours.safetensors"), strict=True)
    with torch.inference_mode():
        assert_close(back.eval()(images), theirs(images), rtol=0, atol=1e-5)


def test_the_gated_mlp_of_dinov2s_own_file_is_timms(tmp_path: Path) -> None:
    theirs = make_reference(mlp_layer=import_module("timm.layers").SwiGLUPacked, mlp_ratio=3, **GATED)
    names = {".mlp.fc1.": ".mlp.w12.", ".mlp.fc2.": ".mlp.w3."}
    tensors = dict(theirs.state_dict())
    for timms, dinos in names.items():
        tensors = {name.replace(timms, dinos): tensor for name, tensor in tensors.items()}
    torch.save(tensors, tmp_path / "theirs.pth")
    images = torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        assert_close(load(tmp_path / "theirs.pth", heads=3)(images), theirs(images), rtol=0, atol=1e-5)
    assert verify(tmp_path / "theirs.pth", heads=3).reference == "timm"


def test_a_gate_with_another_activation_is_refused(tmp_path: Path) -> None:
    theirs = make_reference(mlp_layer=import_module("timm.layers").SwiGLUPacked, mlp_ratio=3)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    arguments = {"embed_dim": 24, "num_heads": 3, "depth": 3, "patch_size": 6, "img_size": 24}
    config = {"architecture": "vit_tiny_patch16_224", "model_args": {**arguments, "act_layer": "gelu"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(VitrailError, match="must be silu with a gated MLP"):
        load(tmp_path)
