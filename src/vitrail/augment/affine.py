"""Affine warps (rotation, shear, translation) of an image, its mask, and k boxes (left, top, right, bottom).

Image, mask and boxes are warped by the same matrix, so they stay aligned. Its origin is the top left corner of the image
(not the centre of the first pixel), with x to the right and y downwards.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from PIL import Image
from PIL.Image import Resampling

GREY = 128  # fill value: black or white would change the image's statistics


class Affine(NamedTuple):
    """Map from output to input coordinates, as in Pillow: (x, y) is sampled at (a x + b y + c, d x + e y + f)."""

    a: float
    b: float
    c: float
    d: float
    e: float
    f: float


def rotation(degrees: float, width: int, height: int) -> Affine:
    """Rotate anticlockwise about the image centre."""
    # Rounded as in Pillow's own rotate: a right angle then has a sine of exactly 1 and a cosine of 0, and no pixel is blended.
    angle = math.radians(degrees % 360)
    cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    return Affine(cosine, -sine, cosine * -x - sine * -y + x, sine, cosine, sine * -x + cosine * -y + y)


def shear(x: float = 0.0, y: float = 0.0) -> Affine:
    """Shear about the top left corner: row i shifts left by ``i * x`` pixels, column j up by ``j * y``."""
    # Through degrees and back, as torchvision does: a slope's last digit decides ties between two pixels.
    angle_x, angle_y = (math.radians(math.degrees(math.atan(slope))) for slope in (x, y))
    return Affine(1.0, math.tan(angle_x), 0.0, math.sin(angle_y) / math.cos(angle_y), 1.0, 0.0)


def translation(right: int = 0, down: int = 0) -> Affine:
    """Translate by whole pixels, so that nothing is interpolated."""
    return Affine(1.0, 0.0, float(-right), 0.0, 1.0, float(-down))


def warp_image(
    image: Image.Image, affine: Affine, fill: int | float = GREY, resample: Resampling = Resampling.NEAREST
) -> Image.Image:
    """Warp an image, keeping its size; pixels from outside get the value ``fill`` in every channel."""
    bands = len(image.getbands())
    fill_colour = fill if bands == 1 else (fill,) * bands
    return image.transform(image.size, Image.Transform.AFFINE, affine, resample, fillcolor=fill_colour)


def warp_mask(mask: Image.Image, affine: Affine, fill: int = 0) -> Image.Image:
    """Warp a class mask with nearest-neighbour sampling; pixels from outside have the value ``fill``."""
    return warp_image(mask, affine, fill, resample=Resampling.NEAREST)


def warp_boxes(boxes: Float[ndarray, "k 4"], affine: Affine, width: int, height: int) -> Float[ndarray, "k 4"]:
    """Return the axis-aligned boxes around the warped corners, clipped to the image; a box outside it has no area."""
    x, y = boxes[:, [0, 2, 2, 0]] - affine.c, boxes[:, [1, 1, 3, 3]] - affine.f
    determinant = affine.a * affine.e - affine.b * affine.d
    # corners move by the inverse of the matrix
    x, y = (affine.e * x - affine.b * y) / determinant, (affine.a * y - affine.d * x) / determinant
    warped = np.stack([x.min(1), y.min(1), x.max(1), y.max(1)], axis=1)
    return np.clip(warped, 0, np.array([width, height, width, height])).astype(boxes.dtype)
