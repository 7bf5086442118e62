"""Convert timm's Vision Transformers, whose names DeiT and DINO share, its hybrids and its BiT ResNets."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from vitrail.data.preprocess import Preprocess, imagenet_preprocess, vit_preprocess
from vitrail.errors import VitrailError
from vitrail.models.config import ModelConfig, ResNetConfig, StemConfig, ViTConfig
from vitrail.weights.convert import inspect
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Overrides, unsupported
from vitrail.weights.convert.tensor_map import TensorMap, affine, copy, import_tensors, permute, position_table

STEM_PREFIX = "patch_embed.backbone"
# Tensors in published files that can be ignored without changing what the encoder computes.
IGNORED = re.compile(r"(decoder|mask_token|head_dist|last_layer|prototypes|head\.(mlp|last_layer)|projection_head)")
# Architectures with a tanh GELU, which only their names reveal.
TANH_ARCHITECTURES = re.compile(r"vit_(base_patch32|giantopt_patch16|so400m_patch16)_siglip|vit_large_patch16_siglip.*_512")
POOLS: dict[Any, Literal["cls", "gap", "map"]] = {"token": "cls", "avg": "gap", "map": "map"}


def matches(names: Mapping[str, Tensor]) -> bool:
    return "patch_embed.proj.weight" in names or "stem.conv.weight" in names


def convert_checkpoint(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    assumed: list[str] = []
    pretrained_cfg = sidecar.get("pretrained_cfg", sidecar) if isinstance(sidecar.get("pretrained_cfg", sidecar), dict) else {}
    config = (
        _infer_resnet(file) if "stem.conv.weight" in file else _infer_vit(file, pretrained_cfg, sidecar, overrides, assumed)
    )
    if isinstance(config, ResNetConfig) and isinstance(pretrained_cfg.get("input_size"), list):
        config = ResNetConfig(**{**vars(config), "image": tuple(pretrained_cfg["input_size"][1:])})
    state, unused = import_tensors(tensor_maps(config), _to_timm_names(file))
    unknown = [name for name in unused if not IGNORED.search(name)]
    if unknown:
        raise VitrailError(f"the file has {', '.join(unknown[:4])}, which Vitrail's Vision Transformers do not have")
    return ConvertedCheckpoint(
        "timm",
        config,
        state,
        unused,
        assumed,
        _preprocess(pretrained_cfg, config, sidecar, assumed),
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
    if config.gelu != "exact":
        unsupported("a GELU in its tanh form (it assumes the exact one)", "timm", "use format='huggingface' or 'official'")
    if config.norm_eps != 1e-6:
        unsupported(f"layer norms with epsilon {config.norm_eps} (it assumes 1e-6)", "timm", "use format='huggingface'")
    if config.norm == "post":
        unsupported("post-norm", "timm", "use format='vitrail'")
    if config.head == "mlp":
        unsupported("the pre-logits layer", "timm", "use format='official' or 'torchvision'")
    if config.prefix_positions not in (0, config.prefix_tokens):
        unsupported("registers without a position and a class token with one", "timm", "use format='vitrail'")


def _infer_vit(
    file: Mapping[str, Tensor],
    pretrained_cfg: Mapping[str, Any],
    sidecar: Mapping[str, Any],
    overrides: Overrides,
    assumed: list[str],
) -> ViTConfig:
    file, architecture = _to_timm_names(file), str(sidecar.get("architecture", ""))
    _check_variant(file, architecture)
    width, channels, patch_height, patch_width = inspect.require_shape(file, "patch_embed.proj.weight", 4)
    depth, mlp = inspect.count_layers(file, "blocks."), inspect.require_shape(file, "blocks.0.mlp.fc1.weight", 2)[0]
    stem = _infer_stem(file)
    class_token = "cls_token" in file
    registers = inspect.require_shape(file, "reg_token", 3)[1] if "reg_token" in file else 0
    prefix = class_token + registers
    stride = (patch_height * (stem.stride if stem else 1), patch_width * (stem.stride if stem else 1))
    rows, prefix_counts = inspect.require_shape(file, "pos_embed", 3)[1], list(dict.fromkeys((prefix, int(class_token), 0)))
    grid, num_prefix = inspect.infer_grid(
        rows,
        prefix_counts,
        overrides,
        assumed,
        _recorded_grid(pretrained_cfg, stride, [rows - count for count in prefix_counts]),
    )
    args: dict[str, Any] = sidecar["model_args"] if isinstance(sidecar.get("model_args"), dict) else {}
    pool = _pool(file, sidecar, args, overrides, assumed)
    hidden = file["pre_logits.fc.weight"].shape[0] if "pre_logits.fc.weight" in file else None
    head_width = file["blocks.0.attn.q_norm.weight"].shape[0] if "blocks.0.attn.q_norm.weight" in file else None
    recorded_heads = width // head_width if head_width else 16 if architecture.startswith("vit_base_patch16_gap") else None
    tanh: Literal["tanh"] | None = (
        "tanh" if TANH_ARCHITECTURES.match(architecture) or args.get("act_layer") == "gelu_tanh" else None
    )
    return ViTConfig(
        width=width,
        depth=depth,
        mlp=mlp,
        heads=inspect.infer_heads(width, depth, mlp, overrides, assumed, args.get("num_heads", recorded_heads)),
        patch=(patch_height, patch_width),
        image=(grid[0] * stride[0], grid[1] * stride[1]),
        channels=file[f"{_stem_root(stem)}.conv.weight"].shape[1] if stem else channels,
        classes=file["head.weight"].shape[0] if "head.weight" in file else 0,
        stem=stem,
        position_prefix="none" if not num_prefix else "all" if num_prefix == prefix and registers else "cls",
        pool=pool,
        class_token=class_token if class_token != (pool == "cls") else None,
        registers=registers,
        head="mlp" if hidden else "linear",
        head_hidden=hidden if hidden != width else None,
        final_norm="pooled" if "fc_norm.weight" in file else "tokens",
        gelu=overrides.gelu or tanh or inspect.infer_gelu("exact", overrides, assumed),
        qkv_bias="blocks.0.attn.qkv.bias" in file,
        qk_norm="blocks.0.attn.q_norm.weight" in file,
        layer_scale=1e-5 if "blocks.0.ls1.gamma" in file else None,
    )


def _check_variant(file: Mapping[str, Tensor], architecture: str) -> None:
    """Refuse models with timm's tensor names that compute something else."""
    if "quickgelu" in architecture:
        raise VitrailError(f"{architecture} uses QuickGELU, which is not supported")
    if "blocks.0.mlp.fc1.weight" not in file:
        raise VitrailError("the file has no blocks.0.mlp.fc1.weight: a gated MLP, or not a Vision Transformer")
    if "dist_token" in file:
        raise VitrailError("this is a distilled DeiT, whose two heads are not supported; try the plain DeiT of its size")


def _recorded_grid(
    pretrained_cfg: Mapping[str, Any], stride: tuple[int, int], patch_counts: list[int]
) -> tuple[int, int] | None:
    """Return the grid of config.json's input size; None if it does not fit the position table."""
    size = pretrained_cfg.get("input_size")
    if not isinstance(size, list) or len(size) != 3 or not all(isinstance(side, int) for side in size):
        return None
    grid = size[1] // stride[0], size[2] // stride[1]
    return grid if grid[0] * grid[1] in patch_counts else None


def _vit_maps(c: ViTConfig) -> list[TensorMap]:
    maps = [*affine("patch_embed.proj", "embed.project"), position_table("pos_embed", c)]
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


def _to_timm_names(file: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Rename DINOv2's and DeiT-III's tensors to timm's names."""
    names = {"register_tokens": "reg_token"}
    renamed = {names.get(name, re.sub(r"\.gamma_([12])$", r".ls\1.gamma", name)): tensor for name, tensor in file.items()}
    return renamed if len(renamed) == len(file) else file


def _pool(
    file: Mapping[str, Tensor], sidecar: Mapping[str, Any], args: Mapping[str, Any], overrides: Overrides, assumed: list[str]
) -> Literal["cls", "gap", "map"]:
    if "attn_pool.latent" in file:
        return "map"
    recorded = args.get("global_pool", sidecar.get("global_pool"))
    if recorded not in (None, "", *POOLS) or args.get("pool_include_prefix"):
        raise VitrailError(
            f"global_pool in config.json must be one of {', '.join(POOLS)}, without prefix tokens, got {recorded!r}"
        )
    if overrides.pool or recorded:
        return overrides.pool or POOLS[recorded]
    if "cls_token" not in file:
        return "gap"
    pool: Literal["cls", "gap"] = "gap" if "fc_norm.weight" in file else "cls"
    assumed.append(f"the pooling {pool} (the usual one with {'fc_norm' if pool == 'gap' else 'norm'}; pool= overrides it)")
    return pool


def _infer_stem(file: Mapping[str, Tensor]) -> StemConfig | None:
    if f"{STEM_PREFIX}.stem.conv.weight" in file:
        width = file[f"{STEM_PREFIX}.stem.conv.weight"].shape[0]
    elif f"{STEM_PREFIX}.conv.weight" in file:
        width = file[f"{STEM_PREFIX}.conv.weight"].shape[0]
    elif any(name.startswith(STEM_PREFIX) for name in file):
        raise VitrailError("the file has a backbone other than the official hybrids'")
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


def _infer_resnet(file: Mapping[str, Tensor]) -> ResNetConfig:
    width, channels, _, _ = inspect.require_shape(file, "stem.conv.weight", 4)
    stages = tuple(
        inspect.count_layers(file, f"stages.{stage}.blocks.") for stage in range(inspect.count_layers(file, "stages."))
    )
    classes = file["head.fc.weight"].shape[0] if "head.fc.weight" in file else 0
    return ResNetConfig(stages, width, channels=channels, classes=classes)


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


def _preprocess(
    pretrained_cfg: Mapping[str, Any], config: ModelConfig, sidecar: Mapping[str, Any], assumed: list[str]
) -> Preprocess:
    if {"mean", "std", "interpolation"} <= set(pretrained_cfg):
        if pretrained_cfg.get("crop_mode", "center") not in ("center", "squash"):
            raise VitrailError(f"crop_mode in config.json must be center or squash, got {pretrained_cfg['crop_mode']!r}")
        return Preprocess(
            config.image,
            crop_pct=float(pretrained_cfg.get("crop_pct", 0.875)),
            squash=pretrained_cfg.get("crop_mode") == "squash",
            interpolation=pretrained_cfg["interpolation"],
            mean=tuple(float(value) for value in pretrained_cfg["mean"]),
            std=tuple(float(value) for value in pretrained_cfg["std"]),
        )
    # DeiT, DINO and MAE use ImageNet's mean and std
    trained_elsewhere = sidecar.get("wrapper") in ("model", "teacher", "student")
    preprocess = imagenet_preprocess(config.image) if trained_elsewhere else vit_preprocess(config.image)
    assumed.append(
        f"images resized to {preprocess.resize_to[0]}, cropped, with mean {preprocess.mean[0]} and std "
        f"{preprocess.std[0]} of the first channel (model.preprocess overrides it)"
    )
    return preprocess.with_channels(config.channels)


def _class_names(sidecar: Mapping[str, Any], classes: int) -> tuple[str, ...] | None:
    names = sidecar.get("label_names")
    return tuple(map(str, names)) if isinstance(names, list) and len(names) == classes else None
