"""Crops and flips: drawn for many images at once, applied to images, masks and boxes (Szegedy et al. 2015).

A crop is top, left, height, width in pixels of the image. n images h high and w wide of c channels, new size H by W;
k boxes, each left, top, right, bottom.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int, Num
from numpy import ndarray
from torch import Tensor
from torch.nn import functional as F

ATTEMPTS = 10
CROP_SLOTS = 2 * ATTEMPTS + 2
Limits = tuple[float, float] | tuple[ndarray, ndarray]  # lowest and highest, of all images or of each (n 1)


def draw_random_resized_crop(
    u: Float[ndarray, "n slots"], sizes: Int[ndarray, "n 2"], scale: tuple[float, float], ratio: tuple[float, float]
) -> Int[ndarray, "n 4"]:
    """Draw a crop by its fraction of the image area and its aspect ratio (width / height): the first of ten tries that fits.

    If none fits, take the largest centre crop within the aspect ratios.
    """
    return _draw_box(u, sizes, scale, ratio)


def draw_scale_jitter(
    u: Float[ndarray, "n slots"], sizes: Int[ndarray, "n 2"], scale: tuple[float, float]
) -> Int[ndarray, "n 4"]:
    """Draw a crop of the image's own aspect ratio (large-scale jitter; Ghiasi et al. 2021).

    ``scale``: of the image, on a logarithmic scale. An enlarged one is cropped at a random place; a reduced one lies at a
    random place of a crop that is larger than the image.
    """
    low, high = np.log(scale[0]), np.log(scale[1])
    factor = np.exp(low + (high - low) * u[:, :1])
    crop_size = np.maximum(np.rint(sizes / factor), 1)
    spare = sizes - crop_size  # negative where the crop is larger
    corner = np.where(spare >= 0, np.floor(u[:, 1:3] * (spare + 1)), np.ceil(u[:, 1:3] * (spare - 1)))
    return np.concatenate([corner, crop_size], 1).astype(np.int64)


def draw_letterbox(
    u: Float[ndarray, "n slots"],
    sizes: Int[ndarray, "n 2"],
    canvas: tuple[int, int],
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Int[ndarray, "n 4"]:
    """Draw the box of a canvas that a whole image is resized into: top, left, height, width.

    ``scale``: area of the box as a fraction of the largest one of the image's aspect ratio; ``ratio``: change of that aspect
    ratio. If no try fits, take the largest box, centred. An image of the canvas's own aspect ratio gets the boxes that
    ``draw_random_resized_crop`` cuts out of the canvas.
    """
    aspect = sizes[:, 1:] / sizes[:, :1]
    relative = aspect * canvas[0] / canvas[1]
    largest = np.minimum(relative, 1 / relative)
    canvases = np.broadcast_to(np.array(canvas), (len(u), 2))
    return _draw_box(u, canvases, (scale[0] * largest, scale[1] * largest), (ratio[0] * aspect, ratio[1] * aspect))


def _draw_box(u: ndarray, sizes: ndarray, scale: Limits, ratio: Limits) -> Int[ndarray, "n 4"]:
    high, wide = sizes[:, :1].astype(float), sizes[:, 1:].astype(float)
    tries = u[:, : 2 * ATTEMPTS].reshape(-1, 2, ATTEMPTS)
    pixels = high * wide * (scale[0] + (scale[1] - scale[0]) * tries[:, 0])
    low, top = np.log(ratio[0]), np.log(ratio[1])
    aspect = np.exp(low + (top - low) * tries[:, 1])
    heights, widths = np.rint(np.sqrt(pixels / aspect)), np.rint(np.sqrt(pixels * aspect))
    fits = (heights > 0) & (widths > 0) & (heights <= high) & (widths <= wide)
    first = fits.argmax(1)
    row = np.arange(len(u))
    crop_size = np.stack([heights[row, first], widths[row, first]], 1)
    any_fits = fits[row, first]
    position = u[:, 2 * ATTEMPTS :]
    if not any_fits.all():
        crop_size = np.where(any_fits[:, None], crop_size, _centre_crop_size(sizes, ratio))
        position = np.where(any_fits[:, None], position, 0.5)
    # floor of a number below spare + 1, so all positions are equally likely; the centre is rounded as in torchvision
    spare = sizes - crop_size
    corner = np.where(any_fits[:, None], np.floor(position * (spare + 1)), spare // 2)
    return np.concatenate([corner, crop_size], 1).astype(np.int64)


def _centre_crop_size(sizes: ndarray, ratio: Limits) -> ndarray:
    high, wide = sizes[:, :1], sizes[:, 1:]
    narrower, wider = wide / high < ratio[0], wide / high > ratio[1]
    heights = np.where(narrower, np.maximum(np.rint(wide / ratio[0]), 1), high)
    widths = np.where(wider, np.maximum(np.rint(high * ratio[1]), 1), wide)
    return np.concatenate([np.minimum(heights, high), np.minimum(widths, wide)], 1)


def draw_padded_crop(u: Float[ndarray, "n slots"], size: tuple[int, int], pad: int) -> Int[ndarray, "n 4"]:
    """Draw a crop of the full size from an image padded with ``pad`` black pixels; the corner may lie outside the image."""
    corner = np.floor(u[:, :2] * (2 * pad + 1)) - pad
    return np.concatenate([corner, np.broadcast_to(size, (len(u), 2))], 1).astype(np.int64)


def padded_crop(
    images: Num[ndarray, "n h w c"], crops: Int[ndarray, "n 4"], flips: ndarray, pad: int, fill: Sequence[int | float] = (0.0,)
) -> Num[ndarray, "n h w c"]:
    """Apply the crops of ``draw_padded_crop`` and the flips; pixels are moved, never interpolated. ``fill``: the padding's
    value, or one per channel."""
    count, high, wide, channels = images.shape
    padded = np.full((count, high + 2 * pad, wide + 2 * pad, channels), fill, images.dtype)
    padded[:, pad : pad + high, pad : pad + wide] = images
    cropped = np.empty_like(images)
    for row, (top, left, _, _), flipped in zip(range(count), (crops + pad).tolist(), flips.tolist(), strict=True):
        part = padded[row, top : top + high, left : left + wide]
        cropped[row] = part[:, ::-1] if flipped else part
    return cropped


def crop_resize(
    pixels: Num[ndarray, "h w c"], crop: tuple[int, int, int, int], size: tuple[int, int], flip: bool, interpolation: str
) -> Num[Tensor, "c H W"]:
    """Crop, resize with antialiasing and flip one image, 8-bit or bands. torch's kernels are vectorised forms of Pillow's."""
    top, left, high, wide = crop
    part = pixels[top : top + high, left : left + wide]
    if part.dtype != np.uint8:
        part = part.astype(np.float32)
    part = part if part.flags.writeable else part.copy()  # torch requires writeable memory, Pillow's is read-only
    planes = rearrange(torch.from_numpy(part), "h w c -> 1 c h w")
    if (high, wide) != size:
        planes = F.interpolate(planes, size, mode=interpolation, antialias=True)
    return planes[0].flip(2) if flip else planes[0]


def letterbox(
    pixels: Num[ndarray, "h w c"],
    box: tuple[int, int, int, int],
    size: tuple[int, int],
    flip: bool,
    interpolation: str,
    colour: tuple[int | float, ...],
) -> Num[Tensor, "c H W"]:
    """Resize one image with antialiasing into a box of a canvas of this size and colour, and flip it there."""
    top, left, high, wide = box
    dtype = torch.uint8 if pixels.dtype == np.uint8 else torch.float32
    canvas = torch.tensor(colour, dtype=dtype)[:, None, None].repeat(1, *size)
    whole = 0, 0, *pixels.shape[:2]
    canvas[:, top : top + high, left : left + wide] = crop_resize(pixels, whole, (high, wide), flip, interpolation)
    return canvas


def padded_crop_resize(
    pixels: Num[ndarray, "h w c"],
    crop: tuple[int, int, int, int],
    size: tuple[int, int],
    flip: bool,
    interpolation: str,
    colour: tuple[int | float, ...],
) -> Num[Tensor, "c H W"]:
    """Crop one image, with padding of this colour where the crop exceeds it, and resize and flip it."""
    top, left, high, wide = crop
    rows, columns = (
        (max(start, 0), min(start + length, side))
        for start, length, side in ((top, high, pixels.shape[0]), (left, wide, pixels.shape[1]))
    )
    if (rows[1] - rows[0], columns[1] - columns[0]) == (high, wide):
        return crop_resize(pixels, crop, size, flip, interpolation)
    y_scale, x_scale = size[0] / high, size[1] / wide
    first_row, first_column = round((rows[0] - top) * y_scale), round((columns[0] - left) * x_scale)
    part_size = (
        max(round((rows[1] - top) * y_scale) - first_row, 1),
        max(round((columns[1] - left) * x_scale) - first_column, 1),
    )
    box = min(first_row, size[0] - 1), min(first_column, size[1] - 1), *part_size
    inside = pixels[rows[0] : rows[1], columns[0] : columns[1]]
    canvas = letterbox(inside, box, size, False, interpolation, colour)
    return canvas.flip(2) if flip else canvas


def crop_resize_batch(
    images: Num[ndarray, "n h w c"], crops: Int[ndarray, "n 4"], flips: ndarray, size: tuple[int, int], interpolation: str
) -> Float[Tensor, "n c H W"]:
    """Crop, resize and flip many small images at once: the filter as one matrix for rows and one for columns.

    The values are those of the images, for 8 bits from 0 to 255, not rounded to integers.
    """
    rows = _resize_matrices(size[0], images.shape[1], interpolation)[_interval_index(crops[:, 0], crops[:, 2], images.shape[1])]
    columns = _resize_matrices(size[1], images.shape[2], interpolation)[
        _interval_index(crops[:, 1], crops[:, 3], images.shape[2])
    ]
    columns[flips] = columns[flips].flip(1)
    planes = rearrange(torch.from_numpy(images), "n h w c -> n c h w").float()
    resized = rows[:, None] @ planes @ columns[:, None].mT
    return resized.clamp_(0, 255) if images.dtype == np.uint8 else resized


def _interval_index(start: ndarray, length: ndarray, side: int) -> ndarray:
    """Return the index of an interval among all intervals of a side, those of length 1 first."""
    shorter = length - 1
    return shorter * side - shorter * (shorter - 1) // 2 + start


@lru_cache(maxsize=8)
def _resize_matrices(new: int, old: int, interpolation: str) -> Float[Tensor, "parts new old"]:
    """Return the resize matrix of every interval of a side; pixels outside the interval have weight 0."""
    length = np.repeat(np.arange(1, old + 1), np.arange(old, 0, -1))[:, None, None]
    start = np.concatenate([np.arange(old + 1 - size) for size in range(1, old + 1)])[:, None, None]
    pixels = np.arange(old)
    centre = (np.arange(new)[:, None] + 0.5) * (length / new) + start
    distance = np.abs(pixels + 0.5 - centre) / np.maximum(length / new, 1)  # downsampling averages over what a new pixel covers
    weight = np.maximum(1 - distance, 0) if interpolation == "bilinear" else _cubic(distance)
    weight = weight * ((pixels >= start) & (pixels < start + length))
    return torch.from_numpy((weight / weight.sum(2, keepdims=True)).astype(np.float32))


def _cubic(x: ndarray) -> ndarray:
    """Evaluate the cubic kernel of Keys (1981) with a = -1/2, as in Pillow."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def crop_mask(
    mask: Num[ndarray, "h w"], crop: tuple[int | float, ...], size: tuple[int, int], flip: bool, fill: int = 0
) -> Num[ndarray, "H W"]:
    """Crop, resize and flip a class mask with nearest-neighbour sampling; what lies outside of it has the value ``fill``."""
    top, left, high, wide = crop
    rows = np.floor(top + (np.arange(size[0]) + 0.5) * high / size[0]).astype(int)
    columns = np.floor(left + (np.arange(size[1]) + 0.5) * wide / size[1]).astype(int)
    inside = (rows >= 0) & (rows < mask.shape[0]), (columns >= 0) & (columns < mask.shape[1])
    part = mask[np.clip(rows, 0, mask.shape[0] - 1)][:, np.clip(columns, 0, mask.shape[1] - 1)]
    if not (inside[0].all() and inside[1].all()):
        part = np.where(inside[0][:, None] & inside[1], part, mask.dtype.type(fill))
    return part[:, ::-1] if flip else part


def move_boxes(
    boxes: Float[ndarray, "k 4"], crop: tuple[int | float, ...], size: tuple[int, int], flip: bool = False
) -> Float[ndarray, "k 4"]:
    """Crop, resize and flip boxes; those that are partly outside of the crop are not clipped."""
    top, left, high, wide = crop
    moved = (boxes - [left, top, left, top]) * np.array([size[1] / wide, size[0] / high] * 2)
    if flip:
        moved[:, [0, 2]] = size[1] - moved[:, [2, 0]]
    return moved


def clip_boxes(boxes: Float[ndarray, "k 4"], size: tuple[int, int]) -> Float[ndarray, "k 4"]:
    """Clip boxes to an image of this size; a box outside of it has no area."""
    return np.clip(boxes, 0, [size[1], size[0]] * 2).astype(boxes.dtype)


def crop_boxes(
    boxes: Float[ndarray, "k 4"], crop: tuple[int, int, int, int], size: tuple[int, int], flip: bool
) -> Float[ndarray, "k 4"]:
    """Crop, resize and flip boxes, clipped to the crop; a box outside it has no area."""
    return clip_boxes(move_boxes(boxes, crop, size, flip), size).astype(boxes.dtype)
