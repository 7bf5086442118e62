"""Settings of masked pre-training, complete and checked. Torch-free."""

from dataclasses import dataclass
from math import ceil, lcm, prod
from typing import Literal

from vitrail.config import validate
from vitrail.errors import VitrailError
from vitrail.models.config import ModelConfig, Pair, ViTConfig, format_size

COLOUR_LEVELS = 8  # per channel: three bits
MAX_DECODER_SIZE = 2**13  # far beyond any decoder
MaskingMethod = Literal["masked-patch", "mae", "simmim"]
MaskingTarget = Literal["mean-colour", "downsampled", "pixels"]


@dataclass(frozen=True)
class Masking:
    """Masked pre-training: masked-patch (Dosovitskiy et al. 2021, B.1.2), mae (He et al. 2022) or simmim (Xie et al. 2022)."""

    method: MaskingMethod
    mask_ratio: float = 0.5  # fraction of the patches that is masked
    target: MaskingTarget = (
        "pixels"  # mean-colour: a patch's mean, downsampled: those of its 4 x 4 cells, with 8 levels per channel
    )
    norm_pix_target: bool = False  # normalise the target pixels by mean and standard deviation of their patch
    mask_unit: int = 1  # simmim: side in patches of the squares that are masked as one
    decoder_width: int = 512  # mae
    decoder_depth: int = 8
    decoder_heads: int = 16

    def __post_init__(self) -> None:
        validate(self)
        if not 0 < self.mask_ratio < 1:
            raise VitrailError(
                f"masking.mask_ratio must be above 0 and below 1, got {self.mask_ratio:g}; try masking.mask_ratio=0.5"
            )
        if min(self.mask_unit, self.decoder_width, self.decoder_depth, self.decoder_heads) < 1:
            raise VitrailError("masking.mask_unit and masking.decoder_width, _depth and _heads must be at least 1")
        if self.method != "masked-patch" and self.target != "pixels":
            raise VitrailError(f"{self.method} predicts pixels, got masking.target={self.target}; try method=masked-patch")
        if self.norm_pix_target and self.target != "pixels":
            raise VitrailError(
                f"masking.norm_pix_target is for pixels, got masking.target={self.target}; try masking.norm_pix_target=false"
            )
        if self.mask_unit > 1 and self.method != "simmim":
            raise VitrailError(
                f"masking.mask_unit is for simmim, got {self.mask_unit} with {self.method}; try masking.mask_unit=1"
            )
        if max(self.mask_unit, self.decoder_width, self.decoder_depth, self.decoder_heads) > MAX_DECODER_SIZE:
            raise VitrailError(
                f"masking.mask_unit and masking.decoder_width, _depth and _heads must be at most {MAX_DECODER_SIZE:,}"
            )
        step = lcm(4, self.decoder_heads)  # 4 for its sine-cosine positions
        if self.decoder_width % step:
            raise VitrailError(
                f"masking.decoder_width must be a multiple of 4 and of masking.decoder_heads, got {self.decoder_width} and "
                f"{self.decoder_heads}; try masking.decoder_width={max(round(self.decoder_width / step), 1) * step}"
            )

    @property
    def cells_per_side(self) -> int:
        """Cells along a side of a patch, each with a colour to predict."""
        return 4 if self.target == "downsampled" else 1

    def target_dim(self, config: ViTConfig) -> int:
        """Return the number of outputs per patch."""
        if self.target == "pixels":
            return config.channels * prod(config.patch)
        return int(self.cells_per_side**2 * COLOUR_LEVELS**config.channels)

    def num_masked(self, grid: Pair) -> int:
        """Return the number of masked patches, the same in every image."""
        patches = prod(grid)
        if self.method == "mae":
            return patches - int(patches * (1 - self.mask_ratio))
        if self.method == "simmim":
            return ceil(patches // self.mask_unit**2 * self.mask_ratio) * self.mask_unit**2
        return round(patches * self.mask_ratio)

    def num_noise_values(self, grid: Pair) -> int:
        """Return the number of random numbers per image."""
        return prod(grid) * {"masked-patch": 3, "mae": 1, "simmim": 1}[self.method] // self.mask_unit**2


def check_masking(masking: Masking, model: ModelConfig) -> ViTConfig:
    """Reject a combination that would mask or train nothing."""
    method = masking.method
    if not isinstance(model, ViTConfig):
        raise VitrailError(f"{method} masks patches, and a ResNet has none; try model=S/16")
    if model.stem is not None:
        raise VitrailError(f"{method} masks patches, and those of a hybrid overlap in its stem; try model=S/16")
    if model.classes:
        raise VitrailError(f"{method} trains without classes, got model.classes={model.classes}; try model.classes=0")
    unused = {"pool": ("map", "gap"), "final_norm": ("pooled", "tokens"), "head": ("mlp", "linear")}
    for name, (value, works) in unused.items():
        if getattr(model, name) == value:
            raise VitrailError(f"model.{name}={value} has weights that {method} would never train; try model.{name}={works}")
    if masking.norm_pix_target and masking.target_dim(model) < 2:
        raise VitrailError("masking.norm_pix_target needs patches of at least two values; try masking.norm_pix_target=false")
    if method == "mae" and model.position == "relative":
        raise VitrailError("mae removes patches, and relative positions count all of them; try model.position=rotary")
    if method == "mae" and model.needs_whole_grid:
        raise VitrailError(
            "mae removes patches, and windows and relative positions along the axes need all of them; try masking.method=simmim"
        )
    if masking.target != "pixels" and model.channels > 3:
        raise VitrailError(f"masking.target={masking.target} supports up to 3 channels, got {model.channels}; try pixels")
    check_mask_unit(masking, model.grid)
    if not 0 < masking.num_masked(model.grid) < model.patches:
        raise VitrailError(
            f"masking.mask_ratio={masking.mask_ratio:g} masks {masking.num_masked(model.grid)} of {model.patches} patches; "
            "some must be masked and some visible: try masking.mask_ratio=0.5 or smaller patches"
        )
    return model


def check_mask_unit(masking: Masking, grid: Pair) -> None:
    if any(side % masking.mask_unit for side in grid):
        largest = max(unit for unit in range(1, masking.mask_unit + 1) if not any(side % unit for side in grid))
        raise VitrailError(
            f"masking.mask_unit must divide the {format_size(grid)} patches, got {masking.mask_unit}; try "
            f"masking.mask_unit={largest}"
        )
