"""Every kind of Vision Transformer of timm, small and with random weights: outputs, gradients, attention, sizes, bfloat16."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close

from tests.parity.test_timm_folders import SMALL, build_timm, small_images, write_folder
from vitrail.explain.attention import attention
from vitrail.layers.tap import record_activations
from vitrail.models.config import ViTConfig
from vitrail.models.cost import cost
from vitrail.weights.load import load
from vitrail.weights.verify import verify

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Mapping deprecated model name"),
    pytest.mark.filterwarnings("ignore:torch.searchsorted"),  # timm's interpolation
    pytest.mark.filterwarnings("ignore:Using a non-tuple sequence for multidimensional indexing"),
]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "DINOv3": ("vit_small_patch16_dinov3_qkvb", {}),
    "DINOv3 without biases of q, k and v": ("vit_small_patch16_dinov3", {}),
    "DINOv3, SwiGLU": ("vit_huge_plus_patch16_dinov3_qkvb", {"mlp_ratio": 3}),
    "LingBot": ("vit_base_patch16_lingbot", {}),
    "EVA-02": ("eva02_base_patch14_224", {"ref_feat_shape": [3, 3]}),
    "EVA-02, packed": ("eva02_tiny_patch14_224", {"ref_feat_shape": [3, 5]}),
    "EVA-02 CLIP": ("eva02_base_patch16_clip_224", {}),
    "EVA-02 CLIP, norms at the end of the branches": ("eva02_enormous_patch14_clip_224", {"mlp_ratio": 3}),
    "PE core": ("vit_pe_core_base_patch16_224", {"attn_pool_num_heads": 4, "ref_feat_shape": [4, 4]}),
    "PE core without a class token": ("vit_pe_core_gigantic_patch14_448", {"attn_pool_num_heads": 2, "mlp_ratio": 3}),
    "PE lang": ("vit_pe_lang_large_patch14_448", {}),
    "PE spatial": ("vit_pe_spatial_tiny_patch16_512", {}),
    "RoPE-ViT, axial": ("vit_small_patch16_rope_224", {}),
    "RoPE-ViT, axial with a table": ("vit_small_patch16_rope_ape_224", {}),
    "RoPE-ViT, mixed": ("vit_small_patch16_rope_mixed_224", {}),
    "RoPE-ViT, mixed with a table": ("vit_small_patch16_rope_mixed_ape_224", {}),
    "timm's rotary with a register": ("vit_mediumd_patch16_rope_reg1_gap_256", {}),
    "BEiT": ("beit_base_patch16_224", {}),
    "BEiT, one bias for all layers": ("beit_base_patch16_224", {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True}),
    "BEiT-3": ("beit3_base_patch16_224", {}),
    "MLP of the offsets": ("vit_relpos_small_patch16_224", {"rel_pos_dim": 17}),
    "MLP of the offsets, with a class token": ("vit_relpos_base_patch16_cls_224", {}),
    "MLP of the offsets, norms at the end of the branches": ("vit_relpos_small_patch16_rpn_224", {}),
    "one MLP of the offsets for all layers": ("vit_srelpos_small_patch16_224", {"rel_pos_dim": 17}),
    "table of the offsets without a class token": ("vit_relpos_small_patch16_224", {"rel_pos_type": "bias"}),
    "AIMv2": ("aimv2_large_patch14_224", {"mlp_ratio": 3}),
    "RMSNorm": ("test_vit4", {}),
    "attention pooling that reads the registers": ("test_vit3", {}),
    "distilled DeiT": ("deit_tiny_distilled_patch16_224", {}),
}
QUICK = ("DINOv3", "EVA-02", "PE core", "RoPE-ViT, mixed with a table", "BEiT", "AIMv2", "distilled DeiT")
TIER = [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.thorough) for kind in KINDS]


def build(kind: str, folder: Path) -> tuple[nn.Module, Path]:
    architecture, options = KINDS[kind]
    theirs = build_timm(architecture, **SMALL, **options)
    for name, weight in theirs.named_parameters():
        if "relative_position_bias_table" in name or "rope.freqs" in name:
            weight.data = torch.randn_like(weight)  # large enough that a transposed table shows
    return theirs, write_folder(theirs, folder, architecture, **SMALL, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_the_gradient_are_timms(kind: str, tmp_path: Path) -> None:
    theirs, folder = build(kind, tmp_path)
    ours = load(folder)
    images = small_images()
    gradients: list[Tensor] = []
    for model in (ours, theirs):
        pixels = images.clone().requires_grad_()
        model(pixels).square().sum().backward()
        assert pixels.grad is not None
        gradients.append(pixels.grad)
    with torch.inference_mode():
        assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)
    scale = gradients[1].abs().max()
    assert_close(gradients[0] / scale, gradients[1] / scale, rtol=0, atol=2e-5)
    assert verify(folder).ok
    parameters = sum(weight.numel() for weight in theirs.parameters())
    heads_joined = 5 if kind == "distilled DeiT" else 0  # two biases of the classes are one
    assert cost(ours.config).parameters == parameters - heads_joined


@pytest.mark.parametrize("kind", [kind for kind in TIER if kind.values[0] != "attention pooling that reads the registers"])
def test_attention_of_every_head_is_timms(kind: str, tmp_path: Path) -> None:
    """The weights that explain returns, those of the tap, and those that timm computes without its fused kernel."""
    theirs, folder = build(kind, tmp_path)
    ours, images, recorded = load(folder), small_images(), list[Tensor]()
    for block in theirs.blocks:  # type: ignore[union-attr]
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _module, _inputs, output: recorded.append(output))
    with torch.inference_mode():
        theirs(images)
        with record_activations(ours, "blocks.*.attention.weights") as taps:
            ours(images)
    weights = attention(ours, images)
    for layer, expected in enumerate(recorded):
        assert_close(taps[f"blocks.{layer}.attention.weights"][0], expected, rtol=0, atol=1e-5)
        assert_close(weights[layer], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", TIER)
@pytest.mark.parametrize("size", [(36, 36), (18, 30)], ids=str)
def test_another_image_size_is_timms(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    theirs, folder = build(kind, tmp_path)
    architecture, options = KINDS[kind]
    at_size = build_timm(architecture, **{**SMALL, **options, "img_size": size})
    at_size.load_state_dict(_resized(dict(theirs.state_dict()), at_size))
    ours = load(folder, image=size)
    assert isinstance(ours.config, ViTConfig)
    images = 0.01 * torch.randn(2, 3, *size)
    with torch.inference_mode():
        assert_close(ours(images), at_size(images), rtol=0, atol=1e-5)


def _resized(state: dict[str, Tensor], model: Any) -> dict[str, Tensor]:
    """Resize tables by timm's loaders; its distilled model uses the plain one's, and its model with offsets has none."""
    if type(model).__name__ == "VisionTransformerRelPos":
        resize = import_module("timm.layers").resize_rel_pos_bias_table
        tables = {name: table for name, table in state.items() if name.endswith("relative_position_bias_table")}
        shapes = {name: weight.shape for name, weight in model.state_dict().items()}
        return state | {name: resize(table, model.patch_embed.grid_size, shapes[name]) for name, table in tables.items()}
    module = type(model).__module__.replace("deit", "vision_transformer")
    resized: dict[str, Tensor] = import_module(module).checkpoint_filter_fn(state, model)
    return resized


@pytest.mark.parametrize("kind", TIER)
def test_a_file_in_bfloat16_is_read_exactly(kind: str, tmp_path: Path) -> None:
    theirs, folder = build(kind, tmp_path)
    rounded = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(rounded, folder / "model.safetensors")
    theirs.load_state_dict({name: tensor.float() for name, tensor in rounded.items()})
    images = small_images()
    with torch.inference_mode():
        assert_close(load(folder)(images), theirs(images), rtol=0, atol=2e-5)  # halves of rounded heads are not rounded again
