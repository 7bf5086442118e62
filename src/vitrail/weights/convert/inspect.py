"""Infer a model's config from the tensors of a checkpoint, and record what had to be assumed."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from torch import Tensor

from vitrail.data.preprocess import Preprocess, clip_preprocess, imagenet_preprocess, vit_preprocess
from vitrail.errors import VitrailError
from vitrail.models.config import Gelu, ModelConfig, Pair, Pool, ViTConfig, format_size
from vitrail.models.variants import SIZES

Origin = Literal["vitrail", "official", "timm", "huggingface", "torchvision", "segmenter"]
Decoder = Path | dict[str, Tensor]  # its file, or its tensors in our names
ReadOrigin = Origin | Literal["open_clip", "perception_encoder", "aimv2", "mmpretrain", "vit_pytorch", "vitdet"]  # not written


@dataclass(frozen=True)
class Overrides:
    """Settings given by the caller that the file does not record."""

    grid: Pair | None = None
    heads: int | None = None
    gelu: Gelu | None = None
    pool: Pool | None = None
    image: Pair | None = None  # size of the wanted model: it decides between grids that fit a position table as it is

    def image_grid(self, stride: Pair) -> Pair | None:
        return None if self.image is None else (self.image[0] // stride[0], self.image[1] // stride[1])


@dataclass(frozen=True)
class ConvertedCheckpoint:
    """The model of a checkpoint file, with our tensor names."""

    origin: ReadOrigin
    config: ModelConfig
    state: dict[str, Tensor]
    unused: list[str]  # tensors of the file that the model does not have
    assumed: list[str] = field(default_factory=list)  # what the file does not record, and how to override it
    preprocess: Preprocess | None = None
    class_names: tuple[str, ...] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)  # training metadata
    decoder: Decoder | None = None  # what its task, which ``metadata`` names, has added to the model
    records_preprocess: bool = False  # as Vitrail's own files do


def count_layers(names: Iterable[str], prefix: str, separator: str = ".") -> int:
    """Count the numbered layers after a prefix."""
    numbers = {name[len(prefix) :].split(separator)[0] for name in names if name.startswith(prefix)}
    return len({number for number in numbers if number.isdecimal()})


def infer_heads(
    width: int, depth: int, mlp: int, overrides: Overrides, assumed: list[str], heads_in_file: int | None = None
) -> int:
    if overrides.heads is not None:
        return overrides.heads
    if heads_in_file is not None:
        return heads_in_file
    published = [size.heads for size in SIZES.values() if (size.width, size.depth, size.mlp) == (width, depth, mlp)]
    guess = published[0] if published else max(1, width // 64)
    reason = "as in the published size" if published else "64 channels per head, the usual"
    assumed.append(f"{guess} heads ({reason}; heads= overrides it)")
    return guess


def infer_gelu(default: Gelu, overrides: Overrides, assumed: list[str]) -> Gelu:
    if overrides.gelu is not None:
        return overrides.gelu
    assumed.append(f"GELU in its {default} form (the origin's; gelu= overrides it)")
    return default


def infer_grid(
    rows: int,
    prefix_counts: Iterable[int],
    overrides: Overrides,
    assumed: list[str],
    recorded: Pair | None = None,
    stride: Pair = (1, 1),
) -> tuple[Pair, int]:
    """Infer the grid of a position table from its number of rows, and how many of them belong to prefix tokens.

    ``prefix_counts`` are the possible numbers of those. The caller's or config.json's grid comes first, then that of the wanted
    image size if it fits the table as it is, else a square one.
    """
    prefix_options = list(prefix_counts)
    grid = overrides.grid or recorded
    if grid is not None:
        for prefix in prefix_options:
            if math.prod(grid) == rows - prefix:
                return grid, prefix
        raise VitrailError(
            f"a grid of {format_size(grid)} does not fit a position table of {rows} rows; "
            f"grids that do: {_grids_with(rows - prefix_options[0])}"
        )
    wanted = overrides.image_grid(stride)
    for prefix in prefix_options:
        if wanted is not None and math.prod(wanted) == rows - prefix:
            return wanted, prefix
    for prefix in prefix_options:
        side = math.isqrt(max(0, rows - prefix))
        if side and side * side == rows - prefix:
            assumed.append(f"a square grid of {side}x{side} (grid= overrides it)")
            return (side, side), prefix
    raise VitrailError(
        f"the position table has {rows} rows, which is not a square grid; give it, for example "
        f"grid={_grids_with(rows - prefix_options[0]).split(' or ')[0]}"
    )


def assume_preprocess(origin: str, config: ModelConfig, assumed: list[str]) -> Preprocess:
    """Return the preprocessing that an origin's models are evaluated with, and record it as assumed."""
    size = config.image
    match origin:
        case "CLIP" | "EVA-02":
            preprocess = clip_preprocess(size)
        case "DeiT" | "RoPE-ViT" | "DINO" | "MAE" | "DINOv2" | "MSN" | "I-JEPA":
            preprocess = imagenet_preprocess(size)
        case "MoCo-v3":
            preprocess = replace(imagenet_preprocess(size), interpolation="bilinear")
        case "DeiT III" | "DINOv3":
            preprocess = replace(imagenet_preprocess(size), crop_pct=1.0)
        case "SigLIP" | "PE":
            preprocess = Preprocess(size, fit="stretch")
        case "TIPSv2":
            preprocess = Preprocess(size, mean=(0.0,) * 3, std=(1.0,) * 3)
        case _:
            preprocess = vit_preprocess(size)
    assumed.append(
        f"images resized to {preprocess.resize_to[0]}{'' if preprocess.resize_to == size else ', cropped'}, with mean "
        f"{preprocess.mean[0]} and std {preprocess.std[0]} in the first channel (as for {origin}; model.preprocess overrides)"
    )
    return preprocess.with_channels(config.channels)


def trim_to_patches(preprocess: Preprocess, config: ModelConfig, size: Pair | None, assumed: list[str]) -> Preprocess:
    """Keep preprocessing to an image size that the patches do not divide: the last rows and columns are cut off."""
    if size is None or not isinstance(config, ViTConfig) or size == config.image:
        return preprocess
    trim = (size[0] - config.image[0], size[1] - config.image[1])
    if not all(0 <= rest < step for rest, step in zip(trim, config.patch_stride, strict=True)):
        return preprocess  # the weights were resized after the preprocessing was recorded
    assumed.append(
        f"images of {format_size(size)} without their last {format_size(trim)} rows and columns, which no patch of "
        f"{format_size(config.patch_stride)} covers"
    )
    return replace(preprocess, trim=trim)


def _grids_with(cells: int) -> str:
    sides = [height for height in range(1, math.isqrt(max(0, cells)) + 1) if cells % height == 0]
    pairs = [
        pair for height in reversed(sides) for pair in dict.fromkeys([(height, cells // height), (cells // height, height)])
    ]
    return " or ".join(format_size(pair) for pair in pairs[:4]) or "none"


def require_shape(file: Mapping[str, Tensor], name: str, axes: int) -> tuple[int, ...]:
    """Return the shape of a tensor; refuse a file without it or with another number of axes."""
    if name not in file:
        raise VitrailError(f"the file lacks {name}")
    if file[name].ndim != axes:
        raise VitrailError(f"{name} must have {axes} axes, got {list(file[name].shape)}")
    return tuple(file[name].shape)


def require_plain_vit(config: ModelConfig, format: Origin) -> ViTConfig:
    """Reject what neither Hugging Face's nor torchvision's ViT has."""
    if not isinstance(config, ViTConfig) or config.stem:
        unsupported("a ResNet or a hybrid", format, "use format='timm'")
    refuse_published_features(config, format, "use format='timm' and name a folder")
    is_plain = config.pool == "cls" and not config.registers and config.norm == "pre" and config.final_norm == "tokens"
    if config.embed_norm or not config.patch_bias or config.gelu == "quick":
        unsupported("CLIP's norm before the blocks, patches without a bias or QuickGELU", format, "use format='vitrail'")
    if config.mlp_kind != "gelu":
        unsupported("a gated MLP", format, "use format='timm'")
    if not is_plain or config.position_prefix == "none":
        unsupported("anything but a class token with a position and pre-norm", format, "use format='timm'")
    if not config.classes:
        unsupported("a model without a classifier", format, "use format='timm'")
    return config


def refuse_published_features(config: ViTConfig, format: str, instead: str) -> None:
    """Reject what published models have and no file of tensors shows, so that only a folder of timm's can hold it."""
    features = {
        "rotary positions": config.rotary is not None,
        "a relative position bias": config.relative_bias is not None,
        "attention in windows": config.window is not None,
        "relative positions along the axes": config.relative_axes,
        "RMSNorm": config.norm_kind != "layer",
        "a norm of the patches": config.patch_norm != "none",
        "a norm inside attention": config.attention_norm,
        "a norm inside the MLP": config.mlp_norm,
        "keys without a bias": not config.key_bias,
        "projections without biases": not config.out_bias,
        "attention pooling with heads of its own": config.pool_heads not in (None, config.heads),
        "attention pooling with an MLP of its own": config.pool_mlp not in (None, config.mlp),
        "attention pooling over the prefix tokens": config.pool_prefix and config.prefix_tokens > 0,
        "a head on the class token and a register": config.pool == "cls+register",
    }
    present = next((feature for feature, is_present in features.items() if is_present), None)
    if present is not None:
        unsupported(present, format, instead)


def unsupported(reason: str, format: str, instead: str) -> NoReturn:
    vitrail_hint = (
        "" if "vitrail" in instead or ".safetensors" in instead else ", or format='vitrail', which can hold everything"
    )
    raise VitrailError(f"the {format} format cannot hold {reason}; {instead}{vitrail_hint}")
