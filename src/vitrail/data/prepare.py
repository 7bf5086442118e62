"""A picture as a model sees it."""

from functools import lru_cache

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image
from torch import Tensor

from vitrail.data.preprocess import Preprocess

LARGEST = 2**24  # pixels that are made only to be cut away
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
    """The part of the picture that the model sees, at its size."""
    channels = len(how.mean)
    picture = picture.convert("L" if channels == 1 else "RGB")
    high, wide = how.image
    resized, box = window(picture.size, how)
    if _odd(resized):  # only the part that is kept is resized
        return np.array(picture.resize((wide, high), FILTERS[how.interpolation], box)).reshape(high, wide, channels)
    if resized != picture.size:
        picture = picture.resize(resized, FILTERS[how.interpolation])
    left, top = _corner(resized, how)
    return np.array(picture.crop((left, top, left + wide, top + high))).reshape(high, wide, channels)


def window(size: tuple[int, int], how: Preprocess) -> tuple[tuple[int, int], tuple[float, float, float, float]]:
    """Of a picture of this width and height: the size it is resized to, and what of it the model sees, as it was before:
    left, top, right, bottom."""
    high, wide = how.image
    resized = _cover(size, how)
    across, down = size[0] / resized[0], size[1] / resized[1]
    left, top = _corner(resized, how)
    return resized, (left * across, top * down, left * across + wide * across, top * down + high * down)


def normalise(images: Float[Tensor, "*n c height width"], how: Preprocess) -> Float[Tensor, "*n c height width"]:
    """From 0 ... 255 to what the model takes, in place: (x / 255 - mean) / std, in two passes instead of three."""
    scale, shift = constants(how)
    return images.mul_(scale).sub_(shift)


@lru_cache
def constants(how: Preprocess) -> tuple[Tensor, Tensor]:
    mean, std = torch.tensor(how.mean, dtype=torch.float64), torch.tensor(how.std, dtype=torch.float64)
    return (1 / (255 * std)).float()[:, None, None], (mean / std).float()[:, None, None]


def _cover(size: tuple[int, int], how: Preprocess) -> tuple[int, int]:
    """Width and height: the whole size, or the smallest of the picture's own proportions that covers what is cropped."""
    high, wide = how.resized
    if how.squash:
        return wide, high
    whole = int if high == wide else round  # torchvision's way with one side, timm's with two
    if size[0] * high < size[1] * wide:
        return wide, max(high, whole(wide * size[1] / size[0]))
    return max(wide, whole(high * size[0] / size[1])), high


def _odd(resized: tuple[int, int]) -> bool:
    """A picture of odd proportions, of which most would be made only to be cut away."""
    return resized[0] * resized[1] > LARGEST


def _corner(resized: tuple[int, int], how: Preprocess) -> tuple[int, int] | tuple[float, float]:
    """Left and top of the middle: of whole pixels, where there are any."""
    left, top = (resized[0] - how.image[1]) / 2, (resized[1] - how.image[0]) / 2
    return (left, top) if _odd(resized) else (round(left), round(top))
