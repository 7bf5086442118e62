"""Turning, shearing and shifting a picture together with what is marked in it: a mask, or k boxes (left, top, right, bottom).

A movement is one matrix, and picture, mask and boxes are moved by that same matrix, so they cannot part. Its origin is the
top left corner of the picture (not the middle of the first pixel), x to the right and y downwards.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from PIL import Image
from PIL.Image import Resampling

GREY = 128  # what comes in from outside: black or white would change the picture's statistics


class Affine(NamedTuple):
    """Where the new picture's point (x, y) was in the old one: (a x + b y + c, d x + e y + f). That direction is Pillow's."""

    a: float
    b: float
    c: float
    d: float
    e: float
    f: float


def rotation(degrees: float, width: int, height: int) -> Affine:
    """Anticlockwise about the middle of the picture."""
    # Rounded as in Pillow's own rotate: a right angle then has a sine of 1 and a cosine of 0, and moves whole pixels.
    angle = math.radians(degrees % 360)
    cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    return Affine(cosine, -sine, cosine * -x - sine * -y + x, sine, cosine, sine * -x + cosine * -y + y)


def shearing(x: float = 0.0, y: float = 0.0) -> Affine:
    """The top left corner stays; a row goes to the left by ``x`` for each row above it, a column up by ``y`` likewise."""
    # Through degrees and back, as torchvision does: a slope's last digit decides about a point on the border of two pixels.
    across, down = (math.radians(math.degrees(math.atan(slope))) for slope in (x, y))
    return Affine(1.0, math.tan(across), 0.0, math.sin(down) / math.cos(down), 1.0, 0.0)


def translation(right: int = 0, down: int = 0) -> Affine:
    """By whole pixels, so that nothing is smoothed."""
    return Affine(1.0, 0.0, float(-right), 0.0, 1.0, float(-down))


def move_picture(picture: Image.Image, how: Affine, fill: int = GREY, resample: Resampling = Resampling.NEAREST) -> Image.Image:
    """The picture keeps its size; what comes in from outside has the value ``fill`` in every channel."""
    bands = len(picture.getbands())
    colour = fill if bands == 1 else (fill,) * bands
    return picture.transform(picture.size, Image.Transform.AFFINE, how, resample, fillcolor=colour)


def move_mask(mask: Image.Image, how: Affine) -> Image.Image:
    """Classes have no values in between, and what comes in from outside is background, which is 0."""
    return move_picture(mask, how, fill=0, resample=Resampling.NEAREST)


def move_boxes(boxes: Float[ndarray, "k 4"], how: Affine, width: int, height: int) -> Float[ndarray, "k 4"]:
    """The smallest upright box around the moved corners, cut to the picture; one that has left the picture has no area."""
    x, y = boxes[:, [0, 2, 2, 0]] - how.c, boxes[:, [1, 1, 3, 3]] - how.f
    area = how.a * how.e - how.b * how.d  # of what was one pixel
    x, y = (how.e * x - how.b * y) / area, (how.a * y - how.d * x) / area  # the corners go forth, the matrix leads back
    moved = np.stack([x.min(1), y.min(1), x.max(1), y.max(1)], axis=1)
    return np.clip(moved, 0, np.array([width, height, width, height])).astype(boxes.dtype)
