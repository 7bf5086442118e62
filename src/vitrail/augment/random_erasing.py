"""Random Erasing (Zhong et al. 2017): a rectangle of the image becomes zeros or noise. n images of c channels.

A rectangle is top, left, height, width in pixels; one without area erases nothing.
"""

import numpy as np
from jaxtyping import Float, Int, UInt64
from numpy import ndarray
from torch import Tensor, from_numpy

from vitrail.augment.counter_rng import normals

ATTEMPTS = 10  # shapes tried until one fits into the image; if none does, the image is not erased
ERASE_SLOTS = 3 + 2 * ATTEMPTS


def draw_erase(
    u: Float[ndarray, "n slots"],
    probability: float,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    sizes: tuple[int, int] | Int[ndarray, "n 2"],
) -> Int[ndarray, "n 4"]:
    """Draw a rectangle per image: area as a fraction of the image, ``ratio`` height / width, ``sizes`` (height, width)."""
    height, width = np.broadcast_to(np.asarray(sizes), (len(u), 2)).T
    shapes = u[:, 3:ERASE_SLOTS].reshape(len(u), ATTEMPTS, 2)
    pixels = (height * width)[:, None] * _lerp(scale[0], scale[1], shapes[..., 0])
    aspect = np.exp(_lerp(np.log(ratio[0]), np.log(ratio[1]), shapes[..., 1]))  # 1/2 is as likely as 2
    high, wide = np.rint(np.sqrt(pixels * aspect)), np.rint(np.sqrt(pixels / aspect))
    fits = (high < height[:, None]) & (wide < width[:, None])
    first = np.arange(len(u)), fits.argmax(axis=1)
    high, wide = high[first], wide[first]
    top, left = np.floor(u[:, 1] * (height - high + 1)), np.floor(u[:, 2] * (width - wide + 1))
    boxes = np.stack([top, left, high, wide], axis=1).astype(np.int64)
    boxes[(u[:, 0] >= probability) | ~fits.any(axis=1)] = 0
    return boxes


def erase(
    images: Float[Tensor, "n c h w"], boxes: Int[ndarray, "n 4"], noise_keys: UInt64[ndarray, " n"] | None = None
) -> Float[Tensor, "n c h w"]:
    """Fill the rectangles in place: zeros, or normal noise that depends only on the key and the rectangle's size."""
    for i in np.flatnonzero(boxes[:, 2] * boxes[:, 3]):
        top, left, high, wide = boxes[i]
        hole = images[i, :, top : top + high, left : left + wide]
        if noise_keys is None:
            hole.zero_()
        else:
            hole.copy_(from_numpy(normals(noise_keys[i], hole.numel())).view(hole.shape))
    return images


def _lerp(low: float, high: float, u: ndarray) -> ndarray:
    return low + (high - low) * u
