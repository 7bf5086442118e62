"""Equal features and logits to transformers for CLIP, SigLIP, DINOv3, BEiT and others with the same random weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.reference_libraries import reference_library
from vitrail.errors import VitrailError
from vitrail.explain.attention import attention
from vitrail.models.config import ViTConfig
from vitrail.weights.load import load
from vitrail.weights.verify import verify

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SMALL: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 24,
    "patch_size": 6,
}
TEXT = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 24, "vocab_size": 10}


def build(model: str, config: str, **options: Any) -> nn.Module:
    """Build a model of transformers whose weights show another number of heads, epsilon or activation."""
    transformers: Any = reference_library("transformers")
    settings = getattr(transformers, config)(**options)
    built: nn.Module = getattr(transformers, model)(settings).eval()
    for name, weight in built.named_parameters():
        noise = torch.randn_like(weight)
        if "relative_position_bias_table" in name:
            weight.data = noise
            continue
        is_small = "embedding" in name or "token" in name
        is_matrix = weight.ndim in (2, 4) and "position" not in name
        scale = (2 * weight.shape[0] / weight.numel()) ** 0.5 if is_matrix else 0.003 if is_small else 0.1
        weight.data = noise * scale + (0.0 if is_matrix or is_small else weight.data)
    return built


def save(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


DINO = {name: value for name, value in SMALL.items() if name != "intermediate_size"} | {"mlp_ratio": 2, "num_labels": 5}
BOTH = {"vision_config": SMALL, "text_config": TEXT, "num_labels": 5}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "CLIP": ("CLIPVisionModel", "CLIPVisionConfig", SMALL),
    "CLIP with its projection": ("CLIPVisionModelWithProjection", "CLIPVisionConfig", {**SMALL, "projection_dim": 7}),
    "CLIP of LAION": ("CLIPVisionModel", "CLIPVisionConfig", {**SMALL, "hidden_act": "gelu"}),
    "CLIP classifier": ("CLIPForImageClassification", "CLIPConfig", BOTH),
    "SigLIP": ("SiglipVisionModel", "SiglipVisionConfig", SMALL),
    "SigLIP classifier": ("SiglipForImageClassification", "SiglipConfig", BOTH),
    "DINOv2": ("Dinov2Model", "Dinov2Config", DINO),
    "DINOv2 with registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", DINO),
    "DINOv2 classifier": ("Dinov2ForImageClassification", "Dinov2Config", DINO),
    "DINOv2 classifier with registers": (
        "Dinov2WithRegistersForImageClassification",
        "Dinov2WithRegistersConfig",
        DINO,
    ),
    "DINOv2 with SwiGLU": ("Dinov2Model", "Dinov2Config", {**DINO, "use_swiglu_ffn": True}),
    "DINOv2 classifier with registers and SwiGLU": (
        "Dinov2WithRegistersForImageClassification",
        "Dinov2WithRegistersConfig",
        {**DINO, "use_swiglu_ffn": True},
    ),
    "MSN": ("ViTMSNModel", "ViTMSNConfig", SMALL),
    "MSN classifier": ("ViTMSNForImageClassification", "ViTMSNConfig", {**SMALL, "num_labels": 5}),
    "I-JEPA": ("IJepaModel", "IJepaConfig", SMALL),
    "I-JEPA classifier": ("IJepaForImageClassification", "IJepaConfig", {**SMALL, "num_labels": 5}),
    "DeiT": ("DeiTModel", "DeiTConfig", SMALL),
    "DeiT classifier": ("DeiTForImageClassification", "DeiTConfig", {**SMALL, "num_labels": 5}),
    "distilled DeiT": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", {**SMALL, "num_labels": 5}),
    "DINOv3": ("DINOv3ViTModel", "DINOv3ViTConfig", {**SMALL, "num_register_tokens": 2}),
    "DINOv3, gated": ("DINOv3ViTModel", "DINOv3ViTConfig", {**SMALL, "use_gated_mlp": True, "hidden_act": "silu"}),
    "DINOv3, another base": ("DINOv3ViTModel", "DINOv3ViTConfig", {**SMALL, "rope_theta": 37.0}),
    "BEiT": ("BeitForImageClassification", "BeitConfig", {**SMALL, "num_labels": 5, "use_relative_position_bias": True}),
    "BEiT, one bias for all layers": ("BeitModel", "BeitConfig", {**SMALL, "use_shared_relative_position_bias": True}),
    "Data2Vec": (
        "Data2VecVisionForImageClassification",
        "Data2VecVisionConfig",
        {**SMALL, "num_labels": 5, "use_relative_position_bias": True},
    ),
}


def their_output(output: Any, case: str) -> torch.Tensor:
    for name in ("logits", "image_embeds", "pooler_output"):
        value = getattr(output, name, None)
        if isinstance(value, torch.Tensor):
            return value
    tokens: torch.Tensor = output.last_hidden_state
    return tokens[:, 0] if case == "MSN" else tokens.mean(dim=1)  # I-JEPA has no class token


@pytest.mark.parametrize("case", CASES)
def test_theirs_is_ours(case: str, tmp_path: Path) -> None:
    theirs = build(*CASES[case][:2], **CASES[case][2])
    ours = load(save(theirs, tmp_path))
    images = 0.01 * torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        assert_close(ours(images), their_output(theirs(pixel_values=images), case), rtol=1e-5, atol=1e-5)
    assert verify(tmp_path).ok


@pytest.mark.parametrize("case", ["DINOv3", "BEiT", "distilled DeiT"])
def test_the_gradient_is_transformers(case: str, tmp_path: Path) -> None:
    options = {**CASES[case][2], "image_size": 30}  # transformers keeps BEiT's indices, also those made in inference mode
    theirs = build(*CASES[case][:2], **options)
    gradients, images = [], 0.01 * torch.randn(2, 3, 30, 30)
    for model in (load(save(theirs, tmp_path)), theirs):
        pixels = images.clone().requires_grad_()
        output = model(pixels)
        (output if isinstance(output, torch.Tensor) else their_output(output, case)).square().sum().backward()
        assert pixels.grad is not None
        gradients.append(pixels.grad)
    scale = gradients[1].abs().max()
    assert_close(gradients[0] / scale, gradients[1] / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", ["DINOv3", "BEiT", "BEiT, one bias for all layers"])
def test_attention_of_every_head_is_transformers(case: str, tmp_path: Path) -> None:
    theirs: Any = build(*CASES[case][:2], **CASES[case][2])
    ours, images = load(save(theirs, tmp_path)), 0.01 * torch.randn(2, 3, 24, 24)
    theirs.set_attn_implementation("eager")
    with torch.inference_mode():
        expected = torch.stack(theirs(pixel_values=images, output_attentions=True).attentions)
    assert_close(attention(ours, images), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", ["DINOv3", "BEiT", "BEiT, one bias for all layers"])
def test_another_image_size_is_transformers(case: str, tmp_path: Path) -> None:
    """DINOv3's coordinates fit any grid; transformers interpolates BEiT's tables bilinearly, right for squares alone."""
    theirs = build(*CASES[case][:2], **CASES[case][2])
    size = (36, 30) if case == "DINOv3" else (36, 36)
    ours, images = load(save(theirs, tmp_path), image=size), 0.01 * torch.randn(2, 3, *size)
    with torch.inference_mode():
        assert_close(ours(images), their_output(theirs(pixel_values=images), case), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", ["CLIP", "SigLIP", "DINOv2", "DeiT classifier"])
def test_a_resized_position_table_is_transformers(case: str, tmp_path: Path) -> None:
    theirs = build(*CASES[case][:2], **CASES[case][2])
    ours = load(save(theirs, tmp_path), image=(36, 30))
    images = 0.01 * torch.randn(2, 3, 36, 30)
    with torch.inference_mode():
        expected = theirs(pixel_values=images, **({} if case == "DINOv2" else {"interpolate_pos_encoding": True}))
        assert_close(ours(images), their_output(expected, case), rtol=1e-5, atol=1e-5)


def test_the_image_tower_of_a_whole_clip_is_read(tmp_path: Path) -> None:
    theirs: Any = build("CLIPModel", "CLIPConfig", **BOTH, projection_dim=7)
    ours = load(save(theirs, tmp_path))
    images = 0.01 * torch.randn(2, 3, 24, 24)
    with torch.inference_mode():
        expected = theirs.visual_projection(theirs.vision_model(pixel_values=images).pooler_output)
        assert_close(ours(images), expected, rtol=1e-5, atol=1e-5)
    assert any(name.startswith("text_model.") for name in ours.load_report.unused)
    assert ours.preprocess is not None
    assert ours.preprocess.mean[0] == 0.48145466


def test_an_image_processor_that_crops_to_another_size_is_said(tmp_path: Path) -> None:
    """As DINOv2's: the table is of 518 pixels, the image processor crops to 224."""
    save(build(*CASES["DINOv2"][:2], **CASES["DINOv2"][2]), tmp_path)
    fields = {"size": {"shortest_edge": 16}, "crop_size": {"height": 12, "width": 12}, "do_center_crop": True, "resample": 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**fields, "image_mean": [0.4] * 3, "image_std": [0.2] * 3}))
    ours = load(tmp_path)
    assert ours.preprocess is not None
    assert (ours.preprocess.image_size, ours.preprocess.resize_to, ours.preprocess.mean[0]) == ((24, 24), (32, 32), 0.4)
    assert any("crops to 12" in line for line in ours.load_report.assumed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"layer_norm_eps": "x"}, "layer_norm_eps"),
        ({"image_size": [1, 2, 3]}, "image_size"),
        ({"model_type": "convnext"}, "describes a 'convnext'"),
    ],
    ids=str,
)
def test_a_config_with_nonsense_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    save(build(*CASES["CLIP"][:2], **CASES["CLIP"][2]), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(VitrailError, match=message):
        load(tmp_path)


def test_without_a_config_the_family_is_asked_for(tmp_path: Path) -> None:
    for case in ("CLIP", "DINOv2"):
        save(build(*CASES[case][:2], **CASES[case][2]), tmp_path / case)
        (tmp_path / case / "config.json").unlink()
        with pytest.raises(VitrailError, match=r"config.json of its model is not next to it"):
            load(tmp_path / case)


def test_registers_have_no_position_and_a_distillation_token_has_one(tmp_path: Path) -> None:
    registers = load(save(build(*CASES["DINOv2 with registers"][:2], **DINO), tmp_path / "a")).config
    distilled = load(save(build(*CASES["DeiT"][:2], **SMALL), tmp_path / "b")).config
    assert isinstance(registers, ViTConfig)
    assert isinstance(distilled, ViTConfig)
    assert (registers.registers, registers.position_prefix) == (4, "cls")
    assert (distilled.registers, distilled.position_prefix) == (1, "all")
