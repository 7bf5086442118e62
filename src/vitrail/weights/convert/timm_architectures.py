"""Settings of timm's Vision Transformers that no tensor shows, by the ``architecture`` of config.json. Torch-free.

A name that is not in the table is refused: another architecture may have the same tensors and compute something else.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from vitrail.errors import VitrailError, did_you_mean
from vitrail.models.config import Gelu

ACTIVATIONS: dict[str, Gelu] = {"gelu": "exact", "gelu_tanh": "tanh", "quick_gelu": "quick"}
Pool = Literal["cls", "gap", "map", "cls+gap"]
POOLS: dict[Any, Pool] = {"token": "cls", "avg": "gap", "map": "map"}


@dataclass(frozen=True)
class Architecture:
    """The settings of a timm model that its tensors do not show."""

    width: int | None = None
    heads: int | None = None
    gelu: Gelu = "exact"
    norm_eps: float = 1e-6
    norm: Literal["pre", "branch"] = "pre"
    pool: Pool = "cls"
    gated: bool | None = None  # whether the MLPs are SwiGLUs; None: the tensors decide


SIZES = {  # width and number of heads, by the second word of a name
    "wee": (256, 4),
    "xsmall": (256, 4),
    "tiny": (192, 3),
    "little": (320, 5),
    "small": (384, 6),
    "medium": (512, 8),
    "mediumd": (512, 8),
    "betwixt": (640, 10),
    "base": (768, 12),
    "so150m": (896, 14),
    "so150m2": (832, 13),
    "large": (1024, 16),
    "intern300m": (1024, 16),
    "so400m": (1152, 16),
    "huge": (1280, 16),
    "giant": (1408, 16),
    "giantopt": (1536, 16),
    "gigantic": (1664, 16),
}


def _table() -> dict[str, Architecture]:
    plain, average, siglip = Architecture(), Architecture(pool="gap"), Architecture(pool="map")
    clip = Architecture(norm_eps=1e-5)
    rows = [
        (
            plain,
            """
            vit_tiny_patch16_224 vit_tiny_patch16_224_in21k vit_tiny_patch16_384
            vit_small_patch8_224 vit_small_patch8_224_dino vit_small_patch16_224 vit_small_patch16_224_dino
            vit_small_patch16_224_in21k vit_small_patch16_36x1_224 vit_small_patch16_384 vit_small_patch32_224
            vit_small_patch32_224_in21k vit_small_patch32_384
            vit_base_patch8_224 vit_base_patch8_224_dino vit_base_patch8_224_in21k vit_base_patch16_224
            vit_base_patch16_224_dino vit_base_patch16_224_in21k vit_base_patch16_224_miil vit_base_patch16_224_miil_in21k
            vit_base_patch16_224_sam vit_base_patch16_384 vit_base_patch16_plus_240 vit_base_patch32_224
            vit_base_patch32_224_in21k vit_base_patch32_224_sam vit_base_patch32_384 vit_base_patch32_plus_256
            vit_large_patch14_224 vit_large_patch16_224 vit_large_patch16_224_in21k vit_large_patch16_384
            vit_large_patch32_224 vit_large_patch32_224_in21k vit_large_patch32_384
            vit_huge_patch14_224 vit_huge_patch14_224_in21k vit_giant_patch14_224 vit_gigantic_patch14_224
            vit_small_patch14_dinov2 vit_base_patch14_dinov2 vit_large_patch14_dinov2
            vit_small_patch14_reg4_dinov2 vit_base_patch14_reg4_dinov2 vit_large_patch14_reg4_dinov2
            vit_base_patch14_reg1_tipsv2 vit_large_patch14_reg1_tipsv2 vit_so400m_patch14_reg1_tipsv2
            eva_giant_patch14_clip_224 vit_intern300m_patch14_448 flexivit_small flexivit_base flexivit_large
            deit_tiny_patch16_224 deit_small_patch16_224 deit_base_patch16_224 deit_base_patch16_384
            deit3_small_patch16_224 deit3_small_patch16_224_in21ft1k deit3_small_patch16_384 deit3_small_patch16_384_in21ft1k
            deit3_medium_patch16_224 deit3_medium_patch16_224_in21ft1k
            deit3_base_patch16_224 deit3_base_patch16_224_in21ft1k deit3_base_patch16_384 deit3_base_patch16_384_in21ft1k
            deit3_large_patch16_224 deit3_large_patch16_224_in21ft1k deit3_large_patch16_384 deit3_large_patch16_384_in21ft1k
            deit3_huge_patch14_224 deit3_huge_patch14_224_in21ft1k
            vit_tiny_r_s16_p8_224 vit_tiny_r_s16_p8_224_in21k vit_tiny_r_s16_p8_384
            vit_small_r26_s32_224 vit_small_r26_s32_224_in21k vit_small_r26_s32_384 vit_base_r26_s32_224
            vit_base_r50_s16_224 vit_base_r50_s16_224_in21k vit_base_r50_s16_384
            vit_base_resnet50_224_in21k vit_base_resnet50_384
            vit_large_r50_s32_224 vit_large_r50_s32_224_in21k vit_large_r50_s32_384
        """,
        ),
        (
            average,
            """
            eva_large_patch14_196 eva_large_patch14_336
            eva_giant_patch14_224 eva_giant_patch14_336 eva_giant_patch14_560
            vit_base_patch16_siglip_gap_224 vit_base_patch16_siglip_gap_256 vit_base_patch16_siglip_gap_384
            vit_base_patch16_siglip_gap_512 vit_large_patch16_siglip_gap_256 vit_large_patch16_siglip_gap_384
            vit_so400m_patch14_siglip_gap_224 vit_so400m_patch14_siglip_gap_378 vit_so400m_patch14_siglip_gap_384
            vit_so400m_patch14_siglip_gap_448 vit_so400m_patch14_siglip_gap_896
            vit_wee_patch16_reg1_gap_256 vit_little_patch16_reg1_gap_256 vit_little_patch16_reg4_gap_256
            vit_medium_patch16_gap_240 vit_medium_patch16_gap_256 vit_medium_patch16_gap_384
            vit_medium_patch16_reg1_gap_256 vit_medium_patch16_reg4_gap_256 vit_mediumd_patch16_reg4_gap_256
            vit_mediumd_patch16_reg4_gap_384 vit_betwixt_patch16_gap_256 vit_betwixt_patch16_reg1_gap_256
            vit_betwixt_patch16_reg4_gap_256 vit_betwixt_patch16_reg4_gap_384 vit_base_patch16_reg4_gap_256
            vit_so150m_patch16_reg4_gap_256 vit_so150m_patch16_reg4_gap_384 vit_so150m2_patch16_reg1_gap_256
            vit_so150m2_patch16_reg1_gap_384 vit_so150m2_patch16_reg1_gap_448
            vit_huge_patch14_gap_224 vit_huge_patch16_gap_448 vit_giant_patch16_gap_224
        """,
        ),
        (replace(average, heads=16), "vit_base_patch16_gap_224"),
        (replace(average, norm="branch"), "vit_base_patch16_rpn_224"),
        (
            replace(average, gelu="tanh"),
            """
            vit_base_patch32_siglip_gap_256 vit_large_patch16_siglip_gap_512 vit_so400m_patch16_siglip_gap_256
            vit_so400m_patch16_siglip_gap_384 vit_so400m_patch16_siglip_gap_512 vit_giantopt_patch16_siglip_gap_256
            vit_giantopt_patch16_siglip_gap_384
        """,
        ),
        (
            siglip,
            """
            vit_base_patch16_siglip_224 vit_base_patch16_siglip_256 vit_base_patch16_siglip_384 vit_base_patch16_siglip_512
            vit_large_patch16_siglip_256 vit_large_patch16_siglip_384 vit_so400m_patch14_siglip_224
            vit_so400m_patch14_siglip_378 vit_so400m_patch14_siglip_384 vit_so150m_patch16_reg4_map_256
        """,
        ),
        (
            replace(siglip, gelu="tanh"),
            """
            vit_base_patch32_siglip_256 vit_large_patch16_siglip_512 vit_so400m_patch16_siglip_256
            vit_so400m_patch16_siglip_384 vit_so400m_patch16_siglip_512 vit_giantopt_patch16_siglip_256
            vit_giantopt_patch16_siglip_384
        """,
        ),
        (
            clip,
            """
            vit_xsmall_patch16_clip_224 vit_medium_patch16_clip_224 vit_medium_patch32_clip_224 vit_betwixt_patch32_clip_224
            vit_base_patch16_clip_224 vit_base_patch16_clip_384 vit_base_patch16_plus_clip_240 vit_base_patch32_clip_224
            vit_base_patch32_224_clip_laion2b vit_base_patch32_clip_256 vit_base_patch32_clip_384 vit_base_patch32_clip_448
            vit_large_patch14_clip_224 vit_large_patch14_224_clip_laion2b vit_large_patch14_clip_336
            vit_huge_patch14_clip_224 vit_huge_patch14_224_clip_laion2b vit_huge_patch14_clip_336 vit_huge_patch14_clip_378
            vit_giant_patch14_clip_224 vit_giant_patch14_224_clip_laion2b
            vit_gigantic_patch14_clip_224 vit_gigantic_patch14_clip_378
        """,
        ),
        (
            replace(clip, gelu="quick"),
            """
            vit_base_patch16_clip_quickgelu_224 vit_base_patch32_clip_quickgelu_224 vit_large_patch14_clip_quickgelu_224
            vit_large_patch14_clip_quickgelu_336 vit_huge_patch14_clip_quickgelu_224 vit_huge_patch14_clip_quickgelu_378
            vit_gigantic_patch14_clip_quickgelu_224
        """,
        ),
        (
            replace(plain, width=1536, heads=24, gated=True),
            "vit_giant_patch14_dinov2 vit_giant_patch14_reg4_dinov2 vit_giant_patch14_reg1_tipsv2",
        ),
        (replace(plain, width=64, heads=2), "test_vit"),
        (replace(average, width=64, heads=2), "test_vit2"),
    ]
    table = {name: architecture for architecture, names in rows for name in names.split()}
    return {name: _with_size(name, facts) for name, facts in table.items()}


def _with_size(name: str, facts: Architecture) -> Architecture:
    width, heads = (896, 14) if "_plus_" in name else SIZES.get(name.split("_")[1], (facts.width, facts.heads))
    return replace(facts, width=facts.width or width, heads=facts.heads or heads)


ARCHITECTURES = _table()
# Projects whose weights timm converted, by name; they decide the preprocessing and the rule that resizes positions.
ORIGINS = {
    r"clip": "CLIP",
    r"tipsv2": "TIPSv2",
    r"siglip": "SigLIP",
    r"dinov2": "DINOv2",
    r"_dino$": "DINO",
    r"^deit3_": "DeiT III",
    r"^deit_": "DeiT",
    r"^resnetv2_": "BiT",
}
# BiT's ResNets, whose tensors show all of them.
RESNETS = re.compile(r"resnetv2_\d+x\d_(bit\w*|bitm\w*)")
# Families that Vitrail does not have, and what they compute that it does not.
MISSING_FEATURES = {
    r"eva02_|vit_\w*(dinov3|lingbot|rope|sapiens2)|vit_pe_": "rotary positions of this kind",
    r"beit3": "norms inside attention and MLP",
    r"beit|data2vec|vit_s?relpos": "a relative position bias",
    r"aimv2|test_vit4": "RMSNorm",
    r"vit_\w+_(18x2|xp)_|vit_d?pwee": "parallel blocks",
    r"vit_d(wee|little)": "differential attention",
    r"deit_\w+_distilled": "a distilled DeiT's two heads",
    r"vit_\w+_(resnet26d|resnet50d)": "a ResNet stem with batch norm",
    r"vit_base_mci": "a convolutional stem with batch norm",
    r"test_vit3": "pooling over the prefix tokens",
    r"naflexvit": "images of several sizes in one batch (NaFlex)",
    r"samvit|vit_\w*sam_": "windowed attention (SAM)",
    r"vitamin|swin|cait|convit|crossvit|levit|maxvit|hiera|mvit|pvt|pit_|twins|xcit": "this family of models",
}


def known_architecture(name: Any) -> Architecture:
    """Return what an architecture computes; refuse one that is not known, by the feature that is missing if that is known."""
    key = name.partition(".")[0] if isinstance(name, str) else ""  # a tag after the dot names the weights
    if key in ARCHITECTURES:
        return ARCHITECTURES[key]
    for pattern, feature in MISSING_FEATURES.items():
        if re.match(pattern, key):
            raise VitrailError(f"{key} has {feature}, which Vitrail's Vision Transformers do not have")
    raise VitrailError(
        f"architecture in config.json must be one that Vitrail knows, got {str(name)[:60]!r}"
        f"{did_you_mean(key, list(ARCHITECTURES)) or '; what it computes beyond its tensors is unknown'}"
    )


# Arguments that matter only in training or for another image size than the model's own.
WITHOUT_EFFECT = {
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("weight_init", "fix_init", "init_values", "dynamic_img_size", "strict_img_size", "img_size"),
    *("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "checkpoint_path"),
    *("device", "dtype", "scriptable", "exportable", "no_jit"),
}
# Arguments that the tensors show as well; they are compared with the model.
SHOWN_BY_TENSORS = {
    *("patch_size", "in_chans", "num_classes", "depth", "mlp_ratio", "qkv_bias", "qk_norm", "class_token"),
    *("reg_tokens", "pre_norm", "no_embed_class", "fc_norm", "final_norm"),
}
# Arguments that must be at their default, and the feature that another value selects.
ONLY_DEFAULT: dict[str, tuple[tuple[Any, ...], str]] = {
    "norm_layer": (("layernorm",), "another norm than layer norm"),
    "embed_norm_layer": ((), "a norm in the patch embedding"),
    "scale_attn_norm": ((False,), "a norm inside attention"),
    "scale_mlp_norm": ((False,), "a norm inside the MLP"),
    "proj_bias": ((True,), "an attention projection without a bias"),
    "pos_embed": (("learn",), "no position table"),
    "pool_include_prefix": ((False,), "pooling over the prefix tokens"),
    "dynamic_img_pad": ((False,), "images padded to whole patches"),
    "features_only": ((False,), "a feature pyramid in place of the classifier"),
    "block_fn": ((), "another kind of block"),
    "mlp_layer": ((), "another kind of MLP"),
    "attn_layer": ((), "another kind of attention"),
    "embed_layer": ((), "another kind of patch embedding"),
}
KNOWN_ARGUMENTS = {"embed_dim", "num_heads", "act_layer", "global_pool", *WITHOUT_EFFECT, *SHOWN_BY_TENSORS, *ONLY_DEFAULT}


def apply_model_args(facts: Architecture, args: Mapping[str, Any]) -> Architecture:
    """Apply ``model_args`` of config.json, which override the architecture; every key is read or refused."""
    for name, value in args.items():
        match name:
            case _ if value is None or name in WITHOUT_EFFECT or name in SHOWN_BY_TENSORS:
                pass
            case "embed_dim":
                facts = replace(facts, width=_positive(value, name))
            case "num_heads":
                facts = replace(facts, heads=_positive(value, name))
            case "act_layer":
                facts = replace(facts, gelu=_choice(value, name, ACTIVATIONS, "the activation"))
            case "global_pool":
                facts = replace(facts, pool=_choice(value, name, POOLS, "the pooling"))
            case _ if name in ONLY_DEFAULT:
                defaults, feature = ONLY_DEFAULT[name]
                if not any(value == default and type(value) is type(default) for default in defaults):
                    raise VitrailError(
                        f"model_args in config.json has {name}={str(value)[:40]!r}: {feature}, which Vitrail's Vision "
                        "Transformers do not have"
                    )
            case _:
                raise VitrailError(
                    f"model_args in config.json has {str(name)[:40]}={str(value)[:40]}, which Vitrail does not know"
                )
    return facts


def _positive(value: Any, name: str) -> int:
    if type(value) is not int or value < 1:
        raise VitrailError(f"{name} in config.json must be a whole number above 0, got {str(value)[:40]!r}")
    return value


def _choice(value: Any, name: str, choices: Mapping[str, Any], what: str) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise VitrailError(
            f"{name} in config.json must be one of {', '.join(choices)}, got {str(value)[:40]!r}; {what} {str(value)[:40]} is "
            "one that Vitrail's Vision Transformers do not have"
        )
    return choices[value]
