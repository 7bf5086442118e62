"""The published models: hub repository, training data, licence and config. A model is a row. Torch-free.

Rows are only of models that ``vitrail.load`` reads exactly; a test builds timm's or transformers' model of every row and
compares it with the config here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitrail.models.config import ModelConfig, RelativeBiasConfig, RotaryConfig
from vitrail.models.variants import variant

# Licences, as SPDX writes them where it has a name. UNSURE: the project and the repository do not say the same.
APACHE, MIT, NON_COMMERCIAL, UNSURE = "Apache-2.0", "MIT", "CC-BY-NC-4.0", "see the repository"
DINOV3_LICENCE, APPLE = "DINOv3-License", "Apple-ASCL"
IN1K, IN21K = "ImageNet-1k", "ImageNet-21k"

# Fields of the model in which a family differs from the variant of the same size.
TIMM = {"gelu": "exact"}
HUGGING_FACE = {"gelu": "exact", "norm_eps": 1e-12, "position_resize": "huggingface"}
DEIT3 = {"gelu": "exact", "layer_scale": 1e-5, "position_prefix": "none"}
DINOV2 = {"gelu": "exact", "layer_scale": 1e-5, "position_resize": "huggingface"}
MSN = {"gelu": "exact", "position_resize": "huggingface"}
IJEPA = {**MSN, "pool": "gap", "position_prefix": "none"}
CLIP_TIMM = {"gelu": "exact", "norm_eps": 1e-5, "patch_bias": False, "embed_norm": True}
CLIP = {**CLIP_TIMM, "gelu": "quick", "position_resize": "huggingface"}
SIGLIP = {"gelu": "exact", "pool": "map", "position_prefix": "none"}
EVA = {"gelu": "exact", "pool": "gap", "class_token": True, "final_norm": "pooled"}
DISTILLED = {"gelu": "exact", "pool": "cls+register", "registers": 1, "position_prefix": "all"}
DINOV2_TIMM = {"gelu": "exact", "layer_scale": 1e-5, "mlp_kind": "swiglu"}
DINOV3 = {
    "gelu": "exact",
    "norm_eps": 1e-5,
    "position": "none",
    "position_prefix": "none",
    "rotary": RotaryConfig(coordinates="normalised"),
    "registers": 4,
    "layer_scale": 1e-5,
    "pool": "gap",
    "class_token": True,
    "qkv_bias": False,
}
BEIT = {**EVA, "layer_scale": 1e-5, "position": "none", "position_prefix": "none", "key_bias": False}
BEIT |= {"relative_bias": RelativeBiasConfig()}
EVA_ROTARY = RotaryConfig(base=10_000, coordinates="scaled")
EVA02 = {**EVA, "mlp_kind": "swiglu", "key_bias": False, "rotary": EVA_ROTARY}
EVA02_CLIP = {**EVA02, "pool": "cls", "class_token": None, "final_norm": "tokens", "mlp_norm": True, "attention_norm": True}
ROPE_MIXED = RotaryConfig(base=10, coordinates="index", mixed=True)
ROPE_VIT = {"gelu": "exact", "layer_scale": 1e-5, "position": "none", "position_prefix": "none", "rotary": ROPE_MIXED}
PE = {
    "gelu": "exact",
    "norm_eps": 1e-5,
    "pool": "gap",
    "class_token": True,
    "patch_bias": False,
    "embed_norm": True,
    "rotary": RotaryConfig(base=10_000, coordinates="scaled", offset=1.0),
}
PE_CORE = {**PE, "pool": "map", "pool_heads": 8, "pool_prefix": True}
PE_GIANT = {"class_token": None, "pool_prefix": False, "position_prefix": "none", "rotary": EVA_ROTARY}
AIMV2 = {
    "gelu": "exact",
    "norm_kind": "rms",
    "norm_eps": 1e-5,
    "pool": "gap",
    "position_prefix": "none",
    "mlp_kind": "swiglu",
    "patch_norm": "output",
    "qkv_bias": False,
    "out_bias": False,
}


@dataclass(frozen=True)
class PublishedModel:
    """A model on the hub: its repository, what it was trained on, its licence, and the config it is loaded with."""

    name: str
    repository: str  # owner/name
    variant: str  # of the same size
    image: int  # size of the input that it is loaded for
    classes: int  # 0: it returns its representation; of CLIP, the width of the projection
    trained_on: str
    licence: str
    changes: Mapping[str, Any] = field(default_factory=dict)  # fields in which the model differs from the variant

    @property
    def config(self) -> ModelConfig:
        return variant(self.variant, image=self.image, classes=self.classes, **self.changes)


@dataclass(frozen=True)
class _Family:
    """Rows of one kind: name, variant, image size, repository and, where they differ, classes and sizes of the model."""

    changes: Mapping[str, Any]
    trained_on: str
    licence: str
    classes: int
    rows: str

    def models(self) -> list[PublishedModel]:
        return [self._model(*row.split()) for row in self.rows.strip().splitlines()]

    def _model(self, name: str, size: str, image: str, repository: str, *others: str) -> PublishedModel:
        changes = {field: int(value) for field, equals, value in (other.partition("=") for other in others) if equals}
        classes = next((int(other) for other in others if other.isdecimal()), self.classes)
        return PublishedModel(
            name, repository, size, int(image), classes, self.trained_on, self.licence, {**self.changes, **changes}
        )


FAMILIES = (
    # "How to train your ViT?" (Steiner et al. 2022)
    _Family(
        TIMM,
        f"{IN21K}, then {IN1K}",
        APACHE,
        1000,
        """
        vit-ti16-augreg       Ti/16  224  timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k
        vit-ti16-augreg-384   Ti/16  384  timm/vit_tiny_patch16_384.augreg_in21k_ft_in1k
        vit-s16-augreg        S/16   224  timm/vit_small_patch16_224.augreg_in21k_ft_in1k
        vit-s16-augreg-384    S/16   384  timm/vit_small_patch16_384.augreg_in21k_ft_in1k
        vit-s32-augreg        S/32   224  timm/vit_small_patch32_224.augreg_in21k_ft_in1k
        vit-s32-augreg-384    S/32   384  timm/vit_small_patch32_384.augreg_in21k_ft_in1k
        vit-b8-augreg         B/8    224  timm/vit_base_patch8_224.augreg_in21k_ft_in1k
        vit-b16-augreg        B/16   224  timm/vit_base_patch16_224.augreg_in21k_ft_in1k
        vit-b16-augreg-384    B/16   384  timm/vit_base_patch16_384.augreg_in21k_ft_in1k
        vit-b32-augreg        B/32   224  timm/vit_base_patch32_224.augreg_in21k_ft_in1k
        vit-b32-augreg-384    B/32   384  timm/vit_base_patch32_384.augreg_in21k_ft_in1k
        vit-l16-augreg        L/16   224  timm/vit_large_patch16_224.augreg_in21k_ft_in1k
        vit-l16-augreg-384    L/16   384  timm/vit_large_patch16_384.augreg_in21k_ft_in1k
        """,
    ),
    _Family(
        TIMM,
        IN21K,
        APACHE,
        21843,
        """
        vit-ti16-augreg-in21k  Ti/16  224  timm/vit_tiny_patch16_224.augreg_in21k
        vit-s16-augreg-in21k   S/16   224  timm/vit_small_patch16_224.augreg_in21k
        vit-s32-augreg-in21k   S/32   224  timm/vit_small_patch32_224.augreg_in21k
        vit-b8-augreg-in21k    B/8    224  timm/vit_base_patch8_224.augreg_in21k
        vit-b16-augreg-in21k   B/16   224  timm/vit_base_patch16_224.augreg_in21k
        vit-b32-augreg-in21k   B/32   224  timm/vit_base_patch32_224.augreg_in21k
        vit-l16-augreg-in21k   L/16   224  timm/vit_large_patch16_224.augreg_in21k
        """,
    ),
    _Family(
        TIMM,
        IN1K,
        APACHE,
        1000,
        """
        vit-s16-augreg-in1k  S/16  224  timm/vit_small_patch16_224.augreg_in1k
        vit-b16-augreg-in1k  B/16  224  timm/vit_base_patch16_224.augreg_in1k
        vit-b32-augreg-in1k  B/32  224  timm/vit_base_patch32_224.augreg_in1k
        """,
    ),
    # "An image is worth 16x16 words" (Dosovitskiy et al. 2021)
    _Family(
        HUGGING_FACE,
        f"{IN21K}, then {IN1K}",
        APACHE,
        1000,
        """
        vit-b16      B/16  224  google/vit-base-patch16-224
        vit-b16-384  B/16  384  google/vit-base-patch16-384
        vit-b32-384  B/32  384  google/vit-base-patch32-384
        vit-l16      L/16  224  google/vit-large-patch16-224
        vit-l16-384  L/16  384  google/vit-large-patch16-384
        vit-l32-384  L/32  384  google/vit-large-patch32-384
        """,
    ),
    _Family(
        {**HUGGING_FACE, "head": "mlp"},
        IN21K,
        APACHE,
        0,
        """
        vit-b16-in21k  B/16  224  google/vit-base-patch16-224-in21k
        vit-b32-in21k  B/32  224  google/vit-base-patch32-224-in21k
        vit-l16-in21k  L/16  224  google/vit-large-patch16-224-in21k
        vit-l32-in21k  L/32  224  google/vit-large-patch32-224-in21k
        vit-h14-in21k  H/14  224  google/vit-huge-patch14-224-in21k
        """,
    ),
    # DeiT (Touvron et al. 2021) and DeiT III (Touvron et al. 2022)
    _Family(
        TIMM,
        IN1K,
        APACHE,
        1000,
        """
        deit-ti16     Ti/16  224  timm/deit_tiny_patch16_224.fb_in1k
        deit-s16      S/16   224  timm/deit_small_patch16_224.fb_in1k
        deit-b16      B/16   224  timm/deit_base_patch16_224.fb_in1k
        deit-b16-384  B/16   384  timm/deit_base_patch16_384.fb_in1k
        """,
    ),
    _Family(
        DEIT3,
        IN1K,
        APACHE,
        1000,
        """
        deit3-s16      S/16  224  timm/deit3_small_patch16_224.fb_in1k
        deit3-s16-384  S/16  384  timm/deit3_small_patch16_384.fb_in1k
        deit3-m16      M/16  224  timm/deit3_medium_patch16_224.fb_in1k
        deit3-b16      B/16  224  timm/deit3_base_patch16_224.fb_in1k
        deit3-b16-384  B/16  384  timm/deit3_base_patch16_384.fb_in1k
        deit3-l16      L/16  224  timm/deit3_large_patch16_224.fb_in1k
        deit3-l16-384  L/16  384  timm/deit3_large_patch16_384.fb_in1k
        deit3-h14      H/14  224  timm/deit3_huge_patch14_224.fb_in1k
        """,
    ),
    _Family(
        DEIT3,
        f"{IN21K}, then {IN1K}",
        APACHE,
        1000,
        """
        deit3-s16-in21k      S/16  224  timm/deit3_small_patch16_224.fb_in22k_ft_in1k
        deit3-s16-in21k-384  S/16  384  timm/deit3_small_patch16_384.fb_in22k_ft_in1k
        deit3-m16-in21k      M/16  224  timm/deit3_medium_patch16_224.fb_in22k_ft_in1k
        deit3-b16-in21k      B/16  224  timm/deit3_base_patch16_224.fb_in22k_ft_in1k
        deit3-b16-in21k-384  B/16  384  timm/deit3_base_patch16_384.fb_in22k_ft_in1k
        deit3-l16-in21k      L/16  224  timm/deit3_large_patch16_224.fb_in22k_ft_in1k
        deit3-l16-in21k-384  L/16  384  timm/deit3_large_patch16_384.fb_in22k_ft_in1k
        deit3-h14-in21k      H/14  224  timm/deit3_huge_patch14_224.fb_in22k_ft_in1k
        """,
    ),
    # DINO (Caron et al. 2021)
    _Family(
        TIMM,
        f"{IN1K}, without labels",
        APACHE,
        0,
        """
        dino-s8   S/8   224  timm/vit_small_patch8_224.dino
        dino-s16  S/16  224  timm/vit_small_patch16_224.dino
        dino-b8   B/8   224  timm/vit_base_patch8_224.dino
        dino-b16  B/16  224  timm/vit_base_patch16_224.dino
        """,
    ),
    # DINOv2 (Oquab et al. 2023), with registers (Darcet et al. 2023). The position tables are of 518 pixels; like transformers'
    # image processor, the rows take 224.
    _Family(
        DINOV2,
        "LVD-142M, without labels",
        APACHE,
        0,
        """
        dinov2-s14  S/14  224  facebook/dinov2-small
        dinov2-b14  B/14  224  facebook/dinov2-base
        dinov2-l14  L/14  224  facebook/dinov2-large
        """,
    ),
    _Family(
        {**DINOV2, "registers": 4, "position_resize": "timm"},  # these are resized with antialiasing
        "LVD-142M, without labels",
        APACHE,
        0,
        """
        dinov2-s14-reg  S/14  224  facebook/dinov2-with-registers-small
        dinov2-b14-reg  B/14  224  facebook/dinov2-with-registers-base
        dinov2-l14-reg  L/14  224  facebook/dinov2-with-registers-large
        """,
    ),
    _Family(
        {**DINOV2, "pool": "cls+gap"},
        f"LVD-142M, without labels; the head: {IN1K}",
        APACHE,
        1000,
        """
        dinov2-s14-in1k  S/14  224  facebook/dinov2-small-imagenet1k-1-layer
        dinov2-b14-in1k  B/14  224  facebook/dinov2-base-imagenet1k-1-layer
        dinov2-l14-in1k  L/14  224  facebook/dinov2-large-imagenet1k-1-layer
        """,
    ),
    # Masked autoencoders (He et al. 2022): the encoders
    _Family(
        TIMM,
        f"{IN1K}, without labels",
        NON_COMMERCIAL,
        0,
        """
        mae-b16  B/16  224  timm/vit_base_patch16_224.mae
        mae-l16  L/16  224  timm/vit_large_patch16_224.mae
        mae-h14  H/14  224  timm/vit_huge_patch14_224.mae
        """,
    ),
    # MSN (Assran et al. 2022) and I-JEPA (Assran et al. 2023)
    _Family(
        MSN,
        f"{IN1K}, without labels",
        UNSURE,
        0,
        """
        msn-s16  S/16  224  facebook/vit-msn-small
        msn-b16  B/16  224  facebook/vit-msn-base
        msn-l16  L/16  224  facebook/vit-msn-large
        """,
    ),
    _Family(
        IJEPA,
        f"{IN1K}, without labels",
        NON_COMMERCIAL,
        0,
        """
        ijepa-h14      H/14  224  facebook/ijepa_vith14_1k
        ijepa-h16-448  H/16  448  facebook/ijepa_vith16_1k
        """,
    ),
    _Family(
        IJEPA,
        f"{IN21K}, without labels",
        NON_COMMERCIAL,
        0,
        """
        ijepa-h14-in21k  H/14  224  facebook/ijepa_vith14_22k
        ijepa-g16-in21k  g/16  224  facebook/ijepa_vitg16_22k
        """,
    ),
    # CLIP (Radford et al. 2021) and OpenCLIP (Cherti et al. 2023): the image towers and their projections
    _Family(
        CLIP,
        "400 million images with captions (OpenAI's)",
        MIT,
        512,
        """
        clip-b32      B/32  224  openai/clip-vit-base-patch32
        clip-b16      B/16  224  openai/clip-vit-base-patch16
        clip-l14      L/14  224  openai/clip-vit-large-patch14      768
        clip-l14-336  L/14  336  openai/clip-vit-large-patch14-336  768
        """,
    ),
    _Family(
        {**CLIP, "gelu": "exact"},
        "LAION-2B, images with captions",
        MIT,
        512,
        """
        clip-b32-laion2b  B/32  224  laion/CLIP-ViT-B-32-laion2B-s34B-b79K
        clip-l14-laion2b  L/14  224  laion/CLIP-ViT-L-14-laion2B-s32B-b82K  768
        clip-h14-laion2b  H/14  224  laion/CLIP-ViT-H-14-laion2B-s32B-b79K  1024
        """,
    ),
    _Family(
        CLIP_TIMM,
        f"LAION-2B, images with captions, then ImageNet-12k and {IN1K}",
        APACHE,
        1000,
        """
        clip-b32-laion2b-in1k-384  B/32  384  timm/vit_base_patch32_clip_384.laion2b_ft_in12k_in1k
        clip-b16-laion2b-in1k      B/16  224  timm/vit_base_patch16_clip_224.laion2b_ft_in12k_in1k
        clip-b16-laion2b-in1k-384  B/16  384  timm/vit_base_patch16_clip_384.laion2b_ft_in12k_in1k
        clip-l14-laion2b-in1k-336  L/14  336  timm/vit_large_patch14_clip_336.laion2b_ft_in12k_in1k
        clip-h14-laion2b-in1k-336  H/14  336  timm/vit_huge_patch14_clip_336.laion2b_ft_in12k_in1k
        """,
    ),
    # SigLIP (Zhai et al. 2023) and SigLIP 2 (Tschannen et al. 2025): the image towers. At 384 pixels patches of 14 leave 6 out.
    _Family(
        SIGLIP,
        "WebLI, images with captions",
        APACHE,
        0,
        """
        siglip-b16-224        B/16       224  timm/vit_base_patch16_siglip_224.webli
        siglip-b16-256        B/16       256  timm/vit_base_patch16_siglip_256.webli
        siglip-b16-384        B/16       384  timm/vit_base_patch16_siglip_384.webli
        siglip-b16-512        B/16       512  timm/vit_base_patch16_siglip_512.webli
        siglip-l16-256        L/16       256  timm/vit_large_patch16_siglip_256.webli
        siglip-l16-384        L/16       384  timm/vit_large_patch16_siglip_384.webli
        siglip-so400m14-224   So400m/14  224  timm/vit_so400m_patch14_siglip_224.webli
        siglip-so400m14-384   So400m/14  378  timm/vit_so400m_patch14_siglip_384.webli
        siglip2-b16-224       B/16       224  timm/vit_base_patch16_siglip_224.v2_webli
        siglip2-b16-256       B/16       256  timm/vit_base_patch16_siglip_256.v2_webli
        siglip2-b16-384       B/16       384  timm/vit_base_patch16_siglip_384.v2_webli
        siglip2-b16-512       B/16       512  timm/vit_base_patch16_siglip_512.v2_webli
        siglip2-l16-256       L/16       256  timm/vit_large_patch16_siglip_256.v2_webli
        siglip2-l16-384       L/16       384  timm/vit_large_patch16_siglip_384.v2_webli
        siglip2-so400m14-224  So400m/14  224  timm/vit_so400m_patch14_siglip_224.v2_webli
        siglip2-so400m14-378  So400m/14  378  timm/vit_so400m_patch14_siglip_378.v2_webli
        """,
    ),
    _Family(
        {**SIGLIP, "gelu": "tanh"},
        "WebLI, images with captions",
        APACHE,
        0,
        """
        siglip2-b32-256       B/32       256  timm/vit_base_patch32_siglip_256.v2_webli
        siglip2-l16-512       L/16       512  timm/vit_large_patch16_siglip_512.v2_webli
        siglip2-so400m16-256  So400m/16  256  timm/vit_so400m_patch16_siglip_256.v2_webli
        siglip2-so400m16-384  So400m/16  384  timm/vit_so400m_patch16_siglip_384.v2_webli
        siglip2-so400m16-512  So400m/16  512  timm/vit_so400m_patch16_siglip_512.v2_webli
        siglip2-g16-256       g-opt/16   256  timm/vit_giantopt_patch16_siglip_256.v2_webli
        siglip2-g16-384       g-opt/16   384  timm/vit_giantopt_patch16_siglip_384.v2_webli
        """,
    ),
    # EVA (Fang et al. 2023)
    _Family(
        EVA,
        f"{IN21K}, then {IN1K}",
        MIT,
        1000,
        """
        eva-l14-196  L/14  196  timm/eva_large_patch14_196.in22k_ft_in22k_in1k
        eva-l14-336  L/14  336  timm/eva_large_patch14_336.in22k_ft_in22k_in1k
        """,
    ),
    # Distilled DeiT (Touvron et al. 2021): the head reads the class token and the distillation token
    _Family(
        DISTILLED,
        f"{IN1K}, with a teacher",
        APACHE,
        1000,
        """
        deit-ti16-distilled     Ti/16  224  timm/deit_tiny_distilled_patch16_224.fb_in1k
        deit-s16-distilled      S/16   224  timm/deit_small_distilled_patch16_224.fb_in1k
        deit-b16-distilled      B/16   224  timm/deit_base_distilled_patch16_224.fb_in1k
        deit-b16-distilled-384  B/16   384  timm/deit_base_distilled_patch16_384.fb_in1k
        """,
    ),
    # DINOv2's giant
    _Family(
        DINOV2_TIMM,
        "LVD-142M, without labels",
        APACHE,
        0,
        """
        dinov2-g14-518  g-opt/14  518  timm/vit_giant_patch14_dinov2.lvd142m  heads=24 mlp=4096
        """,
    ),
    _Family(
        {**DINOV2_TIMM, "registers": 4, "position_prefix": "none"},
        "LVD-142M, without labels",
        APACHE,
        0,
        """
        dinov2-g14-reg-518  g-opt/14  518  timm/vit_giant_patch14_reg4_dinov2.lvd142m  heads=24 mlp=4096
        """,
    ),
    # DINOv3 (Simeoni et al. 2025)
    _Family(
        DINOV3,
        "LVD-1689M, without labels",
        DINOV3_LICENCE,
        0,
        """
        dinov3-s16  S/16  256  timm/vit_small_patch16_dinov3.lvd1689m
        dinov3-b16  B/16  256  timm/vit_base_patch16_dinov3.lvd1689m
        dinov3-l16  L/16  256  timm/vit_large_patch16_dinov3.lvd1689m
        """,
    ),
    _Family(
        {**DINOV3, "mlp_kind": "swiglu"},
        "LVD-1689M, without labels",
        DINOV3_LICENCE,
        0,
        """
        dinov3-s16plus  S/16  256  timm/vit_small_plus_patch16_dinov3.lvd1689m
        dinov3-h16plus  H/16  256  timm/vit_huge_plus_patch16_dinov3.lvd1689m  heads=20
        dinov3-7b16     H/16  256  timm/vit_7b_patch16_dinov3.lvd1689m         heads=32 width=4096 depth=40 mlp=8192
        """,
    ),
    _Family(
        DINOV3,
        "SAT-493M, satellite images without labels",
        DINOV3_LICENCE,
        0,
        """
        dinov3-l16-sat  L/16  256  timm/vit_large_patch16_dinov3.sat493m
        """,
    ),
    # BEiT (Bao et al. 2022) and BEiT v2 (Peng et al. 2022)
    _Family(
        BEIT,
        f"{IN21K}, then {IN1K}",
        APACHE,
        1000,
        """
        beit-b16        B/16  224  timm/beit_base_patch16_224.in22k_ft_in22k_in1k
        beit-b16-384    B/16  384  timm/beit_base_patch16_384.in22k_ft_in22k_in1k
        beit-l16        L/16  224  timm/beit_large_patch16_224.in22k_ft_in22k_in1k
        beit-l16-384    L/16  384  timm/beit_large_patch16_384.in22k_ft_in22k_in1k
        beit-l16-512    L/16  512  timm/beit_large_patch16_512.in22k_ft_in22k_in1k
        beit2-b16       B/16  224  timm/beitv2_base_patch16_224.in1k_ft_in22k_in1k
        beit2-l16       L/16  224  timm/beitv2_large_patch16_224.in1k_ft_in22k_in1k
        """,
    ),
    # EVA-02 (Fang et al. 2023); rotary coordinates are those of its pre-training's 16 x 16 patches
    _Family(
        {**EVA02, "position_grid": (16, 16)},
        f"{IN21K}, then {IN1K}",
        MIT,
        1000,
        """
        eva02-ti14-336  Ti/14  336  timm/eva02_tiny_patch14_336.mim_in22k_ft_in1k   mlp=512
        eva02-s14-336   S/14   336  timm/eva02_small_patch14_336.mim_in22k_ft_in1k  mlp=1024
        """,
    ),
    _Family(
        {**EVA02, "position_grid": (16, 16), "mlp_norm": True},
        f"{IN21K}, then {IN1K}",
        MIT,
        1000,
        """
        eva02-b14-448  B/14  448  timm/eva02_base_patch14_448.mim_in22k_ft_in22k_in1k   mlp=2048
        eva02-l14-448  L/14  448  timm/eva02_large_patch14_448.mim_m38m_ft_in22k_in1k  mlp=2730
        """,
    ),
    _Family(
        {**EVA02_CLIP, "position_grid": (16, 16)},
        "Merged-2B, images with captions",
        MIT,
        512,
        """
        eva02-clip-b16      B/16  224  timm/eva02_base_patch16_clip_224.merged2b       mlp=2048
        eva02-clip-l14-336  L/14  336  timm/eva02_large_patch14_clip_336.merged2b 768  mlp=2730
        """,
    ),
    _Family(
        EVA02_CLIP,
        "Merged-2B, images with captions",
        MIT,
        768,
        """
        eva02-clip-l14  L/14  224  timm/eva02_large_patch14_clip_224.merged2b  mlp=2730
        """,
    ),
    # RoPE-ViT (Heo et al. 2024): learned rotary frequencies, without a position table
    _Family(
        ROPE_VIT,
        IN1K,
        APACHE,
        1000,
        """
        rope-s16  S/16  224  timm/vit_small_patch16_rope_mixed_224.naver_in1k
        rope-b16  B/16  224  timm/vit_base_patch16_rope_mixed_224.naver_in1k
        rope-l16  L/16  224  timm/vit_large_patch16_rope_mixed_224.naver_in1k
        """,
    ),
    # Perception Encoder (Bolya et al. 2025)
    _Family(
        PE_CORE,
        "5.4 billion images and videos with captions",
        APACHE,
        512,
        """
        pe-core-ti16-384  Ti/16  384  timm/vit_pe_core_tiny_patch16_384.fb
        pe-core-s16-384   S/16   384  timm/vit_pe_core_small_patch16_384.fb
        pe-core-b16       B/16   224  timm/vit_pe_core_base_patch16_224.fb   1024
        pe-core-l14-336   L/14   336  timm/vit_pe_core_large_patch14_336.fb  1024
        """,
    ),
    _Family(
        {**PE_CORE, **PE_GIANT},
        "5.4 billion images and videos with captions",
        APACHE,
        1280,
        """
        pe-core-g14-448  g-opt/14  448  timm/vit_pe_core_gigantic_patch14_448.fb  depth=50 mlp=8960 pool_mlp=6144
        """,
    ),
    _Family(
        {**PE, "final_norm": "none"},
        "5.4 billion images and videos with captions",
        APACHE,
        0,
        """
        pe-spatial-ti16-512  Ti/16  512  timm/vit_pe_spatial_tiny_patch16_512.fb
        pe-spatial-s16-512   S/16   512  timm/vit_pe_spatial_small_patch16_512.fb
        pe-spatial-b16-512   B/16   512  timm/vit_pe_spatial_base_patch16_512.fb
        pe-spatial-l14-448   L/14   448  timm/vit_pe_spatial_large_patch14_448.fb
        """,
    ),
    # AIMv2 (Fini et al. 2025)
    _Family(
        AIMV2,
        "images with captions (Apple's)",
        APPLE,
        0,
        """
        aimv2-l14      L/14  224  timm/aimv2_large_patch14_224.apple_pt  heads=8 mlp=2816
        aimv2-l14-336  L/14  336  timm/aimv2_large_patch14_336.apple_pt  heads=8 mlp=2816
        aimv2-l14-448  L/14  448  timm/aimv2_large_patch14_448.apple_pt  heads=8 mlp=2816
        aimv2-h14      H/14  224  timm/aimv2_huge_patch14_224.apple_pt   width=1536 depth=24 heads=12 mlp=4096
        """,
    ),
    # SigLIP 2 for images of any size (NaFlex), at one size
    _Family(
        {**SIGLIP, "gelu": "tanh", "position_resize": "siglip2"},
        "WebLI, images with captions",
        APACHE,
        0,
        """
        siglip2-b16-naflex       B/16       384  timm/naflexvit_base_patch16_siglip.v2_webli
        siglip2-so400m16-naflex  So400m/16  384  timm/naflexvit_so400m_patch16_siglip.v2_webli
        """,
    ),
)
