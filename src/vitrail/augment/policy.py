"""Augmentation settings. Torch-free.

``none`` ... ``strong2`` are AugReg's (Steiner et al. 2021, table 8 of its appendix and the authors' code): random resized crop
and flip, RandAugment of two layers at a magnitude whose nominal maximum is 10, and Mixup. ``pad`` is usual for small images
(CIFAR): padded random crop and flip. ``textbook`` combines all operations; ``eval`` has none.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from vitrail.config import check
from vitrail.errors import VitrailError, suggestion


@dataclass(frozen=True)
class Policy:
    """An augmentation policy; a probability or strength of 0 turns an operation off."""

    crop: Literal["random-resized", "pad", "none"] = "random-resized"  # none: as in evaluation
    area: tuple[float, float] = (0.05, 1.0)  # random-resized: fraction of the image area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # random-resized: width / height
    pad: int = 4  # pad: black pixels around an image of the model's size
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    flip: float = 0.5
    layers: int = 0  # RandAugment: operations per image
    magnitude: float = 10.0  # RandAugment
    brightness: float = 0.0  # colour jitter
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    erase: float = 0.0  # Random Erasing: probability
    erase_area: tuple[float, float] = (0.02, 0.33)
    erase_ratio: tuple[float, float] = (0.3, 3.3)
    erase_noise: bool = False  # true: normal noise; false: zeros, the mean of normalised images
    mixup: float = 0.0  # parameter of Beta(mixup, mixup); 0: off
    cutmix: float = 0.0
    mix: float = 1.0  # probability that an image is mixed
    switch: float = 0.5  # probability of CutMix if Mixup is on as well
    mix_each: bool = False  # draw lambda per image instead of per batch

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
            raise VitrailError(f"hue must be at most 0.5, half the colour circle, got {self.hue}; try hue=0.1")


POLICIES: dict[str, Policy] = {
    "eval": Policy(crop="none", flip=0.0),
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
    """Return a named policy; any field can be changed by keyword."""
    if name not in POLICIES:
        raise VitrailError(f"no augmentation is named {name!r}{suggestion(name, POLICIES)}; there are {', '.join(POLICIES)}")
    return replace(POLICIES[name], **changes)
