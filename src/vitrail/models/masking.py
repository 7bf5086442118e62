"""Settings of masked pre-training, complete and checked. Torch-free."""

from dataclasses import dataclass
from math import ceil, lcm, prod
from typing import Literal

from vitrail.config import check
from vitrail.errors import VitrailError
from vitrail.models.settings import ModelConfig, Pair, ViTConfig, times

LEVELS = 8  # per channel: three bits
LARGEST = 2**13  # far beyond any decoder
Method = Literal["masked-patch", "mae", "simmim"]
Target = Literal["mean-colour", "downsampled", "pixels"]


@dataclass(frozen=True)
class Masking:
    """Masked pre-training: masked-patch (Dosovitskiy et al. 2021, B.1.2), mae (He et al. 2022) or simmim (Xie et al. 2022)."""

    method: Method
    share: float = 0.5  # fraction of the patches that is masked
    target: Target = "pixels"  # mean-colour: a patch's mean, downsampled: those of its 4 x 4 cells, with 8 levels per channel
    normalise: bool = False  # normalise the target pixels by mean and standard deviation of their patch
    unit: int = 1  # simmim: side in patches of the squares that are masked as one
    decoder_width: int = 512  # mae
    decoder_depth: int = 8
    decoder_heads: int = 16

    def __post_init__(self) -> None:
        check(self)
        if not 0 < self.share < 1:
            raise VitrailError(f"masking.share must be above 0 and below 1, got {self.share:g}; try masking.share=0.5")
        if min(self.unit, self.decoder_width, self.decoder_depth, self.decoder_heads) < 1:
            raise VitrailError("masking.unit and masking.decoder_width, _depth and _heads must be at least 1")
        if self.method != "masked-patch" and self.target != "pixels":
            raise VitrailError(f"{self.method} predicts pixels, got masking.target={self.target}; try --method masked-patch")
        if self.normalise and self.target != "pixels":
            raise VitrailError(
                f"masking.normalise is for pixels, got masking.target={self.target}; try masking.normalise=false"
            )
        if self.unit > 1 and self.method != "simmim":
            raise VitrailError(f"masking.unit is for simmim, got {self.unit} with {self.method}; try masking.unit=1")
        if max(self.unit, self.decoder_width, self.decoder_depth, self.decoder_heads) > LARGEST:
            raise VitrailError(f"masking.unit and masking.decoder_width, _depth and _heads must be at most {LARGEST:,}")
        step = lcm(4, self.decoder_heads)  # 4 for its sine-cosine positions
        if self.decoder_width % step:
            raise VitrailError(
                f"masking.decoder_width must be a multiple of 4 and of masking.decoder_heads, got {self.decoder_width} and "
                f"{self.decoder_heads}; try masking.decoder_width={max(round(self.decoder_width / step), 1) * step}"
            )

    @property
    def cells(self) -> int:
        """Cells along a side of a patch, each with a colour to predict."""
        return 4 if self.target == "downsampled" else 1

    def numbers(self, config: ViTConfig) -> int:
        """Return the number of outputs per patch."""
        if self.target == "pixels":
            return config.channels * prod(config.patch)
        return int(self.cells**2 * LEVELS**config.channels)

    def hidden(self, grid: Pair) -> int:
        """Return the number of masked patches, the same in every image."""
        patches = prod(grid)
        if self.method == "mae":
            return patches - int(patches * (1 - self.share))
        if self.method == "simmim":
            return ceil(patches // self.unit**2 * self.share) * self.unit**2
        return round(patches * self.share)

    def slots(self, grid: Pair) -> int:
        """Return the number of random numbers per image."""
        return prod(grid) * {"masked-patch": 3, "mae": 1, "simmim": 1}[self.method] // self.unit**2


def check_masking(masking: Masking, model: ModelConfig) -> ViTConfig:
    """Reject a combination that would mask or train nothing."""
    method = masking.method
    if not isinstance(model, ViTConfig):
        raise VitrailError(f"{method} masks patches, and a ResNet has none; try --model S/16")
    if model.stem is not None:
        raise VitrailError(f"{method} masks patches, and those of a hybrid overlap in its stem; try --model S/16")
    if model.classes:
        raise VitrailError(f"{method} trains without classes, got model.classes={model.classes}; try model.classes=0")
    idle = {"pool": ("map", "gap"), "norm_at": ("pooled", "tokens"), "head": ("mlp", "linear")}
    for name, (value, works) in idle.items():
        if getattr(model, name) == value:
            raise VitrailError(f"model.{name}={value} has weights that {method} would never train; try model.{name}={works}")
    if masking.normalise and masking.numbers(model) < 2:
        raise VitrailError("masking.normalise needs patches of at least two values; try masking.normalise=false")
    if method == "mae" and model.position == "relative":
        raise VitrailError("mae removes patches, and relative positions count all of them; try model.position=rotary")
    if masking.target != "pixels" and model.channels > 3:
        raise VitrailError(f"masking.target={masking.target} supports up to 3 channels, got {model.channels}; try pixels")
    check_unit(masking, model.grid)
    if not 0 < masking.hidden(model.grid) < model.patches:
        raise VitrailError(
            f"masking.share={masking.share:g} masks {masking.hidden(model.grid)} of {model.patches} patches; "
            "some must be masked and some visible: try masking.share=0.5 or smaller patches"
        )
    return model


def check_unit(masking: Masking, grid: Pair) -> None:
    if any(side % masking.unit for side in grid):
        most = max(unit for unit in range(1, masking.unit + 1) if not any(side % unit for side in grid))
        raise VitrailError(f"masking.unit must divide the {times(grid)} patches, got {masking.unit}; try masking.unit={most}")
