"""Preprocessing config: how an image becomes a model's input. It is saved with the model's weights. Torch-free.

``vit``: the published ViTs (resize the short side, centre crop, values from -1 to 1). ``official``: the authors' own
evaluation (resize without cropping). ``imagenet``: ImageNet's mean and standard deviation. ``clip``: those of OpenAI's CLIP.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from vitrail.config import added, validate
from vitrail.errors import VitrailError

Fit = Literal["crop", "pad", "stretch"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]


@dataclass(frozen=True)
class Preprocess:
    """Fit the image into the input size, scale to 0 ... 1, subtract the mean, divide by the standard deviation."""

    image_size: tuple[int, int]  # height and width of the model's input
    crop_pct: float = 1.0  # fraction of the resized image that the centre crop keeps
    fit: Fit = "crop"  # centre crop; the whole image, padded with the mean colour; or its aspect ratio changed
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    trim: tuple[int, int] = added((0, 0))  # rows and columns cut off at the bottom and right of the crop
    raw: bool = added(False)  # bands as they are stored, with mean and std in their own units, and not 8-bit RGB or grey

    def __post_init__(self) -> None:
        validate(self)
        if min(self.image_size) < 1:
            raise VitrailError(f"image_size must be at least 1, got {self.image_size}; try image_size=224")
        if min(self.trim) < 0:
            raise VitrailError(f"trim must be at least 0, got {self.trim}; try trim=0,0")
        if not 0 < self.crop_pct <= 1:
            raise VitrailError(f"crop_pct must be above 0 and at most 1, got {self.crop_pct}; try crop_pct=0.875")
        if self.fit == "pad" and (self.crop_pct != 1 or self.trim != (0, 0)):  # else the image would be cut off after all
            raise VitrailError(
                f"crop_pct must be 1 and trim 0 with fit=pad, which crops nothing, got {self.crop_pct:g} and {self.trim}; "
                "try crop_pct=1, or fit=crop"
            )
        if len(self.mean) != len(self.std) or not self.mean:
            raise VitrailError(f"mean and std must have one value per channel, got {len(self.mean)} and {len(self.std)}")
        if min(self.std) <= 0:
            raise VitrailError(f"std must be above 0, got {min(self.std)}; try std=0.5,0.5,0.5")

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def scale(self) -> float:
        """The value that stands for 1 in the units of the mean: 255 in 8-bit images."""
        return 1.0 if self.raw else 255.0

    @property
    def mean_of_255(self) -> tuple[float, ...]:
        """The mean of values that are divided by 255, as other libraries have it, which divide bands as well."""
        return tuple(value / (255 / self.scale) for value in self.mean)

    @property
    def std_of_255(self) -> tuple[float, ...]:
        """The standard deviation of values that are divided by 255."""
        return tuple(value / (255 / self.scale) for value in self.std)

    @property
    def pixel_type(self) -> Literal["uint8", "float32"]:
        """The data type of an image that is resized but not yet normalised, which a predictor takes."""
        return "float32" if self.raw else "uint8"

    @property
    def padding(self) -> tuple[float, ...]:
        """The value of what lies outside of an image when it is shifted: black, or the mean of bands, which have no black."""
        return self.mean if self.raw else (0.0,)

    @property
    def crop_size(self) -> tuple[int, int]:
        """Height and width of the centre crop; larger than the model's input only where rows or columns are cut off."""
        return self.image_size[0] + self.trim[0], self.image_size[1] + self.trim[1]

    @property
    def resize_to(self) -> tuple[int, int]:
        """The size that an image is resized to, to cover before the crop, or to fit into before the padding."""
        return int(self.crop_size[0] / self.crop_pct + 1e-6), int(self.crop_size[1] / self.crop_pct + 1e-6)

    @property
    def pad_colour(self) -> tuple[int | float, ...]:
        """The mean in every channel as a pixel, about 0 after normalising: the colour of the padding."""
        if self.raw:
            return self.mean
        return tuple(min(max(round(255 * mean), 0), 255) for mean in self.mean)

    def with_fit(self, fit: Fit) -> "Preprocess":
        """Return the same preprocessing with another fit; one that does not crop keeps the whole image."""
        return replace(self, fit=fit) if fit == "crop" else replace(self, fit=fit, crop_pct=1.0, trim=(0, 0))

    def with_channels(self, channels: int) -> "Preprocess":
        """Return the same preprocessing for another number of channels, each with the mean over the old ones."""
        if channels == len(self.mean):
            return self
        mean, std = sum(self.mean) / len(self.mean), sum(self.std) / len(self.std)
        return replace(self, mean=(mean,) * channels, std=(std,) * channels)


@dataclass(frozen=True)
class PreprocessChanges:
    """Changes to an assumed preprocessing, for a file that does not record its own; None: as assumed."""

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    interpolation: Interpolation | None = None
    crop_pct: float | None = None
    fit: Fit | None = None

    def apply(self, preprocess: Preprocess) -> Preprocess:
        channels = len(preprocess.mean)
        preprocess = preprocess if self.fit is None else preprocess.with_fit(self.fit)
        known = {name: value for name, value in vars(self).items() if value is not None}
        for name in ("mean", "std"):
            if len(known.get(name, ())) == 1:  # one value for every channel
                known[name] = known[name] * channels
            if len(known.get(name, preprocess.mean)) != channels:
                raise VitrailError(
                    f"{name} must have one value or {channels}, one per channel, got {len(known[name])}; try {name}=0.5"
                )
        return replace(preprocess, **known)


_assumed_changes: list[PreprocessChanges] = []


@contextmanager
def change_assumed_preprocess(changes: PreprocessChanges | None) -> Iterator[None]:
    """Within it, in every thread, weights that do not record their preprocessing are loaded with these changes to it."""
    before = list(_assumed_changes)
    _assumed_changes[:] = [] if changes is None else [changes]
    try:
        yield
    finally:
        _assumed_changes[:] = before


def assumed_changes() -> PreprocessChanges | None:
    """Return the changes that hold now."""
    return _assumed_changes[0] if _assumed_changes else None


def vit_preprocess(image_size: tuple[int, int], channels: int = 3) -> Preprocess:
    return Preprocess(image_size, crop_pct=0.9, mean=(0.5,) * channels, std=(0.5,) * channels)


def official_preprocess(image_size: tuple[int, int], channels: int = 3) -> Preprocess:
    return Preprocess(image_size, fit="stretch", interpolation="bilinear", mean=(0.5,) * channels, std=(0.5,) * channels)


def clip_preprocess(image_size: tuple[int, int]) -> Preprocess:
    return Preprocess(image_size, mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711))


def imagenet_preprocess(image_size: tuple[int, int]) -> Preprocess:
    return Preprocess(image_size, crop_pct=0.875, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
