"""Preprocess one image: resize, crop or pad, normalise. h w before it is resized, c channels."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int16, Num
from numpy import ndarray
from PIL import Image
from torch import Tensor

from vitrail.augment.crop import crop_mask, move_boxes
from vitrail.data.bad_image import BadImage
from vitrail.data.band_files import array_format
from vitrail.data.decode import (
    MAX_IMAGE_PIXELS,
    SIDEWAYS_ORIENTATIONS,
    ImageSize,
    decode,
    decode_bands,
    stored_size,
    to_pil,
)
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import IGNORED, Dataset

MAX_RESIZED_PIXELS = 2**24  # pixels of a resized image that is then cropped
RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def resize_and_crop(image: Image.Image, preprocess: Preprocess) -> Num[ndarray, "height width c"]:
    """Return the image at the model's input size, cropped, padded or stretched: to the pixel as torchvision and timm."""
    channels = len(preprocess.mean)
    image = image if preprocess.raw else image.convert("L" if channels == 1 else "RGB")
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


def to_pixels(
    content: bytes | ndarray, preprocess: Preprocess, max_pixels: int = MAX_IMAGE_PIXELS
) -> Num[ndarray, "height width c"]:
    """Return an image, encoded or as pixels, at the model's input size: 8-bit RGB or grey, or every band in float32."""
    return to_sized_pixels(content, preprocess, max_pixels)[0]


def to_sized_pixels(
    content: bytes | ndarray, preprocess: Preprocess, max_pixels: int = MAX_IMAGE_PIXELS
) -> tuple[Num[ndarray, "height width c"], ImageSize]:
    """Return what ``to_pixels`` does, and the size of the upright image itself."""
    if not preprocess.raw:
        image = decode(content, max_pixels=max_pixels) if isinstance(content, bytes) else to_pil(content)
        return resize_and_crop(image, preprocess), (image.height, image.width)
    bands = decode_model_bands(content, preprocess, max_pixels)
    planes = (Image.fromarray(bands[..., band].astype(np.float32)) for band in range(bands.shape[2]))  # Pillow clips no floats
    resized = [resize_and_crop(plane, one) for plane, one in zip(planes, _split_bands(preprocess), strict=True)]
    return np.concatenate(resized, axis=2), (bands.shape[0], bands.shape[1])


def decode_model_bands(
    content: bytes | ndarray, preprocess: Preprocess, max_pixels: int = MAX_IMAGE_PIXELS
) -> Num[ndarray, "h w c"]:
    """Decode the bands of an image, which must be as many as the model takes."""
    bands = decode_bands(content, max_pixels=max_pixels)
    if bands.shape[2] != preprocess.channels:
        kind = array_format(bands) or "8-bit RGB"
        raise BadImage(
            f"has {kind}, and {preprocess.channels} bands are needed; try a file of those that the model was trained on"
        )
    return bands


@lru_cache
def _split_bands(preprocess: Preprocess) -> tuple[Preprocess, ...]:
    """Return the preprocessing of each band alone."""
    return tuple(
        replace(preprocess, mean=(mean,), std=(std,)) for mean, std in zip(preprocess.mean, preprocess.std, strict=True)
    )


def crop_window(size: tuple[int, int], preprocess: Preprocess) -> tuple[tuple[int, int], tuple[float, float, float, float]]:
    """Return the size an image of this width and height is resized to, and the box of the original that the model sees: left,
    top, right, bottom. With ``fit="pad"`` the box is larger than the image, by the padding."""
    height, width = preprocess.image_size
    resized = _resize_target(size, preprocess)
    x_scale, y_scale = size[0] / resized[0], size[1] / resized[1]
    left, top = _crop_corner(resized, preprocess)
    return resized, (left * x_scale, top * y_scale, left * x_scale + width * x_scale, top * y_scale + height * y_scale)


def mask_to_input(mask: Int16[ndarray, "h w"], preprocess: Preprocess) -> Int16[ndarray, "height width"]:
    """Return a mask at the model's input size, cropped, padded or stretched as its image, and never interpolated."""
    _, (left, top, right, bottom) = crop_window((mask.shape[1], mask.shape[0]), preprocess)
    return crop_mask(mask, (top, left, bottom - top, right - left), preprocess.image_size, False, IGNORED)


def upright_size(dataset: Dataset, index: int, content: bytes | ndarray | None = None) -> ImageSize:
    """Return height and width of an upright image, of a file from its header; ``content``: the image, if it is read already."""
    if (sizes := dataset.sizes(np.array([index]))) is not None:
        return int(sizes[0, 0]), int(sizes[0, 1])
    content = dataset.read(index) if content is None else content
    if isinstance(content, ndarray):
        return content.shape[0], content.shape[1]
    (height, width), orientation = stored_size(content)
    return (width, height) if orientation in SIDEWAYS_ORIENTATIONS else (height, width)


def boxes_to_input(boxes: Float[ndarray, "k 4"], size: ImageSize, preprocess: Preprocess) -> Float[ndarray, "k 4"]:
    """Return boxes of an image of this size in pixels of the model's input, as the image is cropped, padded or stretched to it;
    not clipped."""
    _, (left, top, right, bottom) = crop_window((size[1], size[0]), preprocess)
    return move_boxes(boxes, (top, left, bottom - top, right - left), preprocess.image_size)


def normalise(images: Float[Tensor, "*n c height width"], preprocess: Preprocess) -> Float[Tensor, "*n c height width"]:
    """Normalise in place, in two passes instead of three: (x / 255 - mean) / std for 8 bits, (x - mean) / std for bands."""
    scale, shift = scale_and_shift(preprocess)
    return images.mul_(scale).sub_(shift)


@lru_cache
def scale_and_shift(preprocess: Preprocess) -> tuple[Tensor, Tensor]:
    mean, std = torch.tensor(preprocess.mean, dtype=torch.float64), torch.tensor(preprocess.std, dtype=torch.float64)
    return (1 / (preprocess.scale * std)).float()[:, None, None], (mean / std).float()[:, None, None]


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
