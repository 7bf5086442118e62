"""Preprocess one image: resize, crop or pad, normalise."""

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image
from torch import Tensor

from vitrail.data.preprocess import Preprocess

MAX_RESIZED_PIXELS = 2**24  # pixels of a resized image that is then cropped
RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def resize_and_crop(image: Image.Image, preprocess: Preprocess) -> UInt8[ndarray, "height width c"]:
    """Return the image at the model's input size, cropped, padded or stretched: to the pixel as torchvision and timm."""
    channels = len(preprocess.mean)
    image = image.convert("L" if channels == 1 else "RGB")
    height, width = preprocess.image_size
    resized, box = crop_window(image.size, preprocess)
    if preprocess.fit != "pad" and _is_extreme(resized):  # only the crop is resized
        return np.array(image.resize((width, height), RESAMPLING[preprocess.interpolation], box)).reshape(
            height, width, channels
        )
    if resized != image.size:
        image = image.resize(resized, RESAMPLING[preprocess.interpolation])
    left, top = (int(side) for side in _crop_corner(resized, preprocess))
    if preprocess.fit == "pad":
        colour = preprocess.pad_colour[:3]
        canvas = Image.new(image.mode, (width, height), colour if len(image.getbands()) > 1 else colour[0])
        canvas.paste(image, (-left, -top))
        image, left, top = canvas, 0, 0
    return np.array(image.crop((left, top, left + width, top + height))).reshape(height, width, channels)


def crop_window(size: tuple[int, int], preprocess: Preprocess) -> tuple[tuple[int, int], tuple[float, float, float, float]]:
    """Return the size an image of this width and height is resized to, and the box of the original that the model sees: left,
    top, right, bottom. With ``fit="pad"`` the box is larger than the image, by the padding."""
    height, width = preprocess.image_size
    resized = _resize_target(size, preprocess)
    x_scale, y_scale = size[0] / resized[0], size[1] / resized[1]
    left, top = _crop_corner(resized, preprocess)
    return resized, (left * x_scale, top * y_scale, left * x_scale + width * x_scale, top * y_scale + height * y_scale)


def normalise(images: Float[Tensor, "*n c height width"], preprocess: Preprocess) -> Float[Tensor, "*n c height width"]:
    """Normalise values from 0 ... 255 in place: (x / 255 - mean) / std, in two passes instead of three."""
    scale, shift = scale_and_shift(preprocess)
    return images.mul_(scale).sub_(shift)


@lru_cache
def scale_and_shift(preprocess: Preprocess) -> tuple[Tensor, Tensor]:
    mean, std = torch.tensor(preprocess.mean, dtype=torch.float64), torch.tensor(preprocess.std, dtype=torch.float64)
    return (1 / (255 * std)).float()[:, None, None], (mean / std).float()[:, None, None]


def _resize_target(size: tuple[int, int], preprocess: Preprocess) -> tuple[int, int]:
    """Return the width and height to resize to: exact, or of the image's aspect ratio the smallest that covers the crop or the
    largest that fits into the input."""
    height, width = preprocess.resize_to
    if preprocess.fit == "stretch":
        return width, height
    if preprocess.fit == "pad":
        scale = max(size[0] / width, size[1] / height)
        return max(round(size[0] / scale), 1), max(round(size[1] / scale), 1)
    to_int = int if height == width else round  # torchvision rounds this way with one side, timm with two
    if size[0] * height < size[1] * width:
        return width, max(height, to_int(width * size[1] / size[0]))
    return max(width, to_int(height * size[0] / size[1])), height


def _is_extreme(resized: tuple[int, int]) -> bool:
    """Whether an image has so extreme an aspect ratio that most of the resized pixels would be cropped away."""
    return resized[0] * resized[1] > MAX_RESIZED_PIXELS


def _crop_corner(resized: tuple[int, int], preprocess: Preprocess) -> tuple[int, int] | tuple[float, float]:
    """Return left and top of the centre crop, negative by the padding; whole pixels unless only the crop is resized."""
    if preprocess.fit == "pad":
        return -((preprocess.image_size[1] - resized[0]) // 2), -((preprocess.image_size[0] - resized[1]) // 2)
    left, top = (resized[0] - preprocess.crop_size[1]) / 2, (resized[1] - preprocess.crop_size[0]) / 2
    return (left, top) if _is_extreme(resized) else (round(left), round(top))
