"""The convolutional parts of timm's files: the stems of its hybrids, and BiT's ResNets."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.models.config import Pair, ResNetConfig, StemConfig
from vitrail.weights.convert import inspect
from vitrail.weights.convert.tensor_map import TensorMap, affine, copy, permute
from vitrail.weights.convert.timm_architectures import RESNETS
from vitrail.weights.convert.timm_arguments import WITHOUT_EFFECT

STEM_PREFIX = "patch_embed.backbone"


def infer_stem(file: Mapping[str, Tensor]) -> StemConfig | None:
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


def stem_root(stem: StemConfig) -> str:
    return f"{STEM_PREFIX}.stem" if stem.stages else STEM_PREFIX  # vit_tiny_r_s16_p8 has the stem alone


def stem_maps(stem: StemConfig) -> list[TensorMap]:
    root = stem_root(stem)
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


def infer_resnet(file: Mapping[str, Tensor], size: Pair | None, args: Mapping[str, Any], architecture: Any) -> ResNetConfig:
    if architecture is not None and not (isinstance(architecture, str) and RESNETS.fullmatch(architecture.partition(".")[0])):
        raise VitrailError(
            f"architecture in config.json must be a BiT ResNet, got {str(architecture)[:60]!r}; try resnetv2_50x1_bit"
        )
    unread = [
        name
        for name, value in args.items()
        if value is not None and name not in ("num_classes", "in_chans") and name not in WITHOUT_EFFECT
    ]
    if unread:
        raise VitrailError(f"model_args in config.json has {unread[0][:40]}, an argument that Vitrail does not know")
    width, channels, _, _ = inspect.require_shape(file, "stem.conv.weight", 4)
    stages = tuple(
        inspect.count_layers(file, f"stages.{stage}.blocks.") for stage in range(inspect.count_layers(file, "stages."))
    )
    classes = file["head.fc.weight"].shape[0] if "head.fc.weight" in file else 0
    return ResNetConfig(stages, width, size or (224, 224), channels=channels, classes=classes)


def resnet_maps(c: ResNetConfig) -> list[TensorMap]:
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
