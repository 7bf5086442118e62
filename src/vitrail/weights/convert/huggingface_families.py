"""Hugging Face's Vision Transformers beside ViT itself: what their config.json may leave out, and their names. Torch-free."""

import re
from dataclasses import dataclass, replace
from typing import Any

from vitrail.models.config import Gelu, Pool, PositionResize

GELUS: dict[Any, Gelu] = {"gelu": "exact", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "quick_gelu": "quick"}


@dataclass(frozen=True)
class Family:
    """The settings that the models of a ``model_type`` share and their config.json may leave out."""

    origin: str
    norm_eps: float
    act: str = "gelu"
    pool: Pool = "cls"
    classifier_pool: Pool | None = None  # None: the same
    position_resize: PositionResize = "huggingface"
    reads_mean_pooling: bool = False  # whether use_mean_pooling decides the pooling
    unread: tuple[str, ...] = ()  # tensors that do not belong to the encoder or its classifier
    unread_with_classifier: tuple[str, ...] = ()  # its classifier reads the tokens before them
    note: str | None = None  # where the pooled output is not transformers' own


CLIP = Family("CLIP", 1e-5, "quick_gelu", classifier_pool="gap", unread_with_classifier=("norm.",))
SIGLIP = Family("SigLIP", 1e-6, "gelu_pytorch_tanh", "map", classifier_pool="gap")
SIGLIP2 = replace(SIGLIP, position_resize="siglip2")
DINOV2 = Family("DINOv2", 1e-6, classifier_pool="cls+gap")
BEIT = Family("BEiT", 1e-12, pool="gap", reads_mean_pooling=True, unread=("lm_head.",))
BLIP = Family("CLIP", 1e-5, note="the class token after one last norm (transformers' pooler applies it twice)")
AIMV2 = Family("CLIP", 1e-5, "silu", "gap")
FAMILIES = {
    "clip": CLIP,
    "clip_vision_model": CLIP,
    "metaclip_2": CLIP,
    "metaclip_2_vision_model": CLIP,
    "altclip": CLIP,
    "altclip_vision_model": CLIP,
    "chinese_clip": CLIP,
    "chinese_clip_vision_model": CLIP,
    "owlvit": CLIP,
    "owlvit_vision_model": CLIP,
    "owlv2": CLIP,
    "owlv2_vision_model": CLIP,
    "siglip": SIGLIP,
    "siglip_vision_model": SIGLIP,
    "siglip2": SIGLIP2,
    "siglip2_vision_model": SIGLIP2,
    "idefics2_vision": SIGLIP,
    "idefics3_vision": SIGLIP,
    "smolvlm_vision": SIGLIP,
    "dinov2": DINOV2,
    "dinov2_with_registers": replace(DINOV2, position_resize="timm"),  # antialiased
    "tipsv2_vision_model": replace(DINOV2, origin="TIPSv2", position_resize="siglip2"),  # bilinear and antialiased too
    "dinov3_vit": Family("DINOv3", 1e-5),
    "eomt": Family("DINOv2", 1e-6),
    "eomt_dinov3": Family("DINOv3", 1e-6),
    "ijepa": Family("I-JEPA", 1e-12, pool="gap"),
    "vit_msn": Family("MSN", 1e-6),
    "deit": Family("DeiT", 1e-12),
    "beit": BEIT,
    "data2vec-vision": replace(BEIT, origin="DeiT"),
    "internvl_vision": Family("DeiT", 1e-6, pool="gap", reads_mean_pooling=True),
    "blip_vision_model": BLIP,
    "blip_2_vision_model": replace(BLIP, norm_eps=1e-6),
    "instructblip_vision_model": replace(BLIP, norm_eps=1e-6),
    "dpt": Family("SigLIP", 1e-12, unread=("head.",)),
    "yolos": Family("DeiT", 1e-12, unread=("bbox_predictor.", "class_labels_classifier.")),
    "aimv2": AIMV2,
    "aimv2_vision_model": AIMV2,
}
# Families with tensor names of the others that compute something else.
MISSING_FEATURES = {
    "vitpose_backbone": "padded images",
    "swin": "windows that are shifted",
    "sam": "a neck of convolutions (SAM)",
    "sam_vision_model": "a neck of convolutions (SAM)",
    "pixtral": "rotary positions of Pixtral's kind",
    "radio": "several class tokens",
}
OTHER_TOWERS = re.compile(r"^(text_model|text_projection|logit_scale|logit_bias|mask_token|embeddings\.position_ids)")
PREFIXES = r"^(vit|deit|dinov2|dinov2_with_registers|ijepa|beit|data2vec_vision|dpt|vision_model)\."
RENAMES = [
    (PREFIXES, ""),
    (r"^head\.probe$", "attn_pool.latent"),
    (r"^head\.attention\.out_proj\.", "attn_pool.proj."),
    (r"^head\.attention\.in_proj_", "attn_pool.in_proj."),
    (r"^head\.layernorm\.", "attn_pool.norm."),
    (r"^head\.mlp\.", "attn_pool.mlp."),
    (r"^embeddings\.(cls_token|mask_token)$", r"\1"),
    (r"^embeddings\.class_embedding$", "cls_token"),
    (r"^(embeddings\.(distillation_token|register_tokens|detection_tokens)|register_tokens)$", "reg_token"),
    (r"^embeddings\.position_embeddings?(\.weight)?$", "pos_embed"),
    (r"^embeddings\.patch_embed(ding)?(s\.projection|s)?\.", "patch_embed.proj."),
    (r"^embeddings\.rms_norm\.", "patch_embed.norm."),
    (r"^encoder\.relative_position_bias\.", "shared_rel_pos."),
    (r"^(encoder\.)?layers?\.(\d+)\.", r"blocks.\2."),
    (r"\.attention\.attention\.relative_position_bias\.", ".attn.rel_pos."),
    (r"\.(attention\.attention|self_attn|attention)\.(q|k|v)(uery|ey|alue|_proj)\.", r".attn.\2."),
    (r"\.self_attn\.qkv\.", ".attn.qkv."),
    (
        r"\.(attention\.output\.dense|self_attn\.(out_proj|projection)|attention\.(o_proj|out_proj|projection_layer))\.",
        ".attn.proj.",
    ),
    (r"\.(layernorm_before|layer_norm1|rms_norm1)\.", ".norm1."),
    (r"\.(layernorm_after|layer_norm2|rms_norm2)\.", ".norm2."),
    (r"\.(intermediate\.dense|mlp\.c_fc)\.", ".mlp.fc1."),
    (r"(blocks\.\d+)\.(output\.dense|mlp\.c_proj)\.", r"\1.mlp.fc2."),
    (r"\.mlp\.weights_in\.", ".mlp.fc1."),  # SwiGLU, in one matrix or two
    (r"\.(mlp|ffn)\.(weights_out|down_proj)\.", ".mlp.fc2."),
    (r"\.(mlp|ffn)\.gate_proj\.", ".mlp.fc1_g."),
    (r"\.(mlp|ffn)\.up_proj\.", ".mlp.fc1_x."),
    (r"\.(layer_scale([12])\.lambda1|lambda_([12]))$", r".ls\2\3.gamma"),
    (r"^pooler\.layernorm\.", "fc_norm."),
    (r"^((post_)?layernorm|rms_norm)\.", "norm."),
    (r"^pre_lay(e)?rnorm\.", "norm_pre."),
    (r"^(cls_)?classifier\.", "head."),
    (r"^distillation_classifier\.", "head_dist."),
    (r"^visual_projection\.", "head."),
    (r"^pooler\.dense\.", "pre_logits.fc."),
]
