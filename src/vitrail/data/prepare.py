"""Preprocess one image: resize, crop, normalise."""

from functools import lru_cache

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image
from torch import Tensor

from vitrail.data.preprocess import Preprocess

LARGEST = 2**24  # pixels of a resized image that is then cropped
FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def prepare(picture: Image.Image, how: Preprocess) -> Float[Tensor, "c height width"]:
    """Resize and crop as torchvision and timm do, to the pixel; scale and normalise."""
    return normalise(rearrange(torch.from_numpy(fitted(picture, how)), "h w c -> c h w").float(), how)


def fitted(picture: Image.Image, how: Preprocess) -> UInt8[ndarray, "height width c"]:
    """Return the part of the image that the model sees, at the model's input size."""
    channels = len(how.mean)
    picture = picture.convert("L" if channels == 1 else "RGB")
    high, wide = how.image
    resized, box = window(picture.size, how)
    if _odd(resized):  # only the crop is resized
        return np.array(picture.resize((wide, high), FILTERS[how.interpolation], box)).reshape(high, wide, channels)
    if resized != picture.size:
        picture = picture.resize(resized, FILTERS[how.interpolation])
    left, top = _corner(resized, how)
    return np.array(picture.crop((left, top, left + wide, top + high))).reshape(high, wide, channels)


def window(size: tuple[int, int], how: Preprocess) -> tuple[tuple[int, int], tuple[float, float, float, float]]:
    """Return the size an image of this width and height is resized to, and the box of the original that the model sees: left,
    top, right, bottom."""
    high, wide = how.image
    resized = _cover(size, how)
    across, down = size[0] / resized[0], size[1] / resized[1]
    left, top = _corner(resized, how)
    return resized, (left * across, top * down, left * across + wide * across, top * down + high * down)


def normalise(images: Float[Tensor, "*n c height width"], how: Preprocess) -> Float[Tensor, "*n c height width"]:
    """Normalise values from 0 ... 255 in place: (x / 255 - mean) / std, in two passes instead of three."""
    scale, shift = constants(how)
    return images.mul_(scale).sub_(shift)


@lru_cache
def constants(how: Preprocess) -> tuple[Tensor, Tensor]:
    mean, std = torch.tensor(how.mean, dtype=torch.float64), torch.tensor(how.std, dtype=torch.float64)
    return (1 / (255 * std)).float()[:, None, None], (mean / std).float()[:, None, None]


def _cover(size: tuple[int, int], how: Preprocess) -> tuple[int, int]:
    """Return the width and height to resize to: exact, or the smallest of the image's aspect ratio that covers the crop."""
    high, wide = how.resized
    if how.squash:
        return wide, high
    whole = int if high == wide else round  # torchvision rounds this way with one side, timm with two
    if size[0] * high < size[1] * wide:
        return wide, max(high, whole(wide * size[1] / size[0]))
    return max(wide, whole(high * size[0] / size[1])), high


def _odd(resized: tuple[int, int]) -> bool:
    """Whether an image has so extreme an aspect ratio that most of the resized pixels would be cropped away."""
    return resized[0] * resized[1] > LARGEST


def _corner(resized: tuple[int, int], how: Preprocess) -> tuple[int, int] | tuple[float, float]:
    """Return left and top of the centre crop, in whole pixels unless the image is never resized as a whole."""
    left, top = (resized[0] - how.image[1]) / 2, (resized[1] - how.image[0]) / 2
    return (left, top) if _odd(resized) else (round(left), round(top))
