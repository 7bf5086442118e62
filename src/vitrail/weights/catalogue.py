"""Published models by name: hub repository, training data, licence and config. A model is a row. Torch-free.

``vitrail.load("dinov2-s14")`` fetches the row's repository. Rows are only of models that ``vitrail.load`` reads exactly; a test
builds timm's or transformers' model of every row and compares it with the config here.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError, did_you_mean
from vitrail.models.config import ModelConfig
from vitrail.models.cost import cost
from vitrail.models.variants import variant

# Licences, as SPDX writes them where it has a name. UNSURE: the project and the repository do not say the same.
APACHE, MIT, NON_COMMERCIAL, UNSURE = "Apache-2.0", "MIT", "CC-BY-NC-4.0", "see the repository"
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
    """Rows of one kind: name, variant, image size, repository and, where they differ, classes."""

    changes: Mapping[str, Any]
    trained_on: str
    licence: str
    classes: int
    rows: str

    def models(self) -> list[PublishedModel]:
        return [self._model(*row.split()) for row in self.rows.strip().splitlines()]

    def _model(self, name: str, size: str, image: str, repository: str, classes: str | None = None) -> PublishedModel:
        num_classes = self.classes if classes is None else int(classes)
        return PublishedModel(name, repository, size, int(image), num_classes, self.trained_on, self.licence, self.changes)


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
)
CATALOGUE = {model.name: model for family in FAMILIES for model in family.models()}


def find_published(source: str | Path) -> PublishedModel | None:
    """Return the model of this name, unless a file or folder has it."""
    model = CATALOGUE.get(str(source).lower())
    return None if model is None or path_exists(source) else model


def path_exists(source: str | Path) -> bool:
    return os.path.exists(os.path.expanduser(source))  # False also for what cannot be a path


def is_available(source: str) -> bool:
    """Return whether weights are a path that exists, a published model, or on the hub."""
    return source.startswith("hf:") or path_exists(source) or find_published(source) is not None


def check_name(source: str | Path) -> None:
    """Refuse what is neither a path nor the name of a model but close to such a name."""
    text = str(source)
    is_name = text and not path_exists(text) and not Path(text).suffix and "/" not in text and "\\" not in text
    hint = did_you_mean(text[:80], CATALOGUE) if is_name else ""
    if hint:
        raise VitrailError(f"{text} does not exist and is no name of a published model{hint} `vitrail models` lists them")


def search_models(text: str | None = None) -> list[PublishedModel]:
    """Return the models in whose row every word of the text occurs, whatever its case."""
    words = (text or "").lower().split()
    return [model for model in CATALOGUE.values() if all(word in _searched(model) for word in words)]


def _searched(model: PublishedModel) -> str:
    return " ".join((model.name, model.variant, model.repository, model.trained_on, model.licence)).lower()


def model_row(model: PublishedModel) -> dict[str, Any]:
    """Return what ``vitrail models --json`` says of a model; parameters and MACs are computed from its config."""
    total = cost(model.config)
    return {
        "name": model.name,
        "parameters": total.parameters,
        "macs": total.macs,
        "image": model.image,
        "classes": model.classes,
        "licence": model.licence,
        "trained_on": model.trained_on,
        "repository": model.repository,
    }
