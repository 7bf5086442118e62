"""A perceptually uniform colour map.

From dark violet over red to light yellow along a path in OKLab (Ottosson 2020): equal steps look equal, and lightness alone
orders them in print and for colour-blind readers. y and x a position in the grid.
"""

from functools import cache

import numpy as np
from jaxtyping import Float, Int, UInt8
from numpy import ndarray

NUM_COLOURS = 255  # plus one palette entry that is transparent
TO_CONES = np.array([[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]])
TO_LINEAR = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


def apply_colormap(values: Float[ndarray, "*shape"]) -> UInt8[ndarray, "*shape 3"]:
    """Map values from 0 (dark) to 1 (light) to RGB."""
    return colormap()[colour_indices(values)]


@cache
def colormap() -> UInt8[ndarray, "shades 3"]:
    """Return the colours, at equal distances along the path in OKLab."""
    t = np.linspace(0, 1, 4096)
    light, chroma = 0.12 + 0.84 * t, 0.03 + 0.155 * np.sin(np.pi * t) ** 0.8
    hue = np.radians(295 + 165 * t)
    lab = np.stack([light, chroma * np.cos(hue), chroma * np.sin(hue)], axis=1)
    arc_length = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(lab, axis=0), axis=1))])
    equidistant = np.linspace(0, arc_length[-1], NUM_COLOURS)
    return _to_rgb(np.stack([np.interp(equidistant, arc_length, channel) for channel in lab.T], axis=1))


def min_max(values: Float[ndarray, "y x"]) -> Float[ndarray, "y x"]:
    """Scale the minimum to 0 and the maximum to 1; a constant map becomes 0."""
    low, high = float(values.min()), float(values.max())
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def colour_indices(values: Float[ndarray, "*shape"]) -> Int[ndarray, "*shape"]:
    """Return the index of each value in the colour map."""
    return np.round(np.nan_to_num(np.clip(values, 0, 1)) * (NUM_COLOURS - 1)).astype(np.int64)


def rgb_to_oklab(rgb: UInt8[ndarray, "n 3"]) -> Float[ndarray, "n 3"]:
    """Convert sRGB to OKLab, in which equal distances look equal."""
    curved = rgb / 255
    linear = np.where(curved <= 0.04045, curved / 12.92, ((curved + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ np.linalg.inv(TO_LINEAR).T) @ np.linalg.inv(TO_CONES).T


def _to_rgb(lab: Float[ndarray, "n 3"]) -> UInt8[ndarray, "n 3"]:
    """Convert OKLab to sRGB, clipped to its gamut, which this path stays inside."""
    linear = np.clip((lab @ TO_CONES.T) ** 3 @ TO_LINEAR.T, 0, 1)
    curved = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.round(255 * curved).astype(np.uint8)
