"""Augmentation settings. Torch-free.

``none`` ... ``strong2`` are AugReg's (Steiner et al. 2021, table 8 of its appendix and the authors' code): random resized crop
and flip, RandAugment of two layers at a magnitude whose nominal maximum is 10, and Mixup. ``pad`` is usual for small images
(CIFAR): padded random crop and flip. ``jitter`` is usual for masks and boxes: large-scale jitter (Ghiasi et al. 2021), flip and
colours. ``textbook`` combines all operations; ``eval`` has none.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from vitrail.config import added, validate
from vitrail.errors import VitrailError, did_you_mean


@dataclass(frozen=True)
class Policy:
    """An augmentation policy; a probability or strength of 0 turns an operation off."""

    crop: Literal["random-resized", "scale-jitter", "pad", "none"] = "random-resized"  # none: as in evaluation
    crop_scale: tuple[float, float] = (0.05, 1.0)  # random-resized: fraction of the image area
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)  # random-resized: width / height
    jitter_scale: tuple[float, float] = added((0.5, 2.0))  # scale-jitter: of the image; below 1 it is padded
    max_class_fraction: float = added(1.0)  # masks only: a crop with more pixels of one class is drawn again, up to ten times
    min_visible: float = added(0.25)  # boxes only: an object of which a crop shows a smaller fraction is ignored
    pad: int = 4  # pad: black pixels around an image of the model's size
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    hflip: float = 0.5
    randaug_layers: int = 0  # RandAugment: operations per image
    randaug_magnitude: float = 10.0  # RandAugment
    brightness: float = 0.0  # colour jitter
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    erase_prob: float = 0.0  # Random Erasing: probability
    erase_scale: tuple[float, float] = (0.02, 0.33)
    erase_ratio: tuple[float, float] = (0.3, 3.3)
    erase_noise: bool = False  # true: normal noise; false: zeros, the mean of normalised images
    mixup: float = 0.0  # parameter of Beta(mixup, mixup); 0: off
    cutmix: float = 0.0
    mix_prob: float = 1.0  # probability that an image is mixed
    cutmix_prob: float = 0.5  # probability of CutMix if Mixup is on as well
    mix_per_sample: bool = False  # draw lambda per image instead of per batch

    def __post_init__(self) -> None:
        validate(self)
        for name in ("hflip", "erase_prob", "mix_prob", "cutmix_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise VitrailError(f"{name} must be a probability from 0 to 1, got {getattr(self, name)}; try {name}=0.5")
        if not 0 <= self.min_visible <= 1:
            raise VitrailError(f"min_visible must be from 0 to 1, got {self.min_visible}; try min_visible=0.25")
        for name in ("crop_scale", "crop_ratio", "erase_scale", "erase_ratio"):
            low, high = getattr(self, name)
            if not 0 < low <= high or ("scale" in name and high > 1):
                limit = ", at most 1" if "scale" in name else ""
                raise VitrailError(f"{name} must be two rising numbers above 0{limit}, got {low} and {high}; try {name}=0.5,1")
        low, high = self.jitter_scale
        if not 0.1 <= low <= high <= 10:
            raise VitrailError(
                f"jitter_scale must be two rising numbers from 0.1 to 10, got {low} and {high}; try jitter_scale=0.5,2"
            )
        if not 0 < self.max_class_fraction <= 1:
            raise VitrailError(
                f"max_class_fraction must be above 0 and at most 1, got {self.max_class_fraction}; try max_class_fraction=0.75"
            )
        for name in (
            "pad",
            "randaug_layers",
            "randaug_magnitude",
            "brightness",
            "contrast",
            "saturation",
            "hue",
            "mixup",
            "cutmix",
        ):
            if getattr(self, name) < 0:
                raise VitrailError(f"{name} must not be below 0, got {getattr(self, name)}; try {name}=0")
        if self.hue > 0.5:
            raise VitrailError(f"hue must be at most 0.5, half the colour circle, got {self.hue}; try hue=0.1")


POLICIES: dict[str, Policy] = {
    "eval": Policy(crop="none", hflip=0.0),
    "none": Policy(),
    "light1": Policy(randaug_layers=2, randaug_magnitude=0.0),
    "light2": Policy(randaug_layers=2, randaug_magnitude=10.0, mixup=0.2),
    "medium1": Policy(randaug_layers=2, randaug_magnitude=15.0, mixup=0.2),
    "medium2": Policy(randaug_layers=2, randaug_magnitude=15.0, mixup=0.5),
    "strong1": Policy(randaug_layers=2, randaug_magnitude=20.0, mixup=0.5),
    "strong2": Policy(randaug_layers=2, randaug_magnitude=20.0, mixup=0.8),
    "pad": Policy(crop="pad"),
    "jitter": Policy(crop="scale-jitter", brightness=0.3, contrast=0.3, saturation=0.3),
    "textbook": Policy(
        crop_scale=(0.08, 1.0),
        randaug_layers=2,
        randaug_magnitude=9.0,
        erase_prob=0.25,
        mixup=0.8,
        cutmix=1.0,
        erase_noise=True,
    ),
}


def get_policy(name: str, **changes: Any) -> Policy:
    """Return a named policy; any field can be changed by keyword."""
    if name not in POLICIES:
        raise VitrailError(f"no augmentation is named {name!r}; there are {', '.join(POLICIES)}{did_you_mean(name, POLICIES)}")
    return replace(POLICIES[name], **changes)
