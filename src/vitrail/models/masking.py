"""How a model learns from patches that it does not see, complete and checked. Needs no torch."""

from dataclasses import dataclass
from math import ceil, lcm, prod
from typing import Literal

from vitrail.config import check
from vitrail.errors import VitrailError
from vitrail.models.settings import ModelConfig, Pair, ViTConfig, times

LEVELS = 8  # of a channel: three bits
LARGEST = 2**13  # far beyond any decoder
Method = Literal["masked-patch", "mae", "simmim"]
Target = Literal["colour", "shrunken", "pixels"]


@dataclass(frozen=True)
class Masking:
    """masked-patch (Dosovitskiy et al. 2021, B.1.2), mae (He et al. 2022) or simmim (Xie et al. 2022)."""

    method: Method
    share: float = 0.5  # of the patches
    target: Target = "pixels"  # colour: a patch's mean, shrunken: those of 4 x 4 parts of it, each as one of 8 levels a channel
    normalise: bool = False  # pixels are told apart from their patch's mean and deviation
    unit: int = 1  # simmim: squares of so many patches a side are masked as one
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
        step = lcm(4, self.decoder_heads)  # four for its positions
        if self.decoder_width % step:
            raise VitrailError(
                f"masking.decoder_width must be a multiple of 4 and of masking.decoder_heads, got {self.decoder_width} and "
                f"{self.decoder_heads}; try masking.decoder_width={max(round(self.decoder_width / step), 1) * step}"
            )

    @property
    def cells(self) -> int:
        """Along a side of a patch, each with a colour of its own."""
        return 4 if self.target == "shrunken" else 1

    def numbers(self, config: ViTConfig) -> int:
        """That are predicted of a patch."""
        if self.target == "pixels":
            return config.channels * prod(config.patch)
        return int(self.cells**2 * LEVELS**config.channels)

    def hidden(self, grid: Pair) -> int:
        """Patches of a picture that are to be predicted, the same number in each."""
        patches = prod(grid)
        if self.method == "mae":
            return patches - int(patches * (1 - self.share))
        if self.method == "simmim":
            return ceil(patches // self.unit**2 * self.share) * self.unit**2
        return round(patches * self.share)

    def slots(self, grid: Pair) -> int:
        """Random numbers that a picture takes."""
        return prod(grid) * {"masked-patch": 3, "mae": 1, "simmim": 1}[self.method] // self.unit**2


def check_masking(masking: Masking, model: ModelConfig) -> ViTConfig:
    """Refuse what would not hide, or not learn, anything."""
    method = masking.method
    if not isinstance(model, ViTConfig):
        raise VitrailError(f"{method} hides patches, and a ResNet has none; try --model S/16")
    if model.stem is not None:
        raise VitrailError(f"{method} hides patches, and a hybrid's see each other in its stem; try --model S/16")
    if model.classes:
        raise VitrailError(f"{method} learns without classes, got model.classes={model.classes}; try model.classes=0")
    idle = {"pool": ("map", "gap"), "norm_at": ("pooled", "tokens"), "head": ("mlp", "linear")}
    for name, (value, works) in idle.items():
        if getattr(model, name) == value:
            raise VitrailError(f"model.{name}={value} has weights that {method} would never move; try model.{name}={works}")
    if masking.normalise and masking.numbers(model) < 2:
        raise VitrailError("masking.normalise takes patches of two numbers at least; try masking.normalise=false")
    if method == "mae" and model.position == "relative":
        raise VitrailError("mae leaves patches out, and relative positions count all of them; try model.position=rotary")
    if masking.target != "pixels" and model.channels > 3:
        raise VitrailError(f"masking.target={masking.target} knows up to 3 channels, got {model.channels}; try pixels")
    check_unit(masking, model.grid)
    if not 0 < masking.hidden(model.grid) < model.patches:
        raise VitrailError(
            f"masking.share={masking.share:g} hides {masking.hidden(model.grid)} of {model.patches} patches; "
            "some have to be hidden and some seen: try masking.share=0.5 or smaller patches"
        )
    return model


def check_unit(masking: Masking, grid: Pair) -> None:
    if any(side % masking.unit for side in grid):
        most = max(unit for unit in range(1, masking.unit + 1) if not any(side % unit for side in grid))
        raise VitrailError(f"masking.unit must divide the {times(grid)} patches, got {masking.unit}; try masking.unit={most}")
