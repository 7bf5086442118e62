"""RandAugment (Cubuk et al. 2020) and colour jitter on Pillow images, RGB or grey. n images, each with a number of layers.

An operation takes its strength in its own unit (degrees, a factor, a threshold, pixels); a table maps the magnitude, which
all of them share, to strengths. Pixels refer to an image 224 wide or high and scale with its size.

The table is that of the paper's code, which AugReg (Steiner et al. 2021) and big_vision use. The operations are Pillow's,
which that code reimplements in TensorFlow with different rounding. Its contrast differs more: it blends not with the image's
mean but with a grey that depends only on the number of pixels (196 for 224 x 224).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from PIL import Image, ImageChops, ImageEnhance, ImageOps
from PIL.Image import Resampling

from vitrail.augment.affine import GREY, Affine, rotation, shear, translation, warp_image
from vitrail.errors import VitrailError, did_you_mean

OPERATION_SLOTS = 4  # per layer
JITTER_SLOTS = 8
NOMINAL_SIDE = 224  # the image side that pixel strengths refer to

StrengthFn = Callable[[float, float], float]  # level and sign (1.0 or -1.0) to strength


def _no_strength(level: float, sign: float) -> float:
    return 0.0


def _enhance_factor(level: float, sign: float) -> float:
    return level / 10 * 1.8 + 0.1  # a level below 5 weakens the property, above 5 strengthens it


def _posterise_bits(level: float, sign: float) -> float:
    # In that code the shift by 8 - bits is a uint8, clipped to 7, and wraps below 0: both 0 and 9 bits leave one bit.
    bits = int(level / 10 * 4)
    return float(bits if 1 <= bits <= 8 else 1)


def _solarise_threshold(level: float, sign: float) -> float:
    # In that code the threshold is a uint8: level 10 inverts the whole image, 15 its brighter half, and 20 the whole again.
    return float(int(level / 10 * 256) % 256)


RANDAUGMENT_TABLE: Mapping[str, StrengthFn] = {
    "AutoContrast": _no_strength,
    "Equalize": _no_strength,
    "Invert": _no_strength,
    "Rotate": lambda level, sign: sign * level / 10 * 30,
    "Posterize": _posterise_bits,
    "Solarize": _solarise_threshold,
    "Color": _enhance_factor,
    "Contrast": _enhance_factor,
    "Brightness": _enhance_factor,
    "Sharpness": _enhance_factor,
    "ShearX": lambda level, sign: sign * level / 10 * 0.3,
    "ShearY": lambda level, sign: sign * level / 10 * 0.3,
    "TranslateX": lambda level, sign: sign * level / 10 * 100,
    "TranslateY": lambda level, sign: sign * level / 10 * 100,
    "Cutout": lambda level, sign: level / 10 * 40,
    "SolarizeAdd": lambda level, sign: float(int(level / 10 * 110)),
}


class RandAugmentOps(NamedTuple):
    """RandAugment operations drawn for a batch: per layer one of ``names``, its strength, and a centre for Cutout."""

    names: tuple[str, ...]
    indices: Int[ndarray, "n layers"]
    strengths: Float[ndarray, "n layers"]
    centres: Float[ndarray, "n layers 2"]  # y, x; each from [0, 1)


def draw_randaugment(
    u: Float[ndarray, "n slots"], layers: int, magnitude: int | float, table: Mapping[str, StrengthFn] = RANDAUGMENT_TABLE
) -> RandAugmentOps:
    """Draw one operation per layer, all equally likely, and its sign."""
    u = u[:, : OPERATION_SLOTS * layers].reshape(len(u), layers, OPERATION_SLOTS)
    indices = (u[..., 0] * len(table)).astype(np.int64)
    strengths = np.array([[strength_fn(float(magnitude), sign) for sign in (-1.0, 1.0)] for strength_fn in table.values()])
    return RandAugmentOps(tuple(table), indices, strengths[indices, (u[..., 1] >= 0.5).astype(np.int64)], u[..., 2:4])


def apply_operation(
    image: Image.Image,
    name: str,
    strength: float,
    centre: Float[ndarray, "2"],
    fill: int | float = GREY,
    resample: Resampling = Resampling.NEAREST,
) -> Image.Image:
    affine = affine_of(name, strength, *image.size)
    if affine is not None:
        return warp_image(image, affine, fill, resample)
    if name == "Cutout":
        return cutout(image, strength, centre, fill)
    if name not in COLOUR_OPERATIONS:
        raise VitrailError(
            f"no augmentation operation is named {name!r}{did_you_mean(name, (*COLOUR_OPERATIONS, *RANDAUGMENT_TABLE))}"
        )
    return COLOUR_OPERATIONS[name](image, strength)


def affine_of(name: str, strength: float, width: int, height: int) -> Affine | None:
    """Return the affine map of a geometric operation, for masks and boxes; None if it changes only colours."""
    match name:
        case "Rotate":
            return rotation(strength, width, height)
        case "ShearX":
            return shear(x=strength)
        case "ShearY":
            return shear(y=strength)
        case "TranslateX":
            return translation(right=int(strength * width / NOMINAL_SIDE))
        case "TranslateY":
            return translation(down=int(strength * height / NOMINAL_SIDE))
    return None


def cutout(image: Image.Image, reach: float, centre: Float[ndarray, "2"], fill: int | float = GREY) -> Image.Image:
    """Fill a square that reaches ``reach`` pixels from the centre, clipped to the image (DeVries and Taylor 2017)."""
    width, height = image.size
    side = int(reach * min(width, height) / NOMINAL_SIDE)
    y, x = int(centre[0] * height), int(centre[1] * width)
    image = image.copy()
    box = (max(x - side, 0), max(y - side, 0), min(x + side, width), min(y + side, height))
    image.paste((fill,) * len(image.getbands()), box)
    return image


def posterise(image: Image.Image, bits: float) -> Image.Image:
    """Keep the highest bits of each value: 0 gives black, 8 or more the image unchanged."""
    return _apply_lookup(image, lambda value: value & (0xFF00 >> min(int(bits), 8)))


def solarise_add(image: Image.Image, amount: float) -> Image.Image:
    """Brighten values below 128 by ``amount``."""
    return _apply_lookup(image, lambda value: min(max(value + int(amount), 0), 255) if value < 128 else value)


def shift_hue(image: Image.Image, turns: float) -> Image.Image:
    """Rotate the hue; a grey image is returned unchanged."""
    if image.mode == "L":
        return image
    hue, saturation, value = image.convert("HSV").split()
    hue = _apply_lookup(hue, lambda angle: (angle + int(turns * 255)) % 256)
    return Image.merge("HSV", (hue, saturation, value)).convert(image.mode)


COLOUR_OPERATIONS: Mapping[str, Callable[[Image.Image, float], Image.Image]] = {
    "Identity": lambda image, _: image,
    "AutoContrast": lambda image, _: ImageOps.autocontrast(image),
    "Equalize": lambda image, _: ImageOps.equalize(image),
    "Invert": lambda image, _: ImageChops.invert(image),
    "Posterize": posterise,
    "Solarize": lambda image, threshold: ImageOps.solarize(image, threshold),  # type: ignore[arg-type]  # any number works
    "SolarizeAdd": solarise_add,
    "Color": lambda image, factor: ImageEnhance.Color(image).enhance(factor),
    "Contrast": lambda image, factor: ImageEnhance.Contrast(image).enhance(factor),
    "Brightness": lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    "Sharpness": lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor),
}
JITTER_OPERATIONS = (COLOUR_OPERATIONS["Brightness"], COLOUR_OPERATIONS["Contrast"], COLOUR_OPERATIONS["Color"], shift_hue)
NEUTRAL_FACTORS = (1.0, 1.0, 1.0, 0.0)  # the neutral value of each adjustment


def draw_colour_jitter(
    u: Float[ndarray, "n slots"], brightness: float, contrast: float, saturation: float, hue: float
) -> tuple[Float[ndarray, "n 4"], Int[ndarray, "n 4"]]:
    """Draw factors within 1 ± amount, a hue shift within ± hue (0.5: the full circle), and the order of application."""
    amounts, neutral = np.array([brightness, contrast, saturation, hue]), np.array(NEUTRAL_FACTORS)
    low, high = neutral - amounts, neutral + amounts
    low[:3] = np.maximum(low[:3], 0)
    return low + (high - low) * u[:, :4], np.argsort(u[:, 4:JITTER_SLOTS], axis=1)


def colour_jitter(image: Image.Image, factors: Float[ndarray, "4"], order: Int[ndarray, "4"]) -> Image.Image:
    """Adjust brightness, contrast, saturation and hue in the drawn order."""
    for index in order:
        if factors[index] != NEUTRAL_FACTORS[index]:  # the conversion to HSV and back is lossy even for a shift of 0
            image = JITTER_OPERATIONS[index](image, float(factors[index]))
    return image


def _apply_lookup(image: Image.Image, change: Callable[[int], int]) -> Image.Image:
    return image.point([change(value) for value in range(256)] * len(image.getbands()))
