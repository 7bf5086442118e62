"""RandAugment (Cubuk et al. 2020) and colour jitter on Pillow pictures, RGB or grey. n pictures, each with so many layers.

An operation takes its strength in its own unit (degrees, a factor, a threshold, pixels); a table turns the level, which is
common to all of them, into strengths. Pixels are those of a picture 224 wide or high, and grow and shrink with it.

The table shipped is that of the paper's code, which AugReg (Steiner et al. 2021) and big_vision use. The operations are
Pillow's, which that code imitates in TensorFlow with roundings of its own. Its contrast differs more than that: what it
blends with is not the picture's mean, it is a grey that depends on the number of pixels alone (196 for 224 x 224).
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

OPERATION_SLOTS = 4  # for each layer
JITTER_SLOTS = 8
NOMINAL = 224  # the side that pixels are counted at

Scale = Callable[[float, float], float]  # level and sign (1.0 or -1.0) to strength


def _nothing(level: float, sign: float) -> float:
    return 0.0


def _factor(level: float, sign: float) -> float:
    return level / 10 * 1.8 + 0.1  # below level 5 duller than the picture itself, above it gaudier


def _bits(level: float, sign: float) -> float:
    # There the shift by 8 - bits is one of uint8, which is cut to 7 and wraps below 0: one bit remains of none, and of 9.
    bits = int(level / 10 * 4)
    return float(bits if 1 <= bits <= 8 else 1)


def _threshold(level: float, sign: float) -> float:
    # There the threshold becomes a uint8: level 10 inverts the whole picture, 15 its brighter half, and 20 all again.
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
    """What is drawn for a batch: in each layer one of ``names``, its strength, and a point of the picture for Cutout."""

    names: tuple[str, ...]
    chosen: Int[ndarray, "n layers"]
    strengths: Float[ndarray, "n layers"]
    centres: Float[ndarray, "n layers 2"]  # down, across; each from [0, 1)


def draw_operations(
    u: Float[ndarray, "n slots"], layers: int, magnitude: int | float, table: Mapping[str, Scale] = PAPER
) -> Operations:
    """Each layer draws one operation, all equally likely, and the direction it goes to."""
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
        raise VitrailError(f"there is no operation {name!r} to augment with{suggestion(name, (*COLOURS, *PAPER))}")
    return COLOURS[name](picture, strength)


def movement(name: str, strength: float, width: int, height: int) -> Affine | None:
    """How an operation moves the picture, for whatever has to move along; None for one that changes colours alone."""
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
    """DeVries and Taylor 2017: a square that goes ``reach`` pixels to each side of the centre, as far as the picture goes."""
    width, height = picture.size
    side = int(reach * min(width, height) / NOMINAL)
    y, x = int(centre[0] * height), int(centre[1] * width)
    picture = picture.copy()
    box = (max(x - side, 0), max(y - side, 0), min(x + side, width), min(y + side, height))
    picture.paste((fill,) * len(picture.getbands()), box)
    return picture


def posterise(picture: Image.Image, bits: float) -> Image.Image:
    """Keep the highest bits of each value: none of them is black, eight or more the picture as it is."""
    return _point(picture, lambda value: value & (0xFF00 >> min(int(bits), 8)))


def solarise_add(picture: Image.Image, amount: float) -> Image.Image:
    """Lighten the darker half of the values."""
    return _point(picture, lambda value: min(max(value + int(amount), 0), 255) if value < 128 else value)


def turn_hue(picture: Image.Image, turns: float) -> Image.Image:
    """Round the colour circle; grey has no place on it."""
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
    "Solarize": lambda picture, threshold: ImageOps.solarize(picture, threshold),  # type: ignore[arg-type]  # any number does
    "SolarizeAdd": solarise_add,
    "Color": lambda picture, factor: ImageEnhance.Color(picture).enhance(factor),
    "Contrast": lambda picture, factor: ImageEnhance.Contrast(picture).enhance(factor),
    "Brightness": lambda picture, factor: ImageEnhance.Brightness(picture).enhance(factor),
    "Sharpness": lambda picture, factor: ImageEnhance.Sharpness(picture).enhance(factor),
}
ADJUSTMENTS = (COLOURS["Brightness"], COLOURS["Contrast"], COLOURS["Color"], turn_hue)
UNCHANGED = (1.0, 1.0, 1.0, 0.0)  # of each adjustment


def draw_jitter(
    u: Float[ndarray, "n slots"], brightness: float, contrast: float, saturation: float, hue: float
) -> tuple[Float[ndarray, "n 4"], Int[ndarray, "n 4"]]:
    """Factors up to so much above and below 1, turns of the hue up to so much both ways (0.5: all the way); and their order."""
    amounts, middle = np.array([brightness, contrast, saturation, hue]), np.array(UNCHANGED)
    low, high = middle - amounts, middle + amounts
    low[:3] = np.maximum(low[:3], 0)
    return low + (high - low) * u[:, :4], np.argsort(u[:, 4:JITTER_SLOTS], axis=1)


def jitter(picture: Image.Image, factors: Float[ndarray, "4"], order: Int[ndarray, "4"]) -> Image.Image:
    """Brightness, contrast, saturation and hue, in this order of theirs."""
    for which in order:
        if factors[which] != UNCHANGED[which]:  # through hue and back again even a turn of nothing would lose a little
            picture = ADJUSTMENTS[which](picture, float(factors[which]))
    return picture


def _point(picture: Image.Image, change: Callable[[int], int]) -> Image.Image:
    return picture.point([change(value) for value in range(256)] * len(picture.getbands()))
