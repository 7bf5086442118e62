"""The classes of transformers that are compared, in the variations that are published, and their reference outputs.

A reference output is what the model is used for: logits, an embedding of the image, or the pooled output. Of an encoder without
these it is the last tokens, which are then pooled as our model pools them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

IMAGE, PATCH = (48, 48), 8
WIDTHS = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
SMALL = {**WIDTHS, "image_size": IMAGE[0], "patch_size": PATCH}
LABELS = {**SMALL, "num_labels": 7}
TEXT = {**WIDTHS, "hidden_size": 32, "vocab_size": 50, "max_position_embeddings": 11, "pad_token_id": 1}


def outputs(model: Any, images: Tensor, **inputs: Any) -> Tensor:
    """Return the logits, the embedding, the pooled output or the tokens of a model."""
    output = model(images, **inputs)
    for name in ("logits", "image_embeds", "pooler_output"):
        if isinstance(value := getattr(output, name, None), Tensor):
            return value
    tokens: Tensor = output.last_hidden_state
    return tokens


def tokens_of(model: Any, images: Tensor) -> Tensor:
    """Return the last tokens, where the pooled output is the last norm applied twice."""
    tokens: Tensor = model(images).last_hidden_state
    return tokens


def part(name: str) -> Callable[[Any, Tensor], Tensor]:
    """Return the reference for a model whose image encoder is one of its parts."""
    return lambda model, images: outputs(getattr(model, name), images)


def image_features(model: Any, images: Tensor) -> Tensor:
    features: Tensor = model.get_image_features(images).pooler_output
    return features


def unmasked(model: Any, images: Tensor) -> Tensor:
    """Return the tokens of ViTMAE's encoder without masking, which is set in the config, and in the order of the patches."""
    encoder = getattr(model, "vit", model)
    encoder.config.mask_ratio = 0.0
    return outputs(encoder, images, noise=torch.arange(36.0)[None])


def beit_unmasked(model: Any, images: Tensor) -> Tensor:
    tokens: Tensor = model.layernorm(model.beit(images).last_hidden_state)
    return tokens


def backbone(model: Any, images: Tensor) -> Tensor:
    """Return the tokens of a backbone after its last norm, which its feature maps are made of."""
    tokens: Tensor = model.layernorm(model(images, output_hidden_states=True).hidden_states[-1])
    return tokens


def yolos(model: Any, images: Tensor) -> Tensor:
    """Return the logits of every detection token and its box in pixels, a row for each."""
    output = model(images)
    centres, sides = output.pred_boxes.split(2, dim=-1)
    edges = torch.cat([centres - sides / 2, centres + sides / 2], dim=-1)
    pixels = edges * torch.tensor([images.shape[3], images.shape[2]]).repeat(2)
    return torch.cat([output.logits, pixels], dim=-1).mT[..., None]


def naflex(model: Any, images: Tensor) -> Tensor:
    """Return SigLIP 2's output for the patches of images of the position table's own size."""
    patches = rearrange(images, "b c (h p) (w q) -> b (h w) (p q c)", p=PATCH, q=PATCH)
    inputs = {"pixel_attention_mask": torch.ones(1, 36, dtype=torch.long), "spatial_shapes": torch.tensor([[6, 6]])}
    if hasattr(model, "get_image_features"):
        features: Tensor = model.get_image_features(patches, **inputs).pooler_output
        return features
    return outputs(model, patches, **inputs)


def radio(model: Any, images: Tensor) -> Tensor:
    """Return RADIO's summary; it normalises images itself, and Vitrail leaves that to the preprocessing."""
    conditioner = model.input_conditioner
    summary: Tensor = model(images * conditioner.norm_std + conditioner.norm_mean).summary
    return summary


@dataclass(frozen=True)
class Case:
    """A class of transformers, its config, and how its reference output is computed."""

    model: str
    config: str
    fields: dict[str, Any]
    reference: Callable[[Any, Tensor], Tensor] = outputs
    options: dict[str, Any] = field(default_factory=dict)  # of the model's class
    crops: bool = False  # whether the image processor crops
    image: tuple[int, int] = IMAGE


def two_towers(text: dict[str, Any] | None = None, **vision: Any) -> dict[str, Any]:
    """Return the fields of a config with a text tower and an image tower."""
    towers = {"vision_config": {**SMALL, **vision}, "text_config": {**TEXT, **(text or {})}}
    return {**towers, "projection_dim": 24}


DETECTION_TOKENS = 5
BEIT = {"use_relative_position_bias": True, "use_mean_pooling": True}  # as fine-tuned
BEIT_PRETRAINED = {"use_shared_relative_position_bias": True, "use_mask_token": True, "use_mean_pooling": True}
SWIGLU = {"use_swiglu_ffn": True, "mlp_ratio": 3}
DINOV3 = {**SMALL, "num_register_tokens": 3}
CLIP_TOWER = {**SMALL, "projection_dim": 24}
SIGLIP2 = {**WIDTHS, "patch_size": PATCH, "num_patches": 36}
DPT = {"backbone_out_indices": [0, 0, 1, 1], "neck_hidden_sizes": [8, 12, 16, 20], "fusion_hidden_size": 24}
TIMM_ARGS = {"depth": 2, "img_size": 48, "patch_size": 8}  # of vit_tiny_patch16_224

CASES: dict[str, Case] = {
    "ViTModel": Case("ViTModel", "ViTConfig", SMALL),
    "ViTModel, no pooler": Case("ViTModel", "ViTConfig", SMALL, options={"add_pooling_layer": False}),
    "ViTForImageClassification": Case("ViTForImageClassification", "ViTConfig", LABELS),
    "ViTForMaskedImageModeling": Case("ViTForMaskedImageModeling", "ViTConfig", {**SMALL, "encoder_stride": 8}, part("vit")),
    "ViTMAEModel": Case("ViTMAEModel", "ViTMAEConfig", SMALL, unmasked),
    "ViTMAEForPreTraining": Case("ViTMAEForPreTraining", "ViTMAEConfig", SMALL, unmasked),
    "ViTMSNModel": Case("ViTMSNModel", "ViTMSNConfig", SMALL),
    "ViTMSNForImageClassification": Case("ViTMSNForImageClassification", "ViTMSNConfig", LABELS),
    "DeiTModel": Case("DeiTModel", "DeiTConfig", SMALL, crops=True),
    "DeiTForImageClassification": Case("DeiTForImageClassification", "DeiTConfig", LABELS, crops=True),
    "DeiTForImageClassificationWithTeacher": Case("DeiTForImageClassificationWithTeacher", "DeiTConfig", LABELS, crops=True),
    "BeitModel, bias in each layer": Case("BeitModel", "BeitConfig", {**SMALL, **BEIT}),
    "BeitForImageClassification, bias in each layer": Case("BeitForImageClassification", "BeitConfig", {**LABELS, **BEIT}),
    "BeitForImageClassification, shared bias, class token": Case(
        "BeitForImageClassification",
        "BeitConfig",
        {**LABELS, "use_shared_relative_position_bias": True, "use_mean_pooling": False},
    ),
    "BeitForImageClassification, absolute positions": Case(
        "BeitForImageClassification", "BeitConfig", {**LABELS, "use_absolute_position_embeddings": True}
    ),
    "BeitForMaskedImageModeling": Case(
        "BeitForMaskedImageModeling", "BeitConfig", {**SMALL, **BEIT_PRETRAINED, "vocab_size": 9}, beit_unmasked
    ),
    "Data2VecVisionModel": Case(
        "Data2VecVisionModel", "Data2VecVisionConfig", {**SMALL, "use_shared_relative_position_bias": True}
    ),
    "Data2VecVisionForImageClassification": Case(
        "Data2VecVisionForImageClassification", "Data2VecVisionConfig", {**LABELS, **BEIT}
    ),
    "Dinov2Model": Case("Dinov2Model", "Dinov2Config", SMALL, crops=True),
    "Dinov2Model, SwiGLU": Case("Dinov2Model", "Dinov2Config", {**SMALL, **SWIGLU}, crops=True),
    "Dinov2ForImageClassification": Case("Dinov2ForImageClassification", "Dinov2Config", LABELS, crops=True),
    "Dinov2Backbone": Case("Dinov2Backbone", "Dinov2Config", SMALL, backbone, crops=True),
    "Dinov2WithRegistersModel": Case("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", SMALL, crops=True),
    "Dinov2WithRegistersForImageClassification": Case(
        "Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", LABELS, crops=True
    ),
    "DINOv3ViTModel": Case("DINOv3ViTModel", "DINOv3ViTConfig", DINOV3),
    "DINOv3ViTModel, gated MLP": Case(
        "DINOv3ViTModel", "DINOv3ViTConfig", {**DINOV3, "use_gated_mlp": True, "hidden_act": "silu"}
    ),
    "IJepaModel": Case("IJepaModel", "IJepaConfig", SMALL),
    "IJepaForImageClassification": Case("IJepaForImageClassification", "IJepaConfig", LABELS),
    "CLIPModel": Case("CLIPModel", "CLIPConfig", two_towers(), image_features, crops=True),
    "CLIPVisionModel": Case("CLIPVisionModel", "CLIPVisionConfig", CLIP_TOWER, crops=True),
    "CLIPVisionModelWithProjection": Case("CLIPVisionModelWithProjection", "CLIPVisionConfig", CLIP_TOWER, crops=True),
    "CLIPVisionModelWithProjection, GELU": Case(
        "CLIPVisionModelWithProjection", "CLIPVisionConfig", {**CLIP_TOWER, "hidden_act": "gelu"}, crops=True
    ),
    "CLIPForImageClassification": Case(
        "CLIPForImageClassification", "CLIPConfig", {**two_towers(), "num_labels": 7}, crops=True
    ),
    "SiglipModel": Case("SiglipModel", "SiglipConfig", two_towers(), image_features),
    "SiglipVisionModel": Case("SiglipVisionModel", "SiglipVisionConfig", SMALL),
    "SiglipVisionModel, no head": Case("SiglipVisionModel", "SiglipVisionConfig", {**SMALL, "vision_use_head": False}),
    "SiglipForImageClassification": Case("SiglipForImageClassification", "SiglipConfig", {**two_towers(), "num_labels": 7}),
    "Siglip2Model": Case("Siglip2Model", "Siglip2Config", {**two_towers(), "vision_config": SIGLIP2}, naflex),
    "Siglip2VisionModel": Case("Siglip2VisionModel", "Siglip2VisionConfig", SIGLIP2, naflex),
    "Siglip2ForImageClassification": Case(
        "Siglip2ForImageClassification",
        "Siglip2Config",
        {**two_towers(), "vision_config": SIGLIP2, "num_labels": 7},
        naflex,
    ),
    "MetaClip2Model": Case("MetaClip2Model", "MetaClip2Config", two_towers(), image_features, crops=True),
    "MetaClip2ForImageClassification": Case(
        "MetaClip2ForImageClassification", "MetaClip2Config", {**two_towers(), "num_labels": 7}, crops=True
    ),
    "AltCLIPModel": Case("AltCLIPModel", "AltCLIPConfig", two_towers({"project_dim": 40}), image_features, crops=True),
    "ChineseCLIPModel": Case("ChineseCLIPModel", "ChineseCLIPConfig", two_towers(), image_features),
    "Aimv2VisionModel": Case("Aimv2VisionModel", "Aimv2VisionConfig", {**SMALL, "use_head": False}, crops=True),
    "Aimv2VisionModel, native size": Case(
        "Aimv2VisionModel", "Aimv2VisionConfig", {**SMALL, "use_head": False, "is_native": True}
    ),
    "Aimv2Model": Case("Aimv2Model", "Aimv2Config", two_towers(), image_features, crops=True),
    "InternVLVisionModel": Case("InternVLVisionModel", "InternVLVisionConfig", {**SMALL, "attention_bias": True}),
    "PixtralVisionModel": Case("PixtralVisionModel", "PixtralVisionConfig", SMALL),
    "BlipVisionModel": Case("BlipVisionModel", "BlipVisionConfig", SMALL, tokens_of),
    "Blip2VisionModel": Case("Blip2VisionModel", "Blip2VisionConfig", SMALL, tokens_of),
    "OwlViTForObjectDetection": Case(
        "OwlViTForObjectDetection",
        "OwlViTConfig",
        two_towers(),
        lambda model, images: image_features(model.owlvit, images),
    ),
    "Idefics3VisionTransformer": Case("Idefics3VisionTransformer", "Idefics3VisionConfig", SMALL),
    "YolosForObjectDetection": Case(
        "YolosForObjectDetection",
        "YolosConfig",
        {
            **LABELS,
            "image_size": (48, 40),
            "num_detection_tokens": DETECTION_TOKENS,
            "use_mid_position_embeddings": False,  # as of the tiny model
        },
        yolos,
        image=(48, 40),
    ),
    "VitPoseBackbone": Case(
        "VitPoseBackbone",
        "VitPoseBackboneConfig",
        {**WIDTHS, "image_size": (48, 40), "patch_size": (8, 8), "mlp_ratio": 3},
        backbone,
        image=(48, 40),
    ),
    "DPTForDepthEstimation": Case("DPTForDepthEstimation", "DPTConfig", {**SMALL, **DPT}, part("dpt")),
    "Tipsv2VisionModel": Case("Tipsv2VisionModel", "Tipsv2VisionConfig", {**SMALL, "mlp_ratio": 3}),
    "RadioModel": Case("RadioModel", "RadioConfig", {**SMALL, "mlp_ratio": 3.0, "max_img_size": 48}, radio),
    "TimmWrapperForImageClassification": Case(
        "TimmWrapperForImageClassification",
        "TimmWrapperConfig",
        {"architecture": "vit_tiny_patch16_224", "num_labels": 7, "model_args": TIMM_ARGS},
    ),
    "VitDetModel": Case(
        "VitDetModel",
        "VitDetConfig",
        {
            **SMALL,
            "mlp_ratio": 2,
            "pretrain_image_size": 32,
            "use_relative_position_embeddings": True,
            "window_size": 4,
            "window_block_indices": [0],
        },
        lambda model, images: model(images).last_hidden_state.flatten(2).mT,
    ),
    "SamVisionModel": Case("SamVisionModel", "SamVisionConfig", {**SMALL, "global_attn_indexes": [1], "window_size": 3}),
    "SwinForImageClassification": Case(
        "SwinForImageClassification",
        "SwinConfig",
        {
            "image_size": 48,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 4],
            "window_size": 3,
            "num_labels": 7,
        },
    ),
}
