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

from vitrail.augment.affine import GREY, Affine, move_picture, rotation, shearing, translation
from vitrail.errors import VitrailError, suggestion

OPERATION_SLOTS = 4  # per layer
JITTER_SLOTS = 8
NOMINAL = 224  # the image side that pixel strengths refer to

Scale = Callable[[float, float], float]  # level and sign (1.0 or -1.0) to strength


def _nothing(level: float, sign: float) -> float:
    return 0.0


def _factor(level: float, sign: float) -> float:
    return level / 10 * 1.8 + 0.1  # a level below 5 weakens the property, above 5 strengthens it


def _bits(level: float, sign: float) -> float:
    # In that code the shift by 8 - bits is a uint8, clipped to 7, and wraps below 0: both 0 and 9 bits leave one bit.
    bits = int(level / 10 * 4)
    return float(bits if 1 <= bits <= 8 else 1)


def _threshold(level: float, sign: float) -> float:
    # In that code the threshold is a uint8: level 10 inverts the whole image, 15 its brighter half, and 20 the whole again.
    return float(int(level / 10 * 256) % 256)


PAPER: Mapping[str, Scale] = {
    "AutoContrast": _nothing,
    "Equalize": _nothing,
    "Invert": _nothing,
    "Rotate": lambda level, sign: sign * level / 10 * 30,
    "Posterize": _bits,
    "Solarize": _threshold,
    "Color": _factor,
    "Contrast": _factor,
    "Brightness": _factor,
    "Sharpness": _factor,
    "ShearX": lambda level, sign: sign * level / 10 * 0.3,
    "ShearY": lambda level, sign: sign * level / 10 * 0.3,
    "TranslateX": lambda level, sign: sign * level / 10 * 100,
    "TranslateY": lambda level, sign: sign * level / 10 * 100,
    "Cutout": lambda level, sign: level / 10 * 40,
    "SolarizeAdd": lambda level, sign: float(int(level / 10 * 110)),
}


class Operations(NamedTuple):
    """RandAugment operations drawn for a batch: per layer one of ``names``, its strength, and a centre for Cutout."""

    names: tuple[str, ...]
    chosen: Int[ndarray, "n layers"]
    strengths: Float[ndarray, "n layers"]
    centres: Float[ndarray, "n layers 2"]  # y, x; each from [0, 1)


def draw_operations(
    u: Float[ndarray, "n slots"], layers: int, magnitude: int | float, table: Mapping[str, Scale] = PAPER
) -> Operations:
    """Draw one operation per layer, all equally likely, and its sign."""
    u = u[:, : OPERATION_SLOTS * layers].reshape(len(u), layers, OPERATION_SLOTS)
    chosen = (u[..., 0] * len(table)).astype(np.int64)
    strengths = np.array([[scale(float(magnitude), sign) for sign in (-1.0, 1.0)] for scale in table.values()])
    return Operations(tuple(table), chosen, strengths[chosen, (u[..., 1] >= 0.5).astype(np.int64)], u[..., 2:4])


def apply_operation(
    picture: Image.Image,
    name: str,
    strength: float,
    centre: Float[ndarray, "2"],
    fill: int = GREY,
    resample: Resampling = Resampling.NEAREST,
) -> Image.Image:
    how = movement(name, strength, *picture.size)
    if how is not None:
        return move_picture(picture, how, fill, resample)
    if name == "Cutout":
        return cutout(picture, strength, centre, fill)
    if name not in COLOURS:
        raise VitrailError(f"no augmentation operation is named {name!r}{suggestion(name, (*COLOURS, *PAPER))}")
    return COLOURS[name](picture, strength)


def movement(name: str, strength: float, width: int, height: int) -> Affine | None:
    """Return the affine map of a geometric operation, for masks and boxes; None if it changes only colours."""
    match name:
        case "Rotate":
            return rotation(strength, width, height)
        case "ShearX":
            return shearing(x=strength)
        case "ShearY":
            return shearing(y=strength)
        case "TranslateX":
            return translation(right=int(strength * width / NOMINAL))
        case "TranslateY":
            return translation(down=int(strength * height / NOMINAL))
    return None


def cutout(picture: Image.Image, reach: float, centre: Float[ndarray, "2"], fill: int = GREY) -> Image.Image:
    """Fill a square that reaches ``reach`` pixels from the centre, clipped to the image (DeVries and Taylor 2017)."""
    width, height = picture.size
    side = int(reach * min(width, height) / NOMINAL)
    y, x = int(centre[0] * height), int(centre[1] * width)
    picture = picture.copy()
    box = (max(x - side, 0), max(y - side, 0), min(x + side, width), min(y + side, height))
    picture.paste((fill,) * len(picture.getbands()), box)
    return picture


def posterise(picture: Image.Image, bits: float) -> Image.Image:
    """Keep the highest bits of each value: 0 gives black, 8 or more the image unchanged."""
    return _point(picture, lambda value: value & (0xFF00 >> min(int(bits), 8)))


def solarise_add(picture: Image.Image, amount: float) -> Image.Image:
    """Brighten values below 128 by ``amount``."""
    return _point(picture, lambda value: min(max(value + int(amount), 0), 255) if value < 128 else value)


def turn_hue(picture: Image.Image, turns: float) -> Image.Image:
    """Rotate the hue; a grey image is returned unchanged."""
    if picture.mode == "L":
        return picture
    hue, saturation, value = picture.convert("HSV").split()
    hue = _point(hue, lambda place: (place + int(turns * 255)) % 256)
    return Image.merge("HSV", (hue, saturation, value)).convert(picture.mode)


COLOURS: Mapping[str, Callable[[Image.Image, float], Image.Image]] = {
    "Identity": lambda picture, _: picture,
    "AutoContrast": lambda picture, _: ImageOps.autocontrast(picture),
    "Equalize": lambda picture, _: ImageOps.equalize(picture),
    "Invert": lambda picture, _: ImageChops.invert(picture),
    "Posterize": posterise,
    "Solarize": lambda picture, threshold: ImageOps.solarize(picture, threshold),  # type: ignore[arg-type]  # any number works
    "SolarizeAdd": solarise_add,
    "Color": lambda picture, factor: ImageEnhance.Color(picture).enhance(factor),
    "Contrast": lambda picture, factor: ImageEnhance.Contrast(picture).enhance(factor),
    "Brightness": lambda picture, factor: ImageEnhance.Brightness(picture).enhance(factor),
    "Sharpness": lambda picture, factor: ImageEnhance.Sharpness(picture).enhance(factor),
}
ADJUSTMENTS = (COLOURS["Brightness"], COLOURS["Contrast"], COLOURS["Color"], turn_hue)
UNCHANGED = (1.0, 1.0, 1.0, 0.0)  # the neutral value of each adjustment


def draw_jitter(
    u: Float[ndarray, "n slots"], brightness: float, contrast: float, saturation: float, hue: float
) -> tuple[Float[ndarray, "n 4"], Int[ndarray, "n 4"]]:
    """Draw factors within 1 ± amount, a hue shift within ± hue (0.5: the full circle), and the order of application."""
    amounts, middle = np.array([brightness, contrast, saturation, hue]), np.array(UNCHANGED)
    low, high = middle - amounts, middle + amounts
    low[:3] = np.maximum(low[:3], 0)
    return low + (high - low) * u[:, :4], np.argsort(u[:, 4:JITTER_SLOTS], axis=1)


def jitter(picture: Image.Image, factors: Float[ndarray, "4"], order: Int[ndarray, "4"]) -> Image.Image:
    """Adjust brightness, contrast, saturation and hue in the drawn order."""
    for which in order:
        if factors[which] != UNCHANGED[which]:  # the conversion to HSV and back is lossy even for a shift of 0
            picture = ADJUSTMENTS[which](picture, float(factors[which]))
    return picture


def _point(picture: Image.Image, change: Callable[[int], int]) -> Image.Image:
    return picture.point([change(value) for value in range(256)] * len(picture.getbands()))
