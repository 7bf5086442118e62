"""A folder that is written for timm: timm builds the same model from it alone, and reading it gives the model back.

Every kind of model that timm has a class for is written; what none of its classes has is refused by its name.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from tests.parity.test_timm_folders import SMALL as TIMM_SMALL
from tests.parity.test_timm_folders import build_timm, write_folder
from tests.reference_libraries import reference_library
from vitrail.data.preprocess import Fit, Preprocess
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.models.config import RelativeBiasConfig, RotaryConfig, StemConfig, ViTConfig
from vitrail.models.vit import ViT
from vitrail.weights.load import load
from vitrail.weights.save import save
from vitrail.weights.verify import verify

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SMALL: dict[str, Any] = {
    "width": 24,
    "depth": 2,
    "mlp": 40,
    "heads": 3,
    "patch": (6, 6),
    "image": (24, 30),
    "classes": 5,
    "gelu": "exact",
    "position_prefix": "none",
}
NO_TABLE: dict[str, Any] = {"position": "none"}
NORMALISED = RotaryConfig(coordinates="normalised")
SCALED = RotaryConfig(10_000, "scaled")
DINOV3: dict[str, Any] = {**NO_TABLE, "rotary": NORMALISED, "registers": 4, "norm_eps": 1e-5, "layer_scale": 1e-5}
AIMV2: dict[str, Any] = {
    "norm_kind": "rms",
    "norm_eps": 1e-5,
    "mlp_kind": "swiglu",
    "qkv_bias": False,
    "out_bias": False,
    "patch_norm": "output",
    "pool": "gap",
}
PE: dict[str, Any] = {
    "rotary": RotaryConfig(10_000, "scaled", offset=1.0),
    "position_grid": (2, 7),
    "position_prefix": "cls",
    "norm_eps": 1e-5,
    "embed_norm": True,
    "patch_bias": False,
}
BEIT: dict[str, Any] = {
    **NO_TABLE,
    "image": (24, 24),
    "key_bias": False,
    "relative_bias": RelativeBiasConfig(),
    "layer_scale": 1e-5,
}
GAP_WITH_CLASS: dict[str, Any] = {"pool": "gap", "class_token": True, "final_norm": "pooled"}
MLP_BIAS = RelativeBiasConfig("mlp", hidden=7)

WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    # the plain class
    "tanh GELU": ("vit_base_patch16_224", {"gelu": "tanh", "position_prefix": "cls"}),
    "epsilon 1e-5": ("vit_base_patch16_clip_224", {"norm_eps": 1e-5, "position_prefix": "cls"}),
    "CLIP": (
        "vit_base_patch16_clip_224",
        {"norm_eps": 1e-5, "embed_norm": True, "patch_bias": False, "gelu": "quick", "position_prefix": "cls"},
    ),
    "BEiT-3": (
        "vit_base_patch16_clip_224",
        {"norm_eps": 1e-5, "attention_norm": True, "mlp_norm": True, "position_prefix": "cls", **GAP_WITH_CLASS},
    ),
    "a norm inside attention alone": ("vit_base_patch16_224", {"attention_norm": True}),
    "a norm inside a gated MLP": ("vit_giant_patch14_dinov2", {"mlp_kind": "swiglu", "mlp_norm": True}),
    "norms at the end of the branches": ("vit_base_patch16_rpn_224", {"norm": "branch", "pool": "gap"}),
    "no last norm": ("vit_base_patch16_224", {"final_norm": "none", "layer_scale": 1e-5}),
    "no biases": ("vit_base_patch16_224", {"qkv_bias": False, "out_bias": False}),
    "no biases and a gated MLP": ("vit_giant_patch14_dinov2", {"qkv_bias": False, "out_bias": False, "mlp_kind": "swiglu"}),
    "attention pooling over all tokens": ("vit_base_patch16_224", {"pool": "map", "pool_prefix": True, "registers": 2}),
    "layer scale that starts at zero": ("vit_base_patch16_224", {"layer_scale": 0.0}),
    "RMSNorm": ("test_vit4", {"norm_kind": "rms", "registers": 2, "pool": "gap", "qk_norm": True}),
    "RMSNorm and attention pooling": ("test_vit4", {"norm_kind": "rms", "pool": "map", "gelu": "tanh"}),
    "AIMv2": ("aimv2_large_patch14_224", AIMV2),
    "AIMv2 with biases and a class token, without a norm of the patches": (
        "aimv2_large_patch14_224",
        {**AIMV2, "qkv_bias": True, "out_bias": True, "patch_norm": "none", "pool": "cls", "mlp_norm": True},
    ),
    "distilled DeiT": (
        "deit_base_distilled_patch16_224",
        {"pool": "cls+register", "registers": 1, "position_prefix": "all", "gelu": "tanh", "layer_scale": 1e-5},
    ),
    # EVA, whose class the models with rotary positions share
    "EVA-02": (
        "vit_base_patch16_rope_224",
        {
            "rotary": SCALED,
            "position_grid": (3, 7),
            "position_prefix": "cls",
            "key_bias": False,
            "mlp_kind": "swiglu",
            "mlp_norm": True,
            **GAP_WITH_CLASS,
        },
    ),
    "EVA-02 tiny": (
        "vit_base_patch16_rope_224",
        {"rotary": SCALED, "position_prefix": "cls", "key_bias": False, "mlp_kind": "swiglu", **GAP_WITH_CLASS},
    ),
    "EVA-02 CLIP": (
        "vit_base_patch16_rope_224",
        {
            "rotary": SCALED,
            "position_grid": (3, 7),
            "position_prefix": "cls",
            "key_bias": False,
            "mlp_kind": "swiglu",
            "mlp_norm": True,
            "attention_norm": True,
        },
    ),
    "EVA": ("vit_base_patch16_rope_224", {"key_bias": False, "position_prefix": "cls", **GAP_WITH_CLASS}),
    "EVA-02 CLIP enormous": (
        "vit_base_patch16_rope_224",
        {"key_bias": False, "norm": "branch", "position_prefix": "cls"},
    ),
    "DINOv3": ("vit_small_patch16_dinov3", {**DINOV3, "qkv_bias": False}),
    "DINOv3 with biases, average": (
        "vit_small_patch16_dinov3",
        {**DINOV3, "key_bias": False, "pool": "gap", "class_token": True},
    ),
    "DINOv3 plus": ("vit_small_patch16_dinov3", {**DINOV3, "key_bias": False, "mlp_kind": "swiglu"}),
    "DINOv3 with qk-norm and an offset": (
        "vit_small_patch16_dinov3",
        {**DINOV3, "qk_norm": True, "rotary": RotaryConfig(37.0, "normalised", offset=0.25)},
    ),
    "normalised rotary with epsilon 1e-6": ("vit_base_patch16_rope_224", {**DINOV3, "norm_eps": 1e-6}),
    "PE core": (
        "vit_small_patch16_dinov3",
        {**PE, "pool": "map", "class_token": True, "pool_prefix": True, "pool_heads": 2, "pool_mlp": 17},
    ),
    "PE spatial": (
        "vit_small_patch16_dinov3",
        {**PE, "final_norm": "none", "pool": "gap", "class_token": True, "layer_scale": 1e-5},
    ),
    "attention pooling without prefix tokens": (
        "vit_small_patch16_dinov3",
        {**PE, "pool": "map", "pool_heads": 4, "position_prefix": "none", "mlp_kind": "swiglu"},
    ),
    "RoPE-ViT, axial": (
        "vit_base_patch16_rope_224",
        {**NO_TABLE, "rotary": RotaryConfig(coordinates="index"), "layer_scale": 1e-5},
    ),
    "RoPE-ViT, axial beside a table, epsilon 1e-5": (
        "vit_small_patch16_dinov3",
        {"rotary": RotaryConfig(coordinates="index", offset=2.0), "norm_eps": 1e-5},
    ),
    "RoPE-ViT, mixed": (
        "vit_base_patch16_rope_224",
        {**NO_TABLE, "rotary": RotaryConfig(10.0, "index", mixed=True), "layer_scale": 1e-5},
    ),
    "RoPE-ViT, mixed beside a table, epsilon 1e-5": (
        "vit_small_patch16_dinov3",
        {"rotary": RotaryConfig(10.0, "index", mixed=True), "norm_eps": 1e-5},
    ),
    "timm's own rotary model": (
        "vit_base_patch16_rope_224",
        {
            **NO_TABLE,
            "rotary": SCALED,
            "position_grid": (16, 16),
            "registers": 1,
            "pool": "gap",
            "final_norm": "pooled",
            "qkv_bias": False,
            "layer_scale": 1e-5,
        },
    ),
    "no positions": ("vit_base_patch16_rope_224", {**NO_TABLE, "registers": 2}),
    "gated MLP with epsilon 1e-5": ("vit_small_patch16_dinov3", {"mlp_kind": "swiglu", "norm_eps": 1e-5}),
    # a bias by the offset
    "BEiT": ("beit_base_patch16_224", {**BEIT, **GAP_WITH_CLASS}),
    "BEiT, shared, beside a table": (
        "beit_base_patch16_224",
        {**BEIT, "relative_bias": RelativeBiasConfig(shared=True), "position": "learned1d", "position_prefix": "cls"},
    ),
    "BEiT with a gated MLP": ("beit_base_patch16_224", {**BEIT, "mlp_kind": "swiglu", "mlp_norm": True}),
    "relative MLP": (
        "vit_relpos_base_patch16_224",
        {**NO_TABLE, "relative_bias": MLP_BIAS, "pool": "gap", "final_norm": "pooled", "layer_scale": 1e-5},
    ),
    "relative MLP, shared, without qkv biases": (
        "vit_relpos_base_patch16_224",
        {**NO_TABLE, "relative_bias": RelativeBiasConfig("mlp", shared=True, hidden=9), "pool": "gap", "qkv_bias": False},
    ),
    "relative MLP with a class token and qk-norm": (
        "vit_relpos_base_patch16_224",
        {**NO_TABLE, "relative_bias": MLP_BIAS, "qk_norm": True},
    ),
    "relative MLP, norms at the end of the branches": (
        "vit_relpos_base_patch16_rpn_224",
        {**NO_TABLE, "relative_bias": MLP_BIAS, "norm": "branch", "pool": "gap"},
    ),
    "table of offsets on a grid that is not square": (
        "vit_relpos_base_patch16_224",
        {**NO_TABLE, "relative_bias": RelativeBiasConfig(), "pool": "gap"},
    ),
    "shared table of offsets with a class token": (
        "vit_relpos_base_patch16_224",
        {**NO_TABLE, "relative_bias": RelativeBiasConfig(shared=True)},
    ),
}


def small_model(**changes: Any) -> ViT:
    """Build a model whose every weight matters: scales and norms away from one, scores and angles large enough to show."""
    torch.manual_seed(3)
    model = build(ViTConfig(**{**SMALL, **changes}))
    assert isinstance(model, ViT)
    for weight in model.parameters():
        fan_in = weight[0].numel() if weight.ndim > 1 else 4
        weight.data = torch.randn_like(weight) * (2 / fan_in) ** 0.5 + (1.0 if weight.data.eq(1).all() else 0.0)
    return model.eval()


def logits_of_timm(folder: Path, images: torch.Tensor) -> torch.Tensor:
    timm = reference_library("timm")
    with torch.inference_mode():
        logits: torch.Tensor = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(images)
    return logits


def strip_metadata(folder: Path) -> Path:
    """Rewrite the weights of a folder without our own metadata, so that config.json alone describes them."""
    save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors")
    return folder


def assert_written(model: ViT, folder: Path) -> None:
    images = 0.05 * torch.randn(2, 3, *model.config.image)  # small, so that the epsilon shows
    with torch.inference_mode():
        logits = model(images)
    assert logits.std() > 0.1
    assert_close(logits_of_timm(folder, images), logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", WRITTEN)
def test_timm_builds_the_model_from_its_folder_and_reading_gives_it_back(case: str, tmp_path: Path) -> None:
    architecture, changes = WRITTEN[case]
    model = small_model(**changes)
    fit: Fit = "pad" if case == next(iter(WRITTEN)) else "crop"
    crop_pct = 1.0 if fit == "pad" else 0.75
    model.preprocess = Preprocess(model.config.image, crop_pct, fit, mean=(0.1, 0.2, 0.3), interpolation="bilinear")
    model.class_names = ("a", "b", "c", "d", "e")
    folder = save(model, tmp_path / "written", format="timm")
    assert json.loads((folder / "config.json").read_text())["architecture"] == architecture
    assert_written(model, folder)
    again = load(folder)
    assert (again.config, again.preprocess, again.class_names) == (model.config, model.preprocess, model.class_names)
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, weight in model.state_dict().items():
        assert_close(again.state_dict()[name], weight, rtol=0, atol=0)


@pytest.mark.parametrize(
    "architecture",
    [
        "vit_base_patch16_siglip_224",
        "vit_intern300m_patch14_448",
        "vit_giant_patch14_reg4_dinov2",
        "test_vit3",
        "test_vit4",
        "aimv2_huge_patch14_448",
        "beit3_giant_patch14_224",
        "deit_tiny_distilled_patch16_224",
        "eva_giant_patch14_224",
        "eva02_large_patch14_448",
        "eva02_large_patch14_clip_336",
        "eva02_enormous_patch14_clip_224",
        "vit_mediumd_patch16_rope_reg1_gap_256",
        "vit_betwixt_patch16_rope_reg4_gap_256",
        "vit_huge_plus_patch16_dinov3_qkvb",
        "vit_7b_patch16_dinov3",
        "vit_giant_patch16_lingbot",
        "vit_pe_core_gigantic_patch14_448",
        "vit_pe_lang_large_patch14_448",
        "vit_pe_spatial_gigantic_patch14_448",
        "vit_base_patch16_rope_ape_224",
        "vit_large_patch16_rope_mixed_ape_224",
        "beit_large_patch16_512",
        "beitv2_base_patch16_224",
        "vit_srelpos_small_patch16_224",
        "vit_relpos_base_patch16_clsgap_224",
        "vit_relpos_small_patch16_rpn_224",
    ],
)
def test_timms_own_models_come_back(architecture: str, tmp_path: Path) -> None:
    """timm's model, read and written again, whichever architecture it is then written as."""
    theirs = build_timm(architecture, **TIMM_SMALL)
    ours = load(write_folder(theirs, tmp_path / "theirs", architecture, **TIMM_SMALL))
    folder = save(ours, tmp_path / "written", format="timm")
    images = 0.05 * torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        assert_close(logits_of_timm(folder, images), theirs(images), rtol=0, atol=1e-5)
    assert load(folder).config == ours.config


@pytest.mark.parametrize("case", ["BEiT-3", "AIMv2", "distilled DeiT", "DINOv3", "PE core", "RoPE-ViT, mixed", "BEiT"])
def test_a_written_folder_is_verified(case: str, tmp_path: Path) -> None:
    assert verify(save(small_model(**WRITTEN[case][1]), tmp_path / "written", format="timm")).ok


@pytest.mark.parametrize("case", WRITTEN)
def test_config_json_alone_describes_the_model(case: str, tmp_path: Path) -> None:
    """Without our own metadata, as after a visit to timm; what only training reads is not recorded."""
    model = small_model(**WRITTEN[case][1])
    again = load(strip_metadata(save(model, tmp_path / "written", format="timm")))
    expected = replace(model.config, layer_scale=None if model.config.layer_scale is None else 1e-5)
    assert again.config == expected
    for name, weight in model.state_dict().items():
        assert_close(again.state_dict()[name], weight, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "read"),
    [
        ({"position": "rotary"}, {"position": "none", "rotary": RotaryConfig(coordinates="scaled")}),
        ({"rotary": RotaryConfig(50.0)}, {"rotary": RotaryConfig(50.0, "scaled")}),
        ({"position": "sincos2d-mae", "rotary": SCALED, "position_grid": (3, 7)}, {"position": "learned1d"}),
    ],
    ids=str,
)
def test_other_positions_are_written_as_their_equals_at_this_size(
    changes: dict[str, Any], read: dict[str, Any], tmp_path: Path
) -> None:
    model = small_model(**changes)
    folder = save(model, tmp_path / "written", format="timm")
    assert_written(model, folder)
    again = load(strip_metadata(folder))
    assert again.config == replace(model.config, **read)
    images = torch.randn(2, 3, 24, 30)
    with torch.inference_mode():
        assert_close(again(images), model(images), rtol=0, atol=1e-5)


def test_metadata_of_training_is_kept(tmp_path: Path) -> None:
    """Also where the tensors have the names of another class of timm's, and what config.json does not record."""
    metadata = {"metrics": {"top1": 0.5}}
    assert load(save(small_model(), tmp_path / "plain", format="timm", metadata=metadata)).metadata == metadata
    model = small_model(**BEIT, dropout=0.1)
    other = save(model, tmp_path / "other", format="timm", metadata=metadata)
    own_names = {"blocks.0.attn.q_bias", "blocks.1.gamma_2", "blocks.1.attn.relative_position_bias_table"}
    assert own_names <= set(load_file(other / "model.safetensors"))
    again = load(other)
    assert (again.metadata, again.config) == (metadata, model.config)
    for name, weight in model.state_dict().items():
        assert_close(again.state_dict()[name], weight, rtol=0, atol=0)


def test_a_distilled_model_has_two_heads(tmp_path: Path) -> None:
    model = small_model(**WRITTEN["distilled DeiT"][1])
    folder = save(model, tmp_path / "written", format="timm")
    tensors = load_file(folder / "model.safetensors")
    assert {"dist_token", "head.bias", "head_dist.bias"} <= set(tensors)
    heads = torch.cat([tensors["head.weight"], tensors["head_dist.weight"]], dim=1)
    assert_close(heads, 2 * model.state_dict()["head.weight"], rtol=0, atol=0)
    config = json.loads((folder / "config.json").read_text())
    assert config["pretrained_cfg"]["classifier"] == ["head", "head_dist"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"norm_eps": 1e-12}, "norms with epsilon 1e-12 in vit_base_patch16_224"),
    ({"norm": "post"}, "post-norm"),
    ({"head": "mlp"}, "the pre-logits layer"),
    ({"pool": "cls+gap"}, "a head on the class token and the mean"),
    ({"position": "relative"}, "position embeddings of type relative"),
    ({"position_at": "every-layer"}, "learned1d at every layer"),
    ({"registers": 2, "position_prefix": "cls"}, "registers without a position and a class token with one"),
    ({"embed_norm": True}, "a norm before the blocks with a patch bias, or neither"),
    ({"patch_bias": False}, "a norm before the blocks with a patch bias, or neither"),
    ({"norm": "branch", "layer_scale": 0.1}, "layer scale beside norms at the end of the branches"),
    ({"patch_norm": "both"}, "a norm of the pixels"),
    ({"patch_norm": "output"}, "a norm of the embedded patches"),
    ({"norm_kind": "rms", "mlp_kind": "swiglu"}, "a gated MLP"),
    ({"norm_kind": "rms", "norm_eps": 1e-5}, "norms with epsilon 1e-05"),
    ({"norm_kind": "rms", **NO_TABLE, "rotary": NORMALISED}, "RMSNorm in vit_base_patch16_rope_224"),
    ({"rotary": SCALED, "gelu": "tanh"}, "a GELU in its tanh form"),
    ({"rotary": SCALED, "out_bias": False}, "projections without biases"),
    ({"rotary": SCALED, "norm": "branch", "qk_norm": True}, "qk-norm"),
    ({"rotary": RotaryConfig(), "position_grid": (3, 7)}, "rotary positions of centres rescaled to another grid"),
    ({"rotary": RotaryConfig(10.0, "normalised", mixed=True)}, "learned rotary frequencies with other coordinates"),
    ({"rotary": RotaryConfig(10.0, "scaled", mixed=True), "position_grid": (3, 7)}, "learned rotary frequencies"),
    ({**PE, "pool": "map", "class_token": True}, "attention pooling without the prefix tokens"),
    ({"pool": "map", "pool_heads": 4, "gelu": "tanh"}, "attention pooling with heads or an MLP of its own"),
    ({"pool": "map", "pool_mlp": 17, "gelu": "tanh"}, "attention pooling with heads or an MLP of its own"),
    ({"pool": "map", "mlp_kind": "swiglu", "gelu": "tanh"}, "attention pooling with a gated MLP"),
    ({"key_bias": False, "gelu": "tanh"}, "a GELU in its tanh form"),
    ({"rotary": SCALED, "relative_bias": RelativeBiasConfig()}, "a relative position bias"),
    ({**NO_TABLE, "relative_bias": MLP_BIAS, "registers": 2, "pool": "gap"}, "registers in vit_relpos_base_patch16_224"),
    ({**BEIT, "image": (24, 30)}, "a table of offsets on a grid that is not square in beit_base_patch16_224"),
    ({**BEIT, "pool": "gap", "class_token": True}, "this last norm with this pooling in beit_base_patch16_224"),
    ({**BEIT, "qk_norm": True}, "qk-norm in beit_base_patch16_224"),
    ({"pool": "cls+register", "registers": 2, "position_prefix": "all"}, "2 registers in deit_base_distilled_patch16_224"),
    ({"pool": "cls+register", "registers": 1, "position_prefix": "none"}, "a class token without a position"),
    (
        {"pool": "cls+register", "registers": 1, "position_prefix": "all", "classes": 0},
        "no classifier",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=str)
def test_what_no_class_of_timms_has_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=rf"the timm format cannot hold .*({message}).*; use format='vitrail'"):
        save(small_model(**changes), tmp_path / "written", format="timm")
    assert list(tmp_path.iterdir()) == []


def test_a_hybrid_is_not_written_as_a_folder(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=r"a ResNet or a hybrid in a folder; use a file that ends in \.safetensors"):
        save(small_model(stem=StemConfig(), patch=(2, 1), image=(16, 12)), tmp_path / "written", format="timm")
