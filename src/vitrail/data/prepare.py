"""A picture as a model sees it."""

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vitrail.data.preprocess import Preprocess

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def prepare(picture: Image.Image, how: Preprocess) -> Float[Tensor, "c height width"]:
    """Resize and crop as torchvision and timm do, to the pixel; scale and normalise."""
    picture = picture.convert("L" if len(how.mean) == 1 else "RGB")
    high, wide = how.image
    picture = picture.resize(_cover(picture, how), FILTERS[how.interpolation])
    left, top = round((picture.width - wide) / 2), round((picture.height - high) / 2)
    picture = picture.crop((left, top, left + wide, top + high))
    pixels = torch.from_numpy(np.array(picture, dtype=np.float32).reshape(high, wide, -1)) / 255
    mean, std = torch.tensor(how.mean), torch.tensor(how.std)
    return rearrange((pixels - mean) / std, "h w c -> c h w")


def _cover(picture: Image.Image, how: Preprocess) -> tuple[int, int]:
    """Width and height: the whole size, or the smallest of the picture's own proportions that covers what is cropped."""
    high, wide = how.resized
    if how.squash:
        return wide, high
    whole = int if high == wide else round  # torchvision's way with one side, timm's with two
    if picture.width * high < picture.height * wide:
        return wide, max(high, whole(wide * picture.height / picture.width))
    return max(wide, whole(high * picture.width / picture.height)), high
