"""Convert timm's Vision Transformers, whose names DeiT and DINO share, its hybrids and its BiT ResNets."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from vitrail.data.preprocess import Preprocess, imagenet, vit
from vitrail.errors import VitrailError
from vitrail.models.settings import ModelConfig, ResNetConfig, Stem, ViTConfig
from vitrail.weights.convert import detect
from vitrail.weights.convert.detect import Found, Wishes, refuse
from vitrail.weights.convert.link import Link, affine, moved, positions, read, same

STEM = "patch_embed.backbone"
# Tensors in published files that can be ignored without changing what the encoder computes.
HARMLESS = re.compile(r"(decoder|mask_token|head_dist|last_layer|prototypes|head\.(mlp|last_layer)|projection_head)")
# Architectures with a tanh GELU, which only their names reveal.
TANH = re.compile(r"vit_(base_patch32|giantopt_patch16|so400m_patch16)_siglip|vit_large_patch16_siglip.*_512")
POOLS: dict[Any, Literal["cls", "gap", "map"]] = {"token": "cls", "avg": "gap", "map": "map"}


def matches(names: Mapping[str, Tensor]) -> bool:
    return "patch_embed.proj.weight" in names or "stem.conv.weight" in names


def find(file: Mapping[str, Tensor], side: Mapping[str, Any], wishes: Wishes) -> Found:
    assumed: list[str] = []
    known = side.get("pretrained_cfg", side) if isinstance(side.get("pretrained_cfg", side), dict) else {}
    config = _resnet(file) if "stem.conv.weight" in file else _vit(file, known, side, wishes, assumed)
    if isinstance(config, ResNetConfig) and isinstance(known.get("input_size"), list):
        config = ResNetConfig(**{**vars(config), "image": tuple(known["input_size"][1:])})
    state, left = read(links(config), _newer(file))
    strange = [name for name in left if not HARMLESS.search(name)]
    if strange:
        raise VitrailError(f"the file has {', '.join(strange[:4])}, which Vitrail's Vision Transformers do not have")
    return Found("timm", config, state, left, assumed, _preprocess(known, config, side, assumed), _labels(side, config.classes))


def links(config: ModelConfig) -> list[Link]:
    return _resnet_links(config) if isinstance(config, ResNetConfig) else _vit_links(config)


def block(theirs: str, ours: str, bias: bool = True) -> list[Link]:
    made = [*affine(f"{theirs}.norm1", f"{ours}.norm1"), *affine(f"{theirs}.norm2", f"{ours}.norm2")]
    made += affine(f"{theirs}.attn.qkv", f"{ours}.attention.qkv", bias) + affine(f"{theirs}.attn.proj", f"{ours}.attention.out")
    return made + affine(f"{theirs}.mlp.fc1", f"{ours}.mlp.up") + affine(f"{theirs}.mlp.fc2", f"{ours}.mlp.down")


def check(config: ModelConfig) -> None:
    """Refuse a model that the format cannot represent."""
    if isinstance(config, ResNetConfig):
        if (config.standardise, config.standardise_epsilon, config.norm_epsilon) != ("variance", 1e-8, 1e-5):
            refuse("other epsilons than its own", "timm", "use format='vitrail'")
        return
    stem = config.stem
    if stem and (stem.standardise, stem.standardise_epsilon, stem.norm_epsilon) != ("variance", 1e-8, 1e-5):
        refuse("a stem with the official epsilons", "timm", "use format='official'")
    if config.gelu != "exact":
        refuse("a GELU in its tanh form (it assumes the exact one)", "timm", "use format='huggingface' or 'official'")
    if config.epsilon != 1e-6:
        refuse(f"layer norms with epsilon {config.epsilon} (it assumes 1e-6)", "timm", "use format='huggingface'")
    if config.norm == "post":
        refuse("post-norm", "timm", "use format='vitrail'")
    if config.head == "mlp":
        refuse("the pre-logits layer", "timm", "use format='official' or 'torchvision'")
    if config.covered not in (0, config.prefix):
        refuse("registers without a position and a class token with one", "timm", "use format='vitrail'")


def _vit(
    file: Mapping[str, Tensor], known: Mapping[str, Any], side: Mapping[str, Any], wishes: Wishes, assumed: list[str]
) -> ViTConfig:
    file, architecture = _newer(file), str(side.get("architecture", ""))
    _refuse_relatives(file, architecture)
    width, channels, high, wide = detect.shape(file, "patch_embed.proj.weight", 4)
    depth, mlp = detect.count(file, "blocks."), detect.shape(file, "blocks.0.mlp.fc1.weight", 2)[0]
    stem = _stem(file)
    class_token = "cls_token" in file
    registers = detect.shape(file, "reg_token", 3)[1] if "reg_token" in file else 0
    prefix = class_token + registers
    stride = (high * (stem.stride if stem else 1), wide * (stem.stride if stem else 1))
    rows, fronts = detect.shape(file, "pos_embed", 3)[1], list(dict.fromkeys((prefix, int(class_token), 0)))
    grid, covered = detect.grid(rows, fronts, wishes, assumed, _known_grid(known, stride, [rows - front for front in fronts]))
    args: dict[str, Any] = side["model_args"] if isinstance(side.get("model_args"), dict) else {}
    pool = _pool(file, side, args, wishes, assumed)
    hidden = file["pre_logits.fc.weight"].shape[0] if "pre_logits.fc.weight" in file else None
    each = file["blocks.0.attn.q_norm.weight"].shape[0] if "blocks.0.attn.q_norm.weight" in file else None
    told = width // each if each else 16 if architecture.startswith("vit_base_patch16_gap") else None
    tanh: Literal["tanh"] | None = "tanh" if TANH.match(architecture) or args.get("act_layer") == "gelu_tanh" else None
    return ViTConfig(
        width=width,
        depth=depth,
        mlp=mlp,
        heads=detect.heads(width, depth, mlp, wishes, assumed, args.get("num_heads", told)),
        patch=(high, wide),
        image=(grid[0] * stride[0], grid[1] * stride[1]),
        channels=file[f"{_root(stem)}.conv.weight"].shape[1] if stem else channels,
        classes=file["head.weight"].shape[0] if "head.weight" in file else 0,
        stem=stem,
        position_covers="none" if not covered else "all" if covered == prefix and registers else "cls",
        pool=pool,
        class_token=class_token if class_token != (pool == "cls") else None,
        registers=registers,
        head="mlp" if hidden else "linear",
        head_width=hidden if hidden != width else None,
        norm_at="pooled" if "fc_norm.weight" in file else "tokens",
        gelu=wishes.gelu or tanh or detect.gelu("exact", wishes, assumed),
        qkv_bias="blocks.0.attn.qkv.bias" in file,
        qk_norm="blocks.0.attn.q_norm.weight" in file,
        layer_scale=1e-5 if "blocks.0.ls1.gamma" in file else None,
    )


def _refuse_relatives(file: Mapping[str, Tensor], architecture: str) -> None:
    """Refuse models with timm's tensor names that compute something else."""
    if "quickgelu" in architecture:
        raise VitrailError(f"{architecture} uses QuickGELU, which is not supported")
    if "blocks.0.mlp.fc1.weight" not in file:
        raise VitrailError("the file has no blocks.0.mlp.fc1.weight: a gated MLP, or not a Vision Transformer")
    if "dist_token" in file:
        raise VitrailError("this is a distilled DeiT, whose two heads are not supported; try the plain DeiT of its size")


def _known_grid(known: Mapping[str, Any], stride: tuple[int, int], cells: list[int]) -> tuple[int, int] | None:
    """Return the grid of config.json's input size; None if it does not fit the position table."""
    size = known.get("input_size")
    if not isinstance(size, list) or len(size) != 3 or not all(isinstance(side, int) for side in size):
        return None
    grid = size[1] // stride[0], size[2] // stride[1]
    return grid if grid[0] * grid[1] in cells else None


def _vit_links(c: ViTConfig) -> list[Link]:
    made = [*affine("patch_embed.proj", "embed.project"), positions("pos_embed", c)]
    if c.stem:
        made += _stem_links(c.stem)
    if c.has_class_token:
        made.append(moved("cls_token", "cls", "1 1 d -> d"))
    if c.registers:
        made.append(moved("reg_token", "registers", "1 r d -> r d"))
    for layer in range(c.depth):
        b = f"blocks.{layer}"
        made += block(b, b, c.qkv_bias)
        if c.qk_norm:
            made += affine(f"{b}.attn.q_norm", f"{b}.attention.norm_q") + affine(f"{b}.attn.k_norm", f"{b}.attention.norm_k")
        if c.layer_scale is not None:
            made += [same(f"{b}.ls{part}.gamma", f"{b}.scale{part}.scale") for part in (1, 2)]
    made += affine("fc_norm", "pooled_norm") if c.norm_at == "pooled" else affine("norm", "norm")
    if c.pool == "map":
        made.append(moved("attn_pool.latent", "pool.probe", "1 1 d -> d"))
        for theirs, ours in {
            "q": "q",
            "kv": "kv",
            "proj": "out",
            "norm": "norm",
            "mlp.fc1": "mlp.up",
            "mlp.fc2": "mlp.down",
        }.items():
            made += affine(f"attn_pool.{theirs}", f"pool.{ours}")
    if c.head == "mlp":
        made += affine("pre_logits.fc", "head.0")
    return made + (affine("head", "head.2" if c.head == "mlp" else "head") if c.classes else [])


def _newer(file: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Rename DINOv2's and DeiT-III's tensors to timm's names."""
    names = {"register_tokens": "reg_token"}
    renamed = {names.get(name, re.sub(r"\.gamma_([12])$", r".ls\1.gamma", name)): tensor for name, tensor in file.items()}
    return renamed if len(renamed) == len(file) else file


def _pool(
    file: Mapping[str, Tensor], side: Mapping[str, Any], args: Mapping[str, Any], wishes: Wishes, assumed: list[str]
) -> Literal["cls", "gap", "map"]:
    if "attn_pool.latent" in file:
        return "map"
    said = args.get("global_pool", side.get("global_pool"))
    if said not in (None, "", *POOLS) or args.get("pool_include_prefix"):
        raise VitrailError(f"global_pool in config.json must be one of {', '.join(POOLS)}, without prefix tokens, got {said!r}")
    if wishes.pool or said:
        return wishes.pool or POOLS[said]
    if "cls_token" not in file:
        return "gap"
    pool: Literal["cls", "gap"] = "gap" if "fc_norm.weight" in file else "cls"
    assumed.append(f"the pooling {pool} (the usual one with {'fc_norm' if pool == 'gap' else 'norm'}; pool= overrides it)")
    return pool


def _stem(file: Mapping[str, Tensor]) -> Stem | None:
    if f"{STEM}.stem.conv.weight" in file:
        width = file[f"{STEM}.stem.conv.weight"].shape[0]
    elif f"{STEM}.conv.weight" in file:
        width = file[f"{STEM}.conv.weight"].shape[0]
    elif any(name.startswith(STEM) for name in file):
        raise VitrailError("the file has a backbone other than the official hybrids'")
    else:
        return None
    stages = detect.count(file, f"{STEM}.stages.")
    depths = tuple(detect.count(file, f"{STEM}.stages.{stage}.blocks.") for stage in range(stages))
    return Stem(depths, width, standardise="variance", standardise_epsilon=1e-8, norm_epsilon=1e-5)


def _root(stem: Stem) -> str:
    return f"{STEM}.stem" if stem.stages else STEM  # vit_tiny_r_s16_p8 has the stem alone


def _stem_links(stem: Stem) -> list[Link]:
    root = _root(stem)
    made = [*affine(f"{root}.conv", "stem.conv", bias=False), *affine(f"{root}.norm", "stem.norm")]
    for stage, depth in enumerate(stem.stages):
        for unit in range(depth):
            theirs, ours = f"{STEM}.stages.{stage}.blocks.{unit}", f"stem.stages.{stage}.{unit}"
            for part in (1, 2, 3):
                made += affine(f"{theirs}.conv{part}", f"{ours}.conv{part}", bias=False)
                made += affine(f"{theirs}.norm{part}", f"{ours}.norm{part}")
            if unit == 0:
                made += affine(f"{theirs}.downsample.conv", f"{ours}.shortcut.0", bias=False)
                made += affine(f"{theirs}.downsample.norm", f"{ours}.shortcut.1")
    return made


def _resnet(file: Mapping[str, Tensor]) -> ResNetConfig:
    width, channels, _, _ = detect.shape(file, "stem.conv.weight", 4)
    stages = tuple(detect.count(file, f"stages.{stage}.blocks.") for stage in range(detect.count(file, "stages.")))
    classes = file["head.fc.weight"].shape[0] if "head.fc.weight" in file else 0
    return ResNetConfig(stages, width, channels=channels, classes=classes)


def _resnet_links(c: ResNetConfig) -> list[Link]:
    made = [*affine("stem.conv", "conv", bias=False), *affine("norm", "norm")]
    for stage, depth in enumerate(c.stages):
        for unit in range(depth):
            theirs, ours = f"stages.{stage}.blocks.{unit}", f"stages.{stage}.{unit}"
            for part in (1, 2, 3):
                made += affine(f"{theirs}.conv{part}", f"{ours}.conv{part}", bias=False)
                made += affine(f"{theirs}.norm{part}", f"{ours}.norm{part}")
            if unit == 0:
                made += affine(f"{theirs}.downsample.conv", f"{ours}.shortcut", bias=False)
    if c.classes:
        made += [moved("head.fc.weight", "head.weight", "k d 1 1 -> k d"), same("head.fc.bias", "head.bias")]
    return made


def _preprocess(known: Mapping[str, Any], config: ModelConfig, side: Mapping[str, Any], assumed: list[str]) -> Preprocess:
    if {"mean", "std", "interpolation"} <= set(known):
        if known.get("crop_mode", "center") not in ("center", "squash"):
            raise VitrailError(f"crop_mode in config.json must be center or squash, got {known['crop_mode']!r}")
        return Preprocess(
            config.image,
            crop=float(known.get("crop_pct", 0.875)),
            squash=known.get("crop_mode") == "squash",
            interpolation=known["interpolation"],
            mean=tuple(float(value) for value in known["mean"]),
            std=tuple(float(value) for value in known["std"]),
        )
    trained_elsewhere = side.get("wrapper") in ("model", "teacher", "student")  # DeiT, DINO and MAE use ImageNet's mean and std
    made = imagenet(config.image) if trained_elsewhere else vit(config.image)
    assumed.append(
        f"images resized to {made.resized[0]}, cropped, with mean {made.mean[0]} and std {made.std[0]} of the first channel "
        f"(model.preprocess overrides it)"
    )
    return made.with_channels(config.channels)


def _labels(side: Mapping[str, Any], classes: int) -> tuple[str, ...] | None:
    names = side.get("label_names")
    return tuple(map(str, names)) if isinstance(names, list) and len(names) == classes else None
