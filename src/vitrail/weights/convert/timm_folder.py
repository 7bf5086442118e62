"""Write ``config.json`` of a timm folder, which records what a file of tensors does not, such as the form of the GELU."""

from typing import Any

from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.config import RotaryConfig, ViTConfig
from vitrail.weights.convert.timm import CROP_MODES
from vitrail.weights.convert.timm_architectures import ACTIVATIONS, POOLS
from vitrail.weights.convert.timm_writer import BaseArchitecture

ROPE_TYPES = {"normalised": "dinov3", "scaled": "cat", "centre": "cat", "index": "cat"}


def config_file(
    config: ViTConfig, base: BaseArchitecture, preprocess: Preprocess | None, class_names: tuple[str, ...] | None
) -> dict[str, Any]:
    """Return ``config.json``, from which ``timm.create_model("local-dir:FOLDER", pretrained=True)`` builds the model."""
    if class_names and len(class_names) != config.classes:
        raise VitrailError(f"model.class_names must name all {config.classes} classes, got {len(class_names)} names")
    pool = "token" if config.pool == "cls+register" else next(name for name, ours in POOLS.items() if ours == config.pool)
    labels = {"label_names": list(class_names)} if class_names else {}
    return {
        "architecture": base.name,
        "num_classes": config.classes,
        "num_features": config.width,
        "global_pool": pool,
        **labels,
        "model_args": {**_model_args(config, base), "global_pool": pool},
        "pretrained_cfg": _pretrained_cfg(config, preprocess),
    }


def _model_args(c: ViTConfig, base: BaseArchitecture) -> dict[str, Any]:
    """Return every argument of the class that the architecture may set otherwise."""
    common = {
        "img_size": list(c.image),
        "patch_size": list(c.patch),
        "in_chans": c.channels,
        "num_classes": c.classes,
        "embed_dim": c.width,
        "depth": c.depth,
        "num_heads": c.heads,
        "mlp_ratio": _ratio(c.mlp_outputs if base.mlp == "packed" else c.mlp, c),
        "qkv_bias": c.qkv_bias,
        "init_values": None if c.layer_scale is None else c.layer_scale or 1e-5,  # zero would be no layer scale
    }
    match base.timm_class:
        case "Eva":
            return {**common, **_eva_args(c, base)}
        case "Beit":
            return {**common, **_beit_args(c)}
        case "VisionTransformerRelPos":
            return {**common, **_relpos_args(c)}
    return {**common, **_vit_args(c, base)}


def _ratio(hidden: int, c: ViTConfig) -> float:
    return (hidden + 0.5) / c.width  # timm multiplies and rounds down


def _vit_args(c: ViTConfig, base: BaseArchitecture) -> dict[str, Any]:
    newer = {  # with their defaults: older versions of timm do not know them
        "proj_bias": (c.out_bias, True),
        "scale_attn_norm": (c.attention_norm, False),
        "scale_mlp_norm": (c.mlp_norm, False),
        "final_norm": (c.final_norm != "none", True),
        "pool_include_prefix": (c.pool == "map" and c.pool_prefix, False),
        "dynamic_img_size": (False, False),
    }
    args: dict[str, Any] = {
        "qk_norm": c.qk_norm,
        "class_token": c.has_class_token,
        **({} if base.timm_class == "VisionTransformerDistilled" else {"reg_tokens": c.registers}),  # it has a token of its own
        "no_embed_class": c.prefix_tokens > 0 and c.prefix_positions == 0,
        "fc_norm": c.final_norm == "pooled",
        "pre_norm": c.embed_norm,
        **{name: value for name, (value, default) in newer.items() if value != default or base.norm_kind == "rms"},
    }
    if c.mlp_kind == "gelu":
        args["act_layer"] = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == c.gelu)
    if base.mlp == "split" and c.patch_norm == "none":
        args["embed_norm_layer"] = None
    return args


def _eva_args(c: ViTConfig, base: BaseArchitecture) -> dict[str, Any]:
    pool_args = {"attn_pool_num_heads": c.pool_heads or c.heads, "attn_pool_mlp_ratio": _ratio(c.pool_mlp or c.mlp, c)}
    return {
        "attn_type": "rope" if c.key_bias else "eva",  # of which the second has no bias of the keys
        "qkv_fused": True,
        **({"qk_norm": True} if c.qk_norm else {}),
        "swiglu_mlp": c.mlp_kind == "swiglu",
        "scale_mlp": c.mlp_norm,
        "scale_attn_inner": c.attention_norm,
        "class_token": c.has_class_token,
        "num_reg_tokens": c.registers,
        "no_embed_class": c.prefix_tokens > 0 and (c.prefix_positions == 0 or c.position == "none"),
        "use_abs_pos_emb": c.position != "none",
        "use_post_norm": c.norm == "branch",
        "use_pre_transformer_norm": c.embed_norm,
        "use_post_transformer_norm": None if c.final_norm == "pooled" else c.final_norm == "tokens",  # None: without an fc_norm
        "use_fc_norm": c.final_norm == "pooled",
        "dynamic_img_size": False,
        **(pool_args if c.pool == "map" else {}),
        "use_rot_pos_emb": c.rotation is not None,
        **({} if c.rotation is None else _rotary_args(c, c.rotation)),
    }


def _rotary_args(c: ViTConfig, rotary: RotaryConfig) -> dict[str, Any]:
    """Return the arguments of rotary positions; the centre of a patch on the model's own grid is its index."""
    rescales = rotary.coordinates in ("scaled", "centre")
    return {
        "rope_type": "mixed" if rotary.mixed else ROPE_TYPES[rotary.coordinates],
        "rope_temperature": rotary.base,
        "rope_grid_offset": rotary.offset,
        "rope_grid_indexing": "ij",
        "rope_rotate_half": rotary.coordinates == "normalised",
        "ref_feat_shape": list(c.position_grid or c.grid) if rescales else None,
    }


def _beit_args(c: ViTConfig) -> dict[str, Any]:
    return {
        "swiglu_mlp": c.mlp_kind == "swiglu",
        "scale_mlp": c.mlp_norm,
        "use_abs_pos_emb": c.position != "none",
        "use_rel_pos_bias": c.relative_bias is not None and not c.relative_bias.shared,
        "use_shared_rel_pos_bias": c.relative_bias is not None and c.relative_bias.shared,
    }


def _relpos_args(c: ViTConfig) -> dict[str, Any]:
    assert c.relative_bias is not None
    return {
        "qk_norm": c.qk_norm,
        "class_token": c.has_class_token,
        "fc_norm": c.final_norm == "pooled",
        "rel_pos_type": "mlp" if c.relative_bias.kind == "mlp" else "bias",
        "rel_pos_dim": c.relative_bias.hidden if c.relative_bias.kind == "mlp" else None,
        "shared_rel_pos": c.relative_bias.shared,
    }


def _pretrained_cfg(c: ViTConfig, preprocess: Preprocess | None) -> dict[str, Any]:
    classifier = ["head", "head_dist"] if c.pool == "cls+register" else "head"
    common = {"num_classes": c.classes, "first_conv": "patch_embed.proj", "classifier": classifier, "custom_load": False}
    if preprocess is None:
        return {**common, "input_size": [c.channels, *c.image], "fixed_input_size": True}
    return {
        **common,
        "input_size": [c.channels, *preprocess.crop_size],
        "fixed_input_size": True,
        "interpolation": preprocess.interpolation,
        "crop_pct": preprocess.crop_pct,
        "crop_mode": CROP_MODES[preprocess.fit],
        "mean": list(preprocess.mean_of_255),
        "std": list(preprocess.std_of_255),
    }
