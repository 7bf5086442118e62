"""Settings of timm's Vision Transformers that no tensor shows, by the ``architecture`` of config.json. Torch-free.

A name that is not in the table is refused: another architecture may have the same tensors and compute something else.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from vitrail.errors import VitrailError, did_you_mean
from vitrail.models.config import Gelu, Pair, Pool, PositionResize, RotaryConfig

ACTIVATIONS: dict[str, Gelu] = {"gelu": "exact", "gelu_tanh": "tanh", "quick_gelu": "quick"}
POOLS: dict[Any, Pool] = {"token": "cls", "avg": "gap", "map": "map"}


# Which channels of a head turn together: neighbours, those of the rows before those of the columns or after them; or a channel
# of the first half with one of the second.
RotaryChannels = Literal["rows-first", "columns-first", "halves"]


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
    rotary: RotaryConfig | None = None
    rotary_grid: Pair | None = None  # the grid that coordinates are rescaled to; None: the model's own
    rotary_channels: RotaryChannels = "rows-first"
    pool_heads: int | None = None
    pool_prefix: bool = False
    is_eva: bool = False  # timm's class Eva, whose attention pooling reads every token
    position_resize: PositionResize = "timm"
    resizes_positions: bool = False  # whether the table is resized to the images, of any size (NaFlex)


SIZES = {  # width and number of heads, by the first of these words in a name
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
    "enormous": (1792, 16),
}
UNUSUAL_SIZES = {  # by a part of the name
    r"base_patch(16|32)_plus_": (896, 14),
    r"vit_pe_\w+_gigantic": (1536, 16),
    r"vit_huge_plus_\w+_dinov3": (1280, 20),
    r"vit_7b_": (4096, 32),
    r"vit_giant_\w+_lingbot": (1536, 24),
    r"aimv2_large": (1024, 8),
    r"aimv2_huge": (1536, 12),
    r"aimv2_1b": (2048, 16),
    r"aimv2_3b": (3072, 24),
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
        (replace(siglip, width=96, heads=3, pool_prefix=True), "test_vit3"),
        (replace(average, width=96, heads=3), "test_vit4"),
        (
            replace(plain, pool="cls+register"),
            """
            deit_tiny_distilled_patch16_224 deit_small_distilled_patch16_224 deit_base_distilled_patch16_224
            deit_base_distilled_patch16_384
        """,
        ),
        (
            replace(average, norm_eps=1e-5),
            """
            beit3_base_patch16_224 beit3_large_patch16_224 beit3_giant_patch14_224 beit3_giant_patch14_336
            aimv2_large_patch14_224 aimv2_large_patch14_336 aimv2_large_patch14_448 aimv2_huge_patch14_224
            aimv2_huge_patch14_336 aimv2_huge_patch14_448 aimv2_1b_patch14_224 aimv2_1b_patch14_336 aimv2_1b_patch14_448
            aimv2_3b_patch14_224 aimv2_3b_patch14_336 aimv2_3b_patch14_448
        """,
        ),
    ]
    rows += [(replace(facts, is_eva=True), names) for facts, names in _rotary_rows()]
    rows += _relative_rows() + _naflex_rows()
    table = {name: architecture for architecture, names in rows for name in names.split()}
    for name in ["eva_giant_patch14_clip_224", "eva_giant_patch14_224", "eva_giant_patch14_336", "eva_giant_patch14_560"]:
        table[name] = replace(table[name], is_eva=True)
    return {name: _with_size(name, facts) for name, facts in table.items()}


def _rotary_rows() -> list[tuple[Architecture, str]]:
    """Return the models with rotary positions: EVA-02, DINOv3 and its kind, PE, RoPE-ViT and timm's own."""
    eva = Architecture(
        pool="gap", rotary=RotaryConfig(base=10_000, coordinates="scaled"), rotary_grid=(16, 16), rotary_channels="rows-first"
    )
    dinov3 = Architecture(pool="gap", norm_eps=1e-5, rotary=RotaryConfig(coordinates="normalised"), rotary_channels="halves")
    pe = Architecture(norm_eps=1e-5, pool="gap", rotary_channels="columns-first")
    pe_with_class = replace(pe, rotary=RotaryConfig(base=10_000, coordinates="scaled", offset=1.0))
    pe_without = replace(pe, rotary=RotaryConfig(base=10_000, coordinates="scaled"))
    core: dict[str, Any] = {"pool": "map", "pool_heads": 8, "pool_prefix": True}
    axial = Architecture(rotary=RotaryConfig(coordinates="index"), rotary_channels="columns-first")
    mixed = Architecture(rotary=RotaryConfig(base=10, coordinates="index", mixed=True), rotary_channels="columns-first")
    return [
        (
            eva,
            """
            eva02_tiny_patch14_224 eva02_tiny_patch14_336 eva02_small_patch14_224 eva02_small_patch14_336
            eva02_base_patch14_224 eva02_base_patch14_448 eva02_large_patch14_224 eva02_large_patch14_448
            vit_medium_patch16_rope_reg1_gap_256 vit_mediumd_patch16_rope_reg1_gap_256 vit_betwixt_patch16_rope_reg4_gap_256
            vit_base_patch16_rope_reg1_gap_256
        """,
        ),
        (
            replace(eva, pool="cls"),
            "eva02_base_patch16_clip_224 eva02_large_patch14_clip_224 eva02_large_patch14_clip_336",
        ),
        (Architecture(norm="branch"), "eva02_enormous_patch14_clip_224"),
        (
            dinov3,
            """
            vit_tiny_patch16_dinov3_qkvb vit_small_patch16_dinov3 vit_small_patch16_dinov3_qkvb vit_small_plus_patch16_dinov3
            vit_small_plus_patch16_dinov3_qkvb vit_base_patch16_dinov3 vit_base_patch16_dinov3_qkvb vit_large_patch16_dinov3
            vit_large_patch16_dinov3_qkvb vit_huge_plus_patch16_dinov3 vit_huge_plus_patch16_dinov3_qkvb vit_7b_patch16_dinov3
        """,
        ),
        (
            replace(dinov3, pool="cls"),
            "vit_small_patch16_lingbot vit_base_patch16_lingbot vit_large_patch16_lingbot vit_giant_patch16_lingbot",
        ),
        (replace(pe_with_class, rotary_grid=(14, 14), **core), "vit_pe_core_base_patch16_224"),
        (
            replace(pe_with_class, rotary_grid=(24, 24), **core),
            "vit_pe_core_tiny_patch16_384 vit_pe_core_small_patch16_384 vit_pe_core_large_patch14_336",
        ),
        (replace(pe_without, rotary_grid=(32, 32), **core), "vit_pe_core_gigantic_patch14_448"),
        (
            replace(pe_with_class, rotary_grid=(32, 32)),
            """
            vit_pe_lang_large_patch14_448 vit_pe_spatial_tiny_patch16_512 vit_pe_spatial_small_patch16_512
            vit_pe_spatial_base_patch16_512 vit_pe_spatial_large_patch14_448
        """,
        ),
        (
            replace(pe_without, rotary_grid=(32, 32)),
            "vit_pe_lang_gigantic_patch14_448 vit_pe_spatial_gigantic_patch14_448",
        ),
        (
            axial,
            """
            vit_small_patch16_rope_224 vit_base_patch16_rope_224 vit_large_patch16_rope_224
            vit_small_patch16_rope_ape_224 vit_base_patch16_rope_ape_224 vit_large_patch16_rope_ape_224
        """,
        ),
        (
            mixed,
            """
            vit_small_patch16_rope_mixed_224 vit_base_patch16_rope_mixed_224 vit_large_patch16_rope_mixed_224
            vit_small_patch16_rope_mixed_ape_224 vit_base_patch16_rope_mixed_ape_224 vit_large_patch16_rope_mixed_ape_224
        """,
        ),
    ]


def _relative_rows() -> list[tuple[Architecture, str]]:
    """Return the models with a bias of the scores by the offset: BEiT, and timm's own."""
    return [
        (
            Architecture(pool="gap"),
            """
            beit_base_patch16_224 beit_base_patch16_384 beit_large_patch16_224 beit_large_patch16_384 beit_large_patch16_512
            beitv2_base_patch16_224 beitv2_large_patch16_224
            vit_relpos_base_patch16_224 vit_relpos_base_patch16_clsgap_224 vit_relpos_base_patch16_plus_240
            vit_relpos_medium_patch16_224 vit_relpos_small_patch16_224 vit_srelpos_medium_patch16_224
            vit_srelpos_small_patch16_224
        """,
        ),
        (Architecture(), "vit_relpos_base_patch16_cls_224 vit_relpos_medium_patch16_cls_224"),
        (
            Architecture(pool="gap", norm="branch"),
            """
            vit_relpos_base_patch16_rpn_224 vit_relpos_base_patch32_plus_rpn_256 vit_relpos_medium_patch16_rpn_224
            vit_relpos_small_patch16_rpn_224
        """,
        ),
    ]


def _naflex_rows() -> list[tuple[Architecture, str]]:
    """Return the models that take images of any size and shape, here of one: their position table is resized to it."""
    naflex = Architecture(resizes_positions=True)
    return [
        (
            replace(naflex, pool="gap"),
            "naflexvit_base_patch16_gap naflexvit_base_patch16_par_gap naflexvit_so150m2_patch16_reg1_gap",
        ),
        (replace(naflex, pool="map"), "naflexvit_base_patch16_map naflexvit_so150m2_patch16_reg1_map"),
        (
            replace(naflex, pool="map", gelu="tanh", position_resize="siglip2"),
            "naflexvit_base_patch16_siglip naflexvit_so400m_patch16_siglip",
        ),
    ]


def _with_size(name: str, facts: Architecture) -> Architecture:
    unusual = [size for pattern, size in UNUSUAL_SIZES.items() if re.search(pattern, name)]
    usual = [SIZES[word] for word in name.split("_") if word in SIZES]
    width, heads = (*unusual, *usual, (None, None))[0]
    return replace(facts, width=facts.width or width, heads=facts.heads or heads)


ARCHITECTURES = _table()
# Projects whose weights timm converted, by name; they decide the preprocessing and the rule that resizes positions.
ORIGINS = {
    r"clip": "CLIP",
    r"tipsv2": "TIPSv2",
    r"dinov3|lingbot": "DINOv3",
    r"^vit_pe_": "PE",
    r"^eva02_|^aimv2_": "CLIP",  # whose mean and standard deviation they share
    r"_rope_(mixed_)?(ape_)?224$": "DeiT III",
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
    r"vit_\w*sapiens2": "grouped-query attention (Sapiens2)",
    r"vit_\w+_(18x2|xp)_|vit_d?pwee": "parallel blocks",
    r"vit_d(wee|little)": "differential attention",
    r"vit_\w+_(resnet26d|resnet50d)": "a ResNet stem with batch norm",
    r"vit_base_mci": "a convolutional stem with batch norm",
    r"naflexvit_\w+_parfac": "a factorised position table",
    r"samvit|vit_\w*sam_": "a neck of convolutions (SAM)",
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
