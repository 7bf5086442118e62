"""OpenMMLab's Vision Transformers in their own names equal timm's with the same weights."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from tests.reference_libraries import randomise_sharply, reference_library, rename_tensors
from vitrail.errors import VitrailError
from vitrail.weights.load import load

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SMALL = {"img_size": 24, "patch_size": 6, "num_classes": 5, "embed_dim": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 2}
# as in mmpretrain/models/backbones/vision_transformer.py and heads/vision_transformer_head.py
MMPRETRAIN = {
    r"^(head|head_dist)\.": r"head.layers.\1.",
    r"^norm\.": "backbone.ln1.",
    r"^fc_norm\.": "backbone.ln2.",
    r"^patch_embed\.proj\.": "backbone.patch_embed.projection.",
    r"^(cls_token|dist_token|pos_embed)$": r"backbone.\1",
    r"^blocks\.": "backbone.layers.",
    r"\.norm1\.": ".ln1.",
    r"\.norm2\.": ".ln2.",
    r"\.mlp\.fc1\.": ".ffn.layers.0.0.",
    r"\.mlp\.fc2\.": ".ffn.layers.1.",
    r"\.ls1\.gamma$": ".attn.gamma1.weight",
    r"\.ls2\.gamma$": ".ffn.gamma2.weight",
}
SWIGLU = {**MMPRETRAIN, r"\.ffn\.layers\.0\.0\.": ".ffn.w12.", r"\.ffn\.layers\.1\.": ".ffn.w3."}
MMSEG = {**MMPRETRAIN, r"\.attn\.qkv\.": ".attn.attn.in_proj_", r"\.attn\.proj\.": ".attn.attn.out_proj."}


def build(module: str = "vision_transformer", name: str = "VisionTransformer", **options: Any) -> Any:
    reference_library("timm")
    return randomise_sharply(getattr(import_module(f"timm.models.{module}"), name)(**{**SMALL, **options}))


def write(state: dict[str, Tensor], path: Path) -> Path:
    torch.save({"meta": {"epoch": 300, "CLASSES": None}, "state_dict": state}, path)
    return path


def assert_equal(theirs: Callable[[Tensor], Tensor], ours: Any) -> None:
    images = 0.01 * torch.randn(2, 3, *ours.config.image)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)


CASES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "ViT": ({}, MMPRETRAIN),
    "DeiT III": ({"no_embed_class": True, "init_values": 0.1}, MMPRETRAIN),
    "MAE, fine-tuned": ({"global_pool": "avg"}, MMPRETRAIN),
    "linear classifier": ({}, {**MMPRETRAIN, r"^head\.layers\.head\.": "head.fc."}),
    "norm1 for ln1": ({}, {**MMPRETRAIN, r"\.ln([12])\.": r".norm\1."}),
}


@pytest.mark.parametrize(("options", "names"), CASES.values(), ids=CASES.keys())
def test_mmpretrain_is_timms(options: dict[str, Any], names: dict[str, str], tmp_path: Path) -> None:
    theirs = build(**options)
    ours = load(write(rename_tensors(theirs.state_dict(), names), tmp_path / "vit.pth"), heads=3)
    assert_equal(theirs, ours)
    assert ours.load_report.origin == "mmpretrain"
    assert ours.load_report.unused == ("meta",)


def test_dinov2_giant_has_a_gated_mlp(tmp_path: Path) -> None:
    reference_library("timm")
    swiglu = import_module("timm.layers").SwiGLUPacked
    theirs = build(num_classes=0, init_values=0.1, mlp_layer=swiglu, act_layer=torch.nn.SiLU)
    ours = load(write(rename_tensors(theirs.state_dict(), SWIGLU), tmp_path / "dinov2.pth"), heads=3)
    assert_equal(theirs, ours)


def test_a_distilled_deit_reads_both_tokens(tmp_path: Path) -> None:
    theirs = build("deit", "VisionTransformerDistilled")
    ours = load(write(rename_tensors(theirs.state_dict(), MMPRETRAIN), tmp_path / "deit.pth"), heads=3)
    assert_equal(theirs, ours)


def test_beit_has_its_table_of_offsets(tmp_path: Path) -> None:
    theirs = build("beit", "Beit", use_abs_pos_emb=False, use_rel_pos_bias=True, init_values=0.1)
    ours = load(write(rename_tensors(theirs.state_dict(), MMPRETRAIN), tmp_path / "beit.pth"), heads=3)
    assert_equal(theirs, ours)


@pytest.mark.parametrize("final_norm", [True, False])
def test_a_backbone_of_mmsegmentation_returns_the_mean_of_its_patches(final_norm: bool, tmp_path: Path) -> None:
    theirs = build(num_classes=0, final_norm=final_norm)
    decoder = {"decode_head.conv_seg.weight": torch.randn(7, 32, 1, 1), "decode_head.conv_seg.bias": torch.randn(7)}
    state = rename_tensors(theirs.state_dict(), MMSEG)
    ours = load(write({**state, **decoder}, tmp_path / "segmenter.pth"), heads=3)
    assert_equal(lambda images: theirs.forward_features(images)[:, 1:].mean(dim=1), ours)
    assert set(ours.load_report.unused) == {"meta", *decoder}


def test_pre_training_of_mae_leaves_its_decoder_aside(tmp_path: Path) -> None:
    theirs = build(num_classes=0)
    decoder = {"neck.mask_token": torch.randn(1, 1, 16), "neck.decoder_embed.weight": torch.randn(16, 24)}
    ours = load(write({**rename_tensors(theirs.state_dict(), MMPRETRAIN), **decoder}, tmp_path / "mae.pth"), heads=3)
    assert_equal(theirs, ours)
    assert set(ours.load_report.unused) == {"meta", *decoder}


def test_another_image_size_resizes_the_table_as_mmpretrain_does(tmp_path: Path) -> None:
    theirs = build()
    ours = load(write(rename_tensors(theirs.state_dict(), MMPRETRAIN), tmp_path / "vit.pth"), heads=3, image=(18, 42))
    larger = build(img_size=(18, 42))
    table = theirs.pos_embed.data
    grid = F.interpolate(table[:, 1:].reshape(1, 4, 4, 24).permute(0, 3, 1, 2), (3, 7), mode="bicubic", align_corners=False)
    resized = torch.cat([table[:, :1], grid.flatten(2).transpose(1, 2)], dim=1)
    larger.load_state_dict({**theirs.state_dict(), "pos_embed": resized})
    assert_equal(larger, ours)


def test_weights_in_bfloat16_are_near(tmp_path: Path) -> None:
    theirs = build()
    state = {name: tensor.bfloat16() for name, tensor in rename_tensors(theirs.state_dict(), MMPRETRAIN).items()}
    ours = load(write(state, tmp_path / "vit.pth"), heads=3)
    images = torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=0, atol=0.1)


def test_the_small_vit_has_eight_heads(tmp_path: Path) -> None:
    theirs = build(embed_dim=768, depth=8, num_heads=8, mlp_ratio=3)
    path = write(rename_tensors(theirs.state_dict(), MMPRETRAIN), tmp_path / "vit-small-p16.pth")
    assert_equal(theirs, load(path))


def test_the_preprocessing_follows_the_name_and_the_tensors(tmp_path: Path) -> None:
    plain = rename_tensors(build().state_dict(), MMPRETRAIN)
    scaled = rename_tensors(build(init_values=0.1).state_dict(), MMPRETRAIN)
    for state, name, mean in ((plain, "vit-base", 0.5), (plain, "deit-small", 0.485), (scaled, "deit3-small", 0.485)):
        ours = load(write(state, tmp_path / f"{name}.pth"), heads=3)
        assert ours.preprocess is not None
        assert ours.preprocess.mean[0] == mean


def edit(state: dict[str, Tensor], change: str) -> dict[str, Tensor]:
    """Return the tensors of a file that must be refused."""
    without = {name: tensor for name, tensor in state.items() if name != change.removeprefix("without ")}
    norm = {"weight": torch.ones(24), "bias": torch.zeros(24)}
    added = {
        "norm before the blocks": {f"backbone.pre_norm.{part}": tensor for part, tensor in norm.items()},
        "two last norms": {f"backbone.ln2.{part}": tensor for part, tensor in norm.items()},
        "norm of the patches": {f"backbone.patch_embed.norm.{part}": tensor for part, tensor in norm.items()},
        "third layer": {"backbone.layers.0.ffn.layers.2.weight": torch.ones(24, 24)},
        "wrong rows": {"backbone.layers.1.attn.qkv.weight": torch.ones(70, 24)},
        "scalar": {"head.layers.head.weight": torch.ones(())},
    }
    return {**without, **added.get(change, {})}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("without backbone.layers.1.attn.proj.weight", "the file lacks blocks.1.attn.proj.weight .in the names of timm"),
        ("without backbone.pos_embed", "the file lacks pos_embed"),
        ("without backbone.patch_embed.projection.bias", "the file lacks patch_embed.projection.bias"),
        ("without head.layers.head.bias", "the file lacks head.layers.head.bias"),
        ("without backbone.cls_token", "no class token in mmpretrain's names, as ViTPose"),
        ("norm before the blocks", "CLIP's norm before the blocks in mmpretrain's names"),
        ("two last norms", "a norm of every token and one of their mean"),
        ("norm of the patches", "a norm of the embedded patches"),
        ("third layer", r"the file has blocks.0.ffn.layers.2.weight, which"),
        ("wrong rows", r"q, k and v must have the shape \[72, 24\], got \[70, 24\]"),
        ("scalar", "head.weight must have 2 axes"),
    ],
)
def test_a_file_that_is_not_understood_gives_one_sentence(change: str, sentence: str, tmp_path: Path) -> None:
    state = edit(rename_tensors(build().state_dict(), MMPRETRAIN), change)
    with pytest.raises(VitrailError, match=sentence):
        load(write(state, tmp_path / "vit.pth"), heads=3)
