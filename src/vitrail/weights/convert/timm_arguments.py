"""Read ``model_args`` of a timm folder's config.json: each is applied, compared with the tensors, or refused. Torch-free."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from vitrail.errors import VitrailError
from vitrail.models.config import ViTConfig
from vitrail.weights.convert.timm_architectures import ACTIVATIONS, POOLS, Architecture

# Arguments that matter only in training or for another image size than the model's own, or say how tensors are stored.
WITHOUT_EFFECT = {
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("weight_init", "fix_init", "init_values", "head_init_scale", "dynamic_img_size", "strict_img_size", "img_size"),
    *("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "checkpoint_path"),
    *("device", "dtype", "scriptable", "exportable", "no_jit"),
    *("rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords"),
    *("attn_type", "qkv_fused", "swiglu_align_to", "rel_pos_dim", "attn_pool_mlp_ratio"),
}
# Arguments that the tensors show as well; they are compared with the model.
SHOWN_BY_TENSORS = {
    *("patch_size", "in_chans", "num_classes", "depth", "mlp_ratio", "qkv_bias", "qk_norm", "class_token"),
    *("reg_tokens", "num_reg_tokens", "pre_norm", "use_pre_transformer_norm", "no_embed_class"),
    *("fc_norm", "use_fc_norm", "final_norm", "use_post_transformer_norm", "proj_bias"),
    *("scale_attn_norm", "scale_attn_inner", "scale_mlp_norm", "scale_mlp", "swiglu_mlp", "use_abs_pos_emb"),
    *("use_rel_pos_bias", "use_shared_rel_pos_bias", "shared_rel_pos"),
}
SYNONYMS = {  # in timm's plain model and in its EVA, or in its model with relative positions
    "reg_tokens": "num_reg_tokens",
    "pre_norm": "use_pre_transformer_norm",
    "fc_norm": "use_fc_norm",
    "scale_attn_norm": "scale_attn_inner",
    "scale_mlp_norm": "scale_mlp",
    "use_shared_rel_pos_bias": "shared_rel_pos",
}
# Arguments that must be at their default, and the feature that another value selects.
ONLY_DEFAULT: dict[str, tuple[tuple[Any, ...], str]] = {
    "norm_layer": ((), "another norm than layer norm"),
    "embed_norm_layer": ((), "a norm in the patch embedding"),
    "pos_embed": (("learn",), "no position table"),
    "dynamic_img_pad": ((False,), "images padded to whole patches"),
    "features_only": ((False,), "a feature pyramid in place of the classifier"),
    "num_kv_heads": ((), "grouped-query attention"),
    "attn_only_layer_scale": ((False,), "layer scale of attention alone"),
    "rel_pos_type": (("mlp", "bias"), "another relative position bias"),
    "block_fn": ((), "another kind of block"),
    "mlp_layer": ((), "another kind of MLP"),
    "attn_layer": ((), "another kind of attention"),
    "embed_layer": ((), "another kind of patch embedding"),
}
ROPE_TYPES = {"cat": "scaled", "mixed": "index", "dinov3": "normalised"}  # and their coordinates
ROTARY_ARGUMENTS = {
    *("use_rot_pos_emb", "rope_type", "rope_temperature", "rope_grid_offset", "rope_grid_indexing", "rope_rotate_half"),
    "ref_feat_shape",
}
KNOWN_ARGUMENTS = {
    *("embed_dim", "num_heads", "act_layer", "global_pool", "use_post_norm", "attn_pool_num_heads", "pool_include_prefix"),
    *ROTARY_ARGUMENTS,
    *WITHOUT_EFFECT,
    *SHOWN_BY_TENSORS,
    *ONLY_DEFAULT,
}


def apply_model_args(facts: Architecture, args: Mapping[str, Any]) -> Architecture:
    """Apply ``model_args`` of config.json, which override the architecture; every key is read or refused."""
    facts = _apply_nulls(facts, [name for name, value in args.items() if value is None])
    rotary = {name: value for name, value in args.items() if name in ROTARY_ARGUMENTS and value is not None}
    if "rope_rotate_half" in args and facts.rotary:
        rotary["rope_rotate_half"] = args["rope_rotate_half"] or False
    if rotary:
        facts = _apply_rotary_args(facts, rotary)
    for name, value in args.items():
        match name:
            case _ if value is None or name in WITHOUT_EFFECT or name in SHOWN_BY_TENSORS or name in ROTARY_ARGUMENTS:
                pass
            case "embed_dim":
                facts = replace(facts, width=_positive(value, name))
            case "num_heads":
                facts = replace(facts, heads=_positive(value, name))
            case "attn_pool_num_heads":
                facts = replace(facts, pool_heads=_positive(value, name))
            case "act_layer":
                facts = replace(facts, gelu=_choice(value, name, ACTIVATIONS, "the activation"))
            case "global_pool":
                distilled = facts.pool == "cls+register" and value == "token"
                pool = facts.pool if distilled else _choice(value, name, POOLS, "the pooling")
                facts = replace(facts, pool=pool, pool_prefix=(facts.is_eva and pool == "map") or facts.pool_prefix)
            case "norm_layer" if value == "layernorm":
                facts = replace(facts, norm_eps=1e-6)  # the default of timm's own, whatever the architecture's
            case "use_post_norm":
                facts = replace(facts, norm="branch" if _boolean(value, name) else "pre")
            case "pool_include_prefix":
                facts = replace(facts, pool_prefix=_boolean(value, name))
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
    if facts.pool_prefix and facts.pool != "map":
        raise VitrailError(
            "model_args in config.json has pool_include_prefix=True: an average over the prefix tokens, which Vitrail's Vision "
            "Transformers do not have"
        )
    return facts


def _apply_nulls(facts: Architecture, names: Iterable[str]) -> Architecture:
    """Apply arguments that are null, by which timm replaces the architecture's own value with the default of its class."""
    for name in names:
        match name:
            case "act_layer":
                facts = replace(facts, gelu="exact")
            case "norm_layer":
                facts = replace(facts, norm_eps=1e-6)
            case "ref_feat_shape" if facts.rotary and facts.rotary.coordinates == "scaled":
                facts = replace(facts, rotary=replace(facts.rotary, coordinates="index"), rotary_grid=None)
            case "attn_pool_num_heads":
                facts = replace(facts, pool_heads=None)
            case "use_rot_pos_emb":
                facts = replace(facts, rotary=None, rotary_grid=None)
            case "use_post_norm":
                facts = replace(facts, norm="pre")
            case "pool_include_prefix":
                facts = replace(facts, pool_prefix=False)
    return facts


def _apply_rotary_args(facts: Architecture, args: Mapping[str, Any]) -> Architecture:
    """Apply the arguments of rotary positions, whose meaning depends on their type."""
    if not _boolean(args.get("use_rot_pos_emb", facts.rotary is not None), "use_rot_pos_emb"):
        return replace(facts, rotary=None, rotary_grid=None)
    if facts.rotary is None:
        raise VitrailError(
            "model_args in config.json has use_rot_pos_emb=True, but its architecture has no rotary positions; try "
            "architecture eva02_base_patch14_224"
        )
    rotary, grid, channels = facts.rotary, facts.rotary_grid, facts.rotary_channels
    if "rope_type" in args:
        coordinates = _choice(args["rope_type"], "rope_type", ROPE_TYPES, "the rotary type")
        rotary = replace(rotary, mixed=args["rope_type"] == "mixed", coordinates=coordinates)
    if "rope_temperature" in args:
        rotary = replace(rotary, base=_number(args["rope_temperature"], "rope_temperature"))
    if "rope_grid_offset" in args:
        rotary = replace(rotary, offset=_number(args["rope_grid_offset"], "rope_grid_offset"))
    in_turns = rotary.coordinates == "normalised"
    if _boolean(args.get("rope_rotate_half", channels == "halves"), "rope_rotate_half") != in_turns:
        raise VitrailError("rope_rotate_half in config.json must be true with rope_type dinov3 and false with the others")
    indexing = args.get("rope_grid_indexing", "xy" if channels == "columns-first" else "ij")
    order = _choice(indexing, "rope_grid_indexing", {"ij": "rows-first", "xy": "columns-first"}, "the order")
    if "ref_feat_shape" in args:
        sides = args["ref_feat_shape"]
        sides = [sides, sides] if isinstance(sides, int) else sides
        if not isinstance(sides, list) or len(sides) != 2:
            raise VitrailError(f"ref_feat_shape in config.json must be two whole numbers, got {str(sides)[:40]!r}")
        grid = (_positive(sides[0], "ref_feat_shape"), _positive(sides[1], "ref_feat_shape"))
    if rotary.mixed:
        rotary = replace(rotary, offset=0.0)  # learned frequencies have neither an offset nor a reference grid
    elif not in_turns:
        rotary = replace(rotary, coordinates="index" if grid is None else "scaled")
    return replace(
        facts,
        rotary=rotary,
        rotary_grid=grid if rotary.coordinates == "scaled" else None,
        rotary_channels="halves" if in_turns else order,
    )


def _boolean(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise VitrailError(f"{name} in config.json must be true or false, got {str(value)[:40]!r}")
    return value


def _number(value: Any, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise VitrailError(f"{name} in config.json must be a number, got {str(value)[:40]!r}")
    return float(value)


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


def check_model_args(args: Mapping[str, Any], config: ViTConfig) -> None:
    """Refuse weights that are not those of the arguments that config.json records."""
    shown = {
        "patch_size": config.patch,
        "in_chans": config.channels,
        "num_classes": config.classes,
        "depth": config.depth,
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "class_token": config.has_class_token,
        "reg_tokens": config.registers - (config.pool == "cls+register"),
        "pre_norm": config.embed_norm,
        "no_embed_class": config.prefix_positions == 0 if config.prefix_tokens else None,
        "fc_norm": config.final_norm == "pooled" if config.final_norm != "none" else None,
        "final_norm": config.final_norm != "none",
        "use_post_transformer_norm": config.final_norm == "tokens",
        "proj_bias": config.out_bias,
        "use_abs_pos_emb": config.position != "none",
        "use_rel_pos_bias": config.relative_bias is not None and not config.relative_bias.shared,
        "use_shared_rel_pos_bias": config.relative_bias is not None and config.relative_bias.shared,
        "swiglu_mlp": config.mlp_kind == "swiglu",
        "scale_attn_norm": config.attention_norm,
        "scale_mlp_norm": config.mlp_norm,
    }
    for name, other_name in SYNONYMS.items():
        shown[other_name] = shown[name]
    for name, value in shown.items():
        recorded = args.get(name)
        if isinstance(value, tuple) and isinstance(recorded, int | list):
            recorded = (recorded, recorded) if isinstance(recorded, int) else tuple(recorded)
        if recorded is not None and value is not None and recorded != value:
            raise VitrailError(f"config.json says {name}={str(args[name])[:40]}, but the weights have {name}={value}")
    ratio = args.get("mlp_ratio")
    widths = {config.mlp, config.mlp_outputs}  # timm's packed SwiGLU counts the gate, its split one does not
    align = args.get("swiglu_align_to") or 1
    if ratio is not None and (
        not isinstance(ratio, int | float) or all(abs(config.width * ratio - width) >= align for width in widths)
    ):
        raise VitrailError(f"config.json says mlp_ratio={str(ratio)[:40]}, but the weights have {config.mlp}/{config.width}")
