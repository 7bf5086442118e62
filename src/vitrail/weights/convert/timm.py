"""Convert timm's Vision Transformers, whose names DeiT and DINO share, its hybrids and its BiT ResNets."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.layers.position import sincos2d
from vitrail.models.config import ModelConfig, Pair, PositionResize, ResNetConfig, StemConfig, ViTConfig
from vitrail.weights.convert import inspect
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Overrides, unsupported
from vitrail.weights.convert.tensor_map import TensorMap, affine, copy, import_tensors, permute, position_table
from vitrail.weights.convert.timm_architectures import (
    ORIGINS,
    RESNETS,
    WITHOUT_EFFECT,
    Architecture,
    Pool,
    apply_model_args,
    known_architecture,
)

STEM_PREFIX = "patch_embed.backbone"
RENAMES = [
    (r"^register_tokens$", "reg_token"),
    (r"\.gamma_([12])$", r".ls\1.gamma"),
    (r"\.mlp\.w12\.", ".mlp.fc1."),  # DINOv2's SwiGLU
    (r"(^|\.)mlp\.w3\.", r"\1mlp.fc2."),
]
# Tensors in published files that can be ignored without changing what the encoder computes.
IGNORED = re.compile(r"(decoder|mask_token|head_dist|last_layer|prototypes|head\.(mlp|last_layer)|projection_head|predictor)")
# Tensors of models that compute something else, and the feature that Vitrail does not have.
MISSING_FEATURES = {
    r"^dist_token$": "a distilled DeiT's two heads",
    r"relative_position_bias_table|\.rel_pos\.|rel_pos_bias": "a relative position bias",
    r"(^|\.)(rope|rope_embed)\.|(^|\.)freqs": "rotary positions of this kind",
    r"^blocks\.0\.(attns|ffns|in_proj|mlp_out_proj)\.": "parallel blocks",
    r"^blocks\.0\.attn\.lambda": "differential attention",
    r"^blocks\.0\.attn\.(q_proj|k_proj|norm|inner_attn_ln)\.": "attention of EVA-02's kind",
    r"^blocks\.0\.mlp\.(w1|w2)\.": "a gated MLP with other names than DINOv2's",
    r"^blocks\.0\.mlp\.norm\.": "a norm inside the MLP",
    r"^patch_embed\.backbone\..*running_mean$": "a stem with batch norm",
}


def matches(names: Mapping[str, Tensor]) -> bool:
    return "patch_embed.proj.weight" in names or "stem.conv.weight" in names


def convert_checkpoint(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    if "auto_map" in sidecar:
        raise VitrailError("config.json would execute its own code (auto_map), which is never done")
    assumed: list[str] = []
    pretrained_cfg = sidecar.get("pretrained_cfg", sidecar) if isinstance(sidecar.get("pretrained_cfg", sidecar), dict) else {}
    origin = _origin(file, sidecar)
    tensors = to_timm_names(file)
    config: ModelConfig
    if "stem.conv.weight" in file:
        config = _infer_resnet(file, pretrained_cfg, sidecar)
    else:
        _check_tensors(tensors, sidecar)
        if sidecar.get("architecture") is None:
            _check_bare(file, overrides, origin, has_gated_mlp(tensors))
            if origin == "DeiT III":
                assumed.append("no rotary positions (RoPE-ViT's own files have the same tensors as DeiT III's)")
        args = _model_args(sidecar)
        facts = _facts(tensors, sidecar, args, overrides, origin, assumed)
        size = _recorded_size(pretrained_cfg, args)
        # DINO's own files; DINOv2's models with registers are resized as timm does, and timm's copies of either too
        own_rule = origin == "DINO" or (origin == "DINOv2" and "reg_token" not in tensors)
        rule: PositionResize = "dino" if own_rule and "architecture" not in sidecar else "timm"
        config = infer_vit(tensors, facts, size, overrides, assumed, rule)
        _check_model_args(args, config)
    state, unused = import_tensors(tensor_maps(config), tensors)
    unknown = [name for name in unused if not IGNORED.search(name)]
    if unknown:
        raise VitrailError(f"the file has {', '.join(unknown[:4])}, which Vitrail's Vision Transformers do not have")
    return ConvertedCheckpoint(
        "timm",
        config,
        state,
        unused,
        assumed,
        _preprocess(pretrained_cfg, config, origin, assumed),
        _class_names(sidecar, config.classes),
    )


def tensor_maps(config: ModelConfig) -> list[TensorMap]:
    return _resnet_maps(config) if isinstance(config, ResNetConfig) else _vit_maps(config)


def block_maps(theirs: str, ours: str, bias: bool = True) -> list[TensorMap]:
    maps = [*affine(f"{theirs}.norm1", f"{ours}.norm1"), *affine(f"{theirs}.norm2", f"{ours}.norm2")]
    maps += affine(f"{theirs}.attn.qkv", f"{ours}.attention.qkv", bias) + affine(f"{theirs}.attn.proj", f"{ours}.attention.out")
    return maps + affine(f"{theirs}.mlp.fc1", f"{ours}.mlp.up") + affine(f"{theirs}.mlp.fc2", f"{ours}.mlp.down")


def check_supported(config: ModelConfig) -> None:
    """Refuse a model that the format cannot represent."""
    if isinstance(config, ResNetConfig):
        if (config.standardise, config.standardise_eps, config.norm_eps) != ("variance", 1e-8, 1e-5):
            unsupported("other epsilons than its own", "timm", "use format='vitrail'")
        return
    stem = config.stem
    if stem and (stem.standardise, stem.standardise_eps, stem.norm_eps) != ("variance", 1e-8, 1e-5):
        unsupported("a stem with the official epsilons", "timm", "use format='official'")
    if config.norm_eps != 1e-6:
        unsupported(f"layer norms with epsilon {config.norm_eps} (it assumes 1e-6)", "timm", "use format='huggingface'")
    if config.norm == "post":
        unsupported("post-norm", "timm", "use format='vitrail'")
    if config.pool == "cls+gap":
        unsupported("a head on the class token and the mean", "timm", "use format='vitrail'")
    if config.norm == "branch" or config.final_norm == "none":
        unsupported("norms at the end of the branches or no last norm", "timm", "use format='vitrail'")
    if config.head == "mlp":
        unsupported("the pre-logits layer", "timm", "use format='official' or 'torchvision'")
    if config.prefix_positions not in (0, config.prefix_tokens):
        unsupported("registers without a position and a class token with one", "timm", "use format='vitrail'")


def infer_vit(
    file: Mapping[str, Tensor],
    facts: Architecture,
    size: Pair | None,
    overrides: Overrides,
    assumed: list[str],
    position_resize: PositionResize,
) -> ViTConfig:
    """Infer the config from tensors in timm's names, and from what they do not show; ``size``: the recorded image size."""
    width, channels, patch_height, patch_width = inspect.require_shape(file, "patch_embed.proj.weight", 4)
    depth, mlp = inspect.count_layers(file, "blocks."), inspect.require_shape(file, "blocks.0.mlp.fc2.weight", 2)[1]
    gated = has_gated_mlp(file)
    if facts.width not in (None, width):
        raise VitrailError(f"config.json describes a model {facts.width} wide, but the weights are {width} wide")
    stem = _infer_stem(file)
    class_token = "cls_token" in file
    registers = inspect.require_shape(file, "reg_token", 3)[1] if "reg_token" in file else 0
    prefix = class_token + registers
    stride = (patch_height * (stem.stride if stem else 1), patch_width * (stem.stride if stem else 1))
    rows, prefix_counts = inspect.require_shape(file, "pos_embed", 3)[1], list(dict.fromkeys((prefix, int(class_token), 0)))
    recorded = None if size is None else (size[0] // stride[0], size[1] // stride[1])
    if recorded is not None and math.prod(recorded) not in [rows - count for count in prefix_counts]:
        recorded = None  # the weights were resized after their size was recorded
    grid, num_prefix = inspect.infer_grid(rows, prefix_counts, overrides, assumed, recorded, stride)
    norm = file.get("blocks.0.attn.q_norm.weight")
    heads_by_norm = None if norm is None else width // norm.shape[0]
    hidden = file["pre_logits.fc.weight"].shape[0] if "pre_logits.fc.weight" in file else None
    return ViTConfig(
        width=width,
        depth=depth,
        mlp=mlp,
        heads=facts.heads or inspect.infer_heads(width, depth, mlp, overrides, assumed, heads_by_norm),
        patch=(patch_height, patch_width),
        image=(grid[0] * stride[0], grid[1] * stride[1]),
        channels=file[f"{_stem_root(stem)}.conv.weight"].shape[1] if stem else channels,
        classes=file["head.weight"].shape[0] if "head.weight" in file else 0,
        stem=stem,
        position_prefix="none" if not num_prefix else "all" if num_prefix == prefix and registers else "cls",
        position_resize=position_resize,
        pool=facts.pool,
        class_token=class_token if class_token != (facts.pool in ("cls", "cls+gap")) else None,
        registers=registers,
        head="mlp" if hidden else "linear",
        head_hidden=hidden if hidden != width else None,
        norm=facts.norm,
        final_norm="pooled" if "fc_norm.weight" in file else "tokens" if "norm.weight" in file else "none",
        norm_eps=facts.norm_eps,
        gelu=facts.gelu,
        qkv_bias="blocks.0.attn.qkv.bias" in file,
        qk_norm=norm is not None,
        layer_scale=1e-5 if "blocks.0.ls1.gamma" in file else None,
        patch_bias="patch_embed.proj.bias" in file,
        embed_norm="norm_pre.weight" in file,
        mlp_kind="swiglu" if gated else "gelu",
    )


def has_gated_mlp(file: Mapping[str, Tensor]) -> bool:
    """Return whether the first layer of the MLPs has twice as many outputs as the second has inputs: a gate and a value."""
    up, down = (inspect.require_shape(file, f"blocks.0.mlp.{layer}.weight", 2) for layer in ("fc1", "fc2"))
    return up[0] == 2 * down[1]


def pack_gates(tensors: dict[str, Tensor]) -> None:
    """Join gate and value of SwiGLUs that hold them apart, as timm's packed one does."""
    for name in [name for name in tensors if ".mlp.fc1_g." in name]:
        value = name.replace(".fc1_g.", ".fc1_x.")
        if value in tensors:
            tensors[name.replace(".fc1_g.", ".fc1.")] = torch.cat([tensors.pop(name), tensors.pop(value)])


def _model_args(sidecar: Mapping[str, Any]) -> Mapping[str, Any]:
    args = sidecar.get("model_args")
    if args is not None and not isinstance(args, dict):
        raise VitrailError(f"model_args in config.json must be an object, got {str(args)[:40]!r}")
    return args or {}


def _facts(
    file: Mapping[str, Tensor],
    sidecar: Mapping[str, Any],
    args: Mapping[str, Any],
    overrides: Overrides,
    origin: str,
    assumed: list[str],
) -> Architecture:
    """Return what the tensors do not show: by the caller, ``model_args``, the architecture's name, or assumed."""
    known, gated = sidecar.get("architecture") is not None, has_gated_mlp(file)
    facts = known_architecture(sidecar["architecture"]) if known else Architecture()
    if not known:
        moco = origin == "MoCo-v3" and file["cls_token"].shape[-1] == 384
        facts = replace(
            facts,
            heads=12 if moco else None,
            norm_eps=1e-5 if "norm_pre.weight" in file else 1e-6,
            pool=_infer_pool(file, sidecar, args, overrides, assumed),
            gelu=facts.gelu if gated or args.get("act_layer") else inspect.infer_gelu("exact", overrides, assumed),
        )
        if moco:
            assumed.append("12 heads (MoCo-v3's small model; heads= overrides it)")
    elif sidecar.get("global_pool"):
        facts = apply_model_args(facts, {"global_pool": sidecar["global_pool"]})
    facts = apply_model_args(facts, {**args, "act_layer": None} if gated else args)
    _check_gate(facts, gated, args.get("act_layer"), assumed)
    if "attn_pool.latent" in file:
        facts = replace(facts, pool="map")
    elif facts.pool == "map":
        raise VitrailError("config.json says global_pool='map', but the file lacks attn_pool.latent")
    return replace(
        facts,
        heads=overrides.heads or facts.heads,
        gelu=overrides.gelu or facts.gelu,
        pool=overrides.pool or facts.pool,
    )


def _check_gate(facts: Architecture, gated: bool, activation: Any, assumed: list[str]) -> None:
    """Refuse a gated MLP that is not a SwiGLU, and a plain one where the architecture has a SwiGLU."""
    if facts.gated and not gated:
        raise VitrailError("config.json describes a model with gated MLPs, but those of the weights have no gate")
    if gated and activation not in (None, "silu"):
        raise VitrailError(
            f"act_layer in config.json must be silu with a gated MLP, got {str(activation)[:40]!r}; a gate with another "
            "activation is one that Vitrail's Vision Transformers do not have"
        )
    if gated and not facts.gated:
        assumed.append("SwiGLU (the gated MLP of published models: SiLU of the first half of fc1)")


def _check_tensors(file: Mapping[str, Tensor], sidecar: Mapping[str, Any]) -> None:
    """Refuse models with timm's tensor names that compute something else, by the feature that is missing."""
    if sidecar.get("architecture") is not None:
        known_architecture(sidecar["architecture"])
    for pattern, feature in MISSING_FEATURES.items():
        if any(re.search(pattern, name) for name in file):
            raise VitrailError(f"the file has {feature}, which Vitrail's Vision Transformers do not have")
    up, down = file.get("blocks.0.mlp.fc1.weight"), file.get("blocks.0.mlp.fc2.weight")
    if up is None or down is None:
        raise VitrailError("the file has no blocks.0.mlp.fc1.weight: another kind of MLP, or not a Vision Transformer")
    if "blocks.0.norm1.weight" in file and "blocks.0.norm1.bias" not in file:
        raise VitrailError("the file has norms without a bias (RMSNorm), which Vitrail's Vision Transformers do not have")
    if "pos_embed" not in file:
        raise VitrailError(
            "the file has no position table pos_embed: its positions are rotary or relative, of a kind that is not supported"
        )


def _check_bare(file: Mapping[str, Tensor], overrides: Overrides, origin: str, gated: bool) -> None:
    """Refuse files without an architecture whose tensors several architectures have that compute different things."""
    advice = "put a config.json with its timm architecture next to it"
    if origin != "DeiT III" and "blocks.0.gamma_1" in file:
        raise VitrailError(
            f"the file names its layer scales as RoPE-ViT does, which may have rotary positions without a tensor; {advice}"
        )
    if gated and "blocks.0.ls1.gamma" not in file:
        raise VitrailError(
            "the file has a gated MLP without layer scale, as EVA-02 has, which has rotary positions without a tensor; "
            f"{advice}"
        )
    if "norm_pre.weight" in file and ("norm.weight" not in file or "attn_pool.latent" in file):
        raise VitrailError(
            "the file has a norm before the blocks without CLIP's pooling, as PE has, which has rotary positions without a "
            f"tensor; {advice}"
        )
    if "blocks.0.attn.qkv.weight" in file and not any(
        f"blocks.0.attn.{part}" in file for part in ("qkv.bias", "q_norm.weight")
    ):
        raise VitrailError(
            f"the file has no bias of q, k and v, and does not show if its norms precede or end the branches; {advice}"
        )
    if origin == "CLIP" and overrides.gelu is None:
        raise VitrailError(
            "the file is a CLIP tower and does not show its GELU; give gelu='quick' (OpenAI, DFN) or gelu='exact' (LAION)"
        )
    if {"attn_pool.latent", "reg_token"} <= set(file) and overrides.pool is None:
        raise VitrailError(f"the file does not show if its attention pooling reads the registers; {advice}, or give pool='map'")


def _check_model_args(args: Mapping[str, Any], config: ViTConfig) -> None:
    """Refuse weights that are not those of the arguments that config.json records."""
    shown = {
        "patch_size": config.patch,
        "in_chans": config.channels,
        "num_classes": config.classes,
        "depth": config.depth,
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "class_token": config.has_class_token,
        "reg_tokens": config.registers,
        "pre_norm": config.embed_norm,
        "no_embed_class": config.prefix_positions == 0 if config.prefix_tokens else None,
        "fc_norm": config.final_norm == "pooled" if config.final_norm != "none" else None,
        "final_norm": config.final_norm != "none",
    }
    for name, value in shown.items():
        recorded = args.get(name)
        if isinstance(value, tuple) and isinstance(recorded, int | list):
            recorded = (recorded, recorded) if isinstance(recorded, int) else tuple(recorded)
        if recorded is not None and value is not None and recorded != value:
            raise VitrailError(f"config.json says {name}={str(args[name])[:40]}, but the weights have {name}={value}")
    ratio = args.get("mlp_ratio")
    widths = {config.mlp, config.mlp_outputs}  # timm's packed SwiGLU counts the gate, its split one does not
    if ratio is not None and (
        not isinstance(ratio, int | float) or all(abs(config.width * ratio - width) >= 1 for width in widths)
    ):
        raise VitrailError(f"config.json says mlp_ratio={str(ratio)[:40]}, but the weights have {config.mlp}/{config.width}")


def _recorded_size(pretrained_cfg: Mapping[str, Any], args: Mapping[str, Any]) -> Pair | None:
    """Return the image size that config.json records: of the model, else of its preprocessing."""
    size = args.get("img_size")
    if size is None:
        size = pretrained_cfg.get("input_size")
        size = size[1:] if isinstance(size, list) and len(size) == 3 else None
    sides = [size, size] if isinstance(size, int) else size
    if not isinstance(sides, list) or len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        return None
    return sides[0], sides[1]


def _vit_maps(c: ViTConfig) -> list[TensorMap]:
    maps = [*affine("patch_embed.proj", "embed.project", c.patch_bias), position_table("pos_embed", c)]
    if c.stem:
        maps += _stem_maps(c.stem)
    if c.has_class_token:
        maps.append(permute("cls_token", "cls", "1 1 d -> d"))
    if c.registers:
        maps.append(permute("reg_token", "registers", "1 r d -> r d"))
    for layer in range(c.depth):
        b = f"blocks.{layer}"
        maps += block_maps(b, b, c.qkv_bias)
        if c.qk_norm:
            maps += affine(f"{b}.attn.q_norm", f"{b}.attention.norm_q") + affine(f"{b}.attn.k_norm", f"{b}.attention.norm_k")
        if c.layer_scale is not None:
            maps += [copy(f"{b}.ls{part}.gamma", f"{b}.scale{part}.scale") for part in (1, 2)]
    if c.embed_norm:
        maps += affine("norm_pre", "embed_norm")
    if c.final_norm != "none":
        maps += affine("fc_norm", "pooled_norm") if c.final_norm == "pooled" else affine("norm", "norm")
    if c.pool == "map":
        maps.append(permute("attn_pool.latent", "pool.probe", "1 1 d -> d"))
        for theirs, ours in {
            "q": "q",
            "kv": "kv",
            "proj": "out",
            "norm": "norm",
            "mlp.fc1": "mlp.up",
            "mlp.fc2": "mlp.down",
        }.items():
            maps += affine(f"attn_pool.{theirs}", f"pool.{ours}")
    if c.head == "mlp":
        maps += affine("pre_logits.fc", "head.0")
    return maps + (affine("head", "head.2" if c.head == "mlp" else "head") if c.classes else [])


def to_timm_names(file: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Rename DINOv2's, DeiT III's and EVA's tensors to those of timm's plain model."""
    renamed = {_timm_name(name): tensor for name, tensor in file.items()}
    if len(renamed) < len(file):
        return file
    pack_gates(renamed)
    for name in [name for name in renamed if name.endswith(".attn.q_bias")]:
        block = name.removesuffix("q_bias")
        if f"{block}v_bias" in renamed:  # keys without a bias: a zero one
            q, v = renamed.pop(name), renamed.pop(f"{block}v_bias")
            renamed[f"{block}qkv.bias"] = torch.cat([q, torch.zeros_like(q), v])
    return renamed


def _timm_name(name: str) -> str:
    for theirs, timms in RENAMES:
        name = re.sub(theirs, timms, name)
    return name


def _origin(file: Mapping[str, Tensor], sidecar: Mapping[str, Any]) -> str:
    """Return the project the weights come from, by its architecture's name or by what only its files have."""
    architecture = sidecar.get("architecture")
    if isinstance(architecture, str):
        found = [origin for pattern, origin in ORIGINS.items() if re.search(pattern, architecture)]
        return found[0] if found else "timm"
    if "norm_pre.weight" in file:
        return "CLIP"
    if "mask_token" in file and "blocks.0.ls1.gamma" in file:
        return "DINOv2"
    if _is_moco(file):
        return "MoCo-v3"
    wrapper = sidecar.get("wrapper")
    if wrapper in ("teacher", "student"):
        return "DINO"
    if wrapper == "model":
        return "DeiT III" if any(name.endswith(".gamma_1") for name in file) else "DeiT"
    return "timm"


def _is_moco(file: Mapping[str, Tensor]) -> bool:
    """Return whether the position table is MoCo-v3's fixed one, with a row of zeros for the class token."""
    table = file.get("pos_embed")
    if table is None or table.ndim != 3 or table.shape[2] % 4 or not table.is_floating_point():
        return False
    side = math.isqrt(max(0, table.shape[1] - 1))
    if not side or side * side != table.shape[1] - 1 or side > 256 or table[0, 0].any():
        return False
    return torch.allclose(table[0, 1:].float(), sincos2d((side, side), table.shape[2], "moco").flatten(0, 1), atol=1e-3)


def _infer_pool(
    file: Mapping[str, Tensor], sidecar: Mapping[str, Any], args: Mapping[str, Any], overrides: Overrides, assumed: list[str]
) -> Pool:
    """Infer the pooling of a file without an architecture."""
    if "attn_pool.latent" in file:
        return "map"
    recorded = args.get("global_pool", sidecar.get("global_pool"))
    if recorded is not None:
        return apply_model_args(Architecture(), {"global_pool": recorded}).pool
    if "cls_token" not in file:
        return "gap"
    pool: Pool = "gap" if "fc_norm.weight" in file else "cls"
    if overrides.pool is None:
        assumed.append(f"the pooling {pool} (the usual one with {'fc_norm' if pool == 'gap' else 'norm'}; pool= overrides it)")
    return pool


def _infer_stem(file: Mapping[str, Tensor]) -> StemConfig | None:
    if f"{STEM_PREFIX}.stem.conv.weight" in file:
        width = file[f"{STEM_PREFIX}.stem.conv.weight"].shape[0]
    elif f"{STEM_PREFIX}.conv.weight" in file:
        width = file[f"{STEM_PREFIX}.conv.weight"].shape[0]
    elif any(name.startswith(STEM_PREFIX) for name in file):
        raise VitrailError(
            "the file has a stem other than the official hybrids', which Vitrail's Vision Transformers do not have"
        )
    else:
        return None
    stages = inspect.count_layers(file, f"{STEM_PREFIX}.stages.")
    depths = tuple(inspect.count_layers(file, f"{STEM_PREFIX}.stages.{stage}.blocks.") for stage in range(stages))
    return StemConfig(depths, width, standardise="variance", standardise_eps=1e-8, norm_eps=1e-5)


def _stem_root(stem: StemConfig) -> str:
    return f"{STEM_PREFIX}.stem" if stem.stages else STEM_PREFIX  # vit_tiny_r_s16_p8 has the stem alone


def _stem_maps(stem: StemConfig) -> list[TensorMap]:
    root = _stem_root(stem)
    maps = [*affine(f"{root}.conv", "stem.conv", bias=False), *affine(f"{root}.norm", "stem.norm")]
    for stage, depth in enumerate(stem.stages):
        for unit in range(depth):
            theirs, ours = f"{STEM_PREFIX}.stages.{stage}.blocks.{unit}", f"stem.stages.{stage}.{unit}"
            maps += _bottleneck_maps(theirs, ours)
            if unit == 0:
                maps += affine(f"{theirs}.downsample.conv", f"{ours}.shortcut.0", bias=False)
                maps += affine(f"{theirs}.downsample.norm", f"{ours}.shortcut.1")
    return maps


def _bottleneck_maps(theirs: str, ours: str) -> list[TensorMap]:
    maps: list[TensorMap] = []
    for part in (1, 2, 3):
        maps += affine(f"{theirs}.conv{part}", f"{ours}.conv{part}", bias=False)
        maps += affine(f"{theirs}.norm{part}", f"{ours}.norm{part}")
    return maps


def _infer_resnet(file: Mapping[str, Tensor], pretrained_cfg: Mapping[str, Any], sidecar: Mapping[str, Any]) -> ResNetConfig:
    architecture = sidecar.get("architecture")
    if architecture is not None and not (isinstance(architecture, str) and RESNETS.fullmatch(architecture.partition(".")[0])):
        raise VitrailError(
            f"architecture in config.json must be a BiT ResNet, got {str(architecture)[:60]!r}; try resnetv2_50x1_bit"
        )
    args = {name: value for name, value in _model_args(sidecar).items() if value is not None}
    unread = [name for name in args if name not in ("num_classes", "in_chans") and name not in WITHOUT_EFFECT]
    if unread:
        raise VitrailError(f"model_args in config.json has {unread[0][:40]}, an argument that Vitrail does not know")
    width, channels, _, _ = inspect.require_shape(file, "stem.conv.weight", 4)
    stages = tuple(
        inspect.count_layers(file, f"stages.{stage}.blocks.") for stage in range(inspect.count_layers(file, "stages."))
    )
    classes = file["head.fc.weight"].shape[0] if "head.fc.weight" in file else 0
    size = _recorded_size(pretrained_cfg, {})
    return ResNetConfig(stages, width, size or (224, 224), channels=channels, classes=classes)


def _resnet_maps(c: ResNetConfig) -> list[TensorMap]:
    maps = [*affine("stem.conv", "conv", bias=False), *affine("norm", "norm")]
    for stage, depth in enumerate(c.stages):
        for unit in range(depth):
            theirs, ours = f"stages.{stage}.blocks.{unit}", f"stages.{stage}.{unit}"
            maps += _bottleneck_maps(theirs, ours)
            if unit == 0:
                maps += affine(f"{theirs}.downsample.conv", f"{ours}.shortcut", bias=False)
    if c.classes:
        maps += [permute("head.fc.weight", "head.weight", "k d 1 1 -> k d"), copy("head.fc.bias", "head.bias")]
    return maps


def _preprocess(pretrained_cfg: Mapping[str, Any], config: ModelConfig, origin: str, assumed: list[str]) -> Preprocess:
    if not {"mean", "std", "interpolation"} <= set(pretrained_cfg):
        return inspect.assume_preprocess(origin, config, assumed)
    if pretrained_cfg.get("crop_mode", "center") not in ("center", "squash"):
        raise VitrailError(f"crop_mode in config.json must be center or squash, got {pretrained_cfg['crop_mode']!r}")
    preprocess = Preprocess(
        config.image,
        crop_pct=float(pretrained_cfg.get("crop_pct", 0.875)),
        squash=pretrained_cfg.get("crop_mode") == "squash",
        interpolation=pretrained_cfg["interpolation"],
        mean=tuple(float(value) for value in pretrained_cfg["mean"]),
        std=tuple(float(value) for value in pretrained_cfg["std"]),
    )
    return inspect.trim_to_patches(preprocess, config, _recorded_size(pretrained_cfg, {}), assumed)


def _class_names(sidecar: Mapping[str, Any], classes: int) -> tuple[str, ...] | None:
    names = sidecar.get("label_names")
    return tuple(map(str, names)) if isinstance(names, list) and len(names) == classes else None
