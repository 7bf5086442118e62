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
    size = _cover(picture, how)
    if size[0] * size[1] > LARGEST:  # a picture of odd proportions: only the part that is kept is resized
        across, down = picture.width / size[0], picture.height / size[1]
        left, top = (size[0] - wide) / 2 * across, (size[1] - high) / 2 * down
        part = (left, top, left + wide * across, top + high * down)
        return np.array(picture.resize((wide, high), FILTERS[how.interpolation], part)).reshape(high, wide, channels)
    if size != picture.size:
        picture = picture.resize(size, FILTERS[how.interpolation])
    left, top = round((picture.width - wide) / 2), round((picture.height - high) / 2)
    return np.array(picture.crop((left, top, left + wide, top + high))).reshape(high, wide, channels)


def normalise(images: Float[Tensor, "*n c height width"], how: Preprocess) -> Float[Tensor, "*n c height width"]:
    """From 0 ... 255 to what the model takes, in place: (x / 255 - mean) / std, in two passes instead of three."""
    scale, shift = constants(how)
    return images.mul_(scale).sub_(shift)


@lru_cache
def constants(how: Preprocess) -> tuple[Tensor, Tensor]:
    mean, std = torch.tensor(how.mean, dtype=torch.float64), torch.tensor(how.std, dtype=torch.float64)
    return (1 / (255 * std)).float()[:, None, None], (mean / std).float()[:, None, None]


def _cover(picture: Image.Image, how: Preprocess) -> tuple[int, int]:
    """Width and height: the whole size, or the smallest of the picture's own proportions that covers what is cropped."""
    high, wide = how.resized
    if how.squash:
        return wide, high
    whole = int if high == wide else round  # torchvision's way with one side, timm's with two
    if picture.width * high < picture.height * wide:
        return wide, max(high, whole(wide * picture.height / picture.width))
    return max(wide, whole(high * picture.width / picture.height)), high
