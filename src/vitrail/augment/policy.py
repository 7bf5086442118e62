"""What is drawn for a training picture, as settings. Needs no torch.

``none`` ... ``strong2`` are AugReg's (Steiner et al. 2021, table 8 of its appendix and the authors' code): inception crop and
flip, RandAugment of two layers at a magnitude whose nominal maximum is 10, and Mixup. ``pad`` is the custom with small
pictures (CIFAR): shift by a few pixels and flip. ``textbook`` has everything at once.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from vitrail.config import check
from vitrail.errors import VitrailError, suggestion


@dataclass(frozen=True)
class Policy:
    """Each field can be set alone; a probability or strength of 0 leaves its operation out."""

    crop: Literal["inception", "pad", "none"] = "inception"  # none: as in evaluation
    area: tuple[float, float] = (0.05, 1.0)  # inception: share of the picture
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # inception: width by height
    pad: int = 4  # pad: pixels of black around a picture of the model's size
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    flip: float = 0.5
    layers: int = 0  # RandAugment: operations a picture
    magnitude: float = 10.0  # RandAugment
    brightness: float = 0.0  # colour jitter
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    erase: float = 0.0  # Random Erasing: probability
    erase_area: tuple[float, float] = (0.02, 0.33)
    erase_ratio: tuple[float, float] = (0.3, 3.3)
    erase_noise: bool = False  # zeros, the mean of normalised pictures, or noise
    mixup: float = 0.0  # of Beta(mixup, mixup)
    cutmix: float = 0.0
    mix: float = 1.0  # probability that a picture is mixed at all
    switch: float = 0.5  # probability of CutMix where both are on
    mix_each: bool = False  # another share for each picture, instead of one a batch

    def __post_init__(self) -> None:
        check(self)
        for name in ("flip", "erase", "mix", "switch"):
            if not 0 <= getattr(self, name) <= 1:
                raise VitrailError(f"{name} must be a probability from 0 to 1, got {getattr(self, name)}; try {name}=0.5")
        for name in ("area", "ratio", "erase_area", "erase_ratio"):
            low, high = getattr(self, name)
            if not 0 < low <= high or ("area" in name and high > 1):
                top = ", at most 1" if "area" in name else ""
                raise VitrailError(f"{name} must be two rising numbers above 0{top}, got {low} and {high}; try {name}=0.5,1")
        for name in ("pad", "layers", "magnitude", "brightness", "contrast", "saturation", "hue", "mixup", "cutmix"):
            if getattr(self, name) < 0:
                raise VitrailError(f"{name} must not be below 0, got {getattr(self, name)}; try {name}=0")
        if self.hue > 0.5:
            raise VitrailError(f"hue must be at most 0.5, half the circle of colours, got {self.hue}; try hue=0.1")


POLICIES: dict[str, Policy] = {
    "plain": Policy(crop="none", flip=0.0),
    "none": Policy(),
    "light1": Policy(layers=2, magnitude=0.0),
    "light2": Policy(layers=2, magnitude=10.0, mixup=0.2),
    "medium1": Policy(layers=2, magnitude=15.0, mixup=0.2),
    "medium2": Policy(layers=2, magnitude=15.0, mixup=0.5),
    "strong1": Policy(layers=2, magnitude=20.0, mixup=0.5),
    "strong2": Policy(layers=2, magnitude=20.0, mixup=0.8),
    "pad": Policy(crop="pad"),
    "textbook": Policy(area=(0.08, 1.0), layers=2, magnitude=9.0, erase=0.25, mixup=0.8, cutmix=1.0, erase_noise=True),
}


def policy(name: str, **changes: Any) -> Policy:
    """A named policy, any field changed by keyword."""
    if name not in POLICIES:
        raise VitrailError(f"no augmentation is named {name!r}{suggestion(name, POLICIES)}; there are {', '.join(POLICIES)}")
    return replace(POLICIES[name], **changes)
