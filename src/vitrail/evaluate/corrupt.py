"""Image corruptions as pure functions: bytes in, bytes of the same shape out. n images, c channels, h by w.

Noise, blur, contrast and JPEG are the corruptions of ImageNet-C (Hendrycks and Dietterich 2019), computed as their code does;
dropped and shuffled cells are those of Naseer et al. 2021, and like theirs what is lost is black. Cells are fractions of the
image, not pixels: where they do not divide it, their edges lie on the nearest pixel.

Random numbers are drawn apart, for (seed, kind, index of the image): every model gets the same corrupted image, whatever else
is in the batch; and once for all severities, so that a higher severity is more of the same.
"""

import io
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int, UInt8
from numpy import ndarray
from PIL import Image
from torch import Tensor

from vitrail.augment.chance import bits, normals, uniforms

NOMINAL = 224  # side of the image in whose pixels a blur is given
TRUNCATE = 4.0  # standard deviations that a blur reaches, as in scipy
NOISE, DROP, OCCLUDE, SHUFFLE = 1, 2, 3, 4  # streams of the random generator

Pair = tuple[int, int]  # rows and columns


def draw_noise(seed: int, numbers: Int[ndarray, " n"], shape: Sequence[int]) -> Float32[Tensor, "n c h w"]:
    """Draw a standard normal number for each value of each image."""
    keys = bits(seed, NOISE, numbers, 0)[:, 0]
    return torch.from_numpy(np.stack([normals(key, math.prod(shape)) for key in keys])).view(len(numbers), *shape)


def draw_order(seed: int, kind: int, numbers: Int[ndarray, " n"], cells: int) -> Int[Tensor, "n cells"]:
    """Draw a permutation of the cells for each image."""
    first = cells * (cells - 1) // 2  # other random numbers for another number of cells
    return torch.from_numpy(np.argsort(uniforms(seed, kind, numbers, cells, first), axis=1, kind="stable"))


def draw_place(seed: int, numbers: Int[ndarray, " n"]) -> Float[ndarray, "n 2"]:
    """Draw a position in each image, down and across, each from [0, 1)."""
    return uniforms(seed, OCCLUDE, numbers, 2)


def noise(images: UInt8[Tensor, "n c h w"], drawn: Float32[Tensor, "n c h w"], deviation: float) -> UInt8[Tensor, "n c h w"]:
    """Add Gaussian noise to every value; the standard deviation is a fraction of the range from black to white."""
    return _bytes(images + drawn * (255 * deviation))


def blur(images: UInt8[Tensor, "n c h w"], deviation: float) -> UInt8[Tensor, "n c h w"]:
    """Blur by a Gaussian, its deviation in pixels of an image whose short side is 224; the border is replicated."""
    high, wide = images.shape[-2:]
    width = deviation * min(high, wide) / NOMINAL
    down, across = _smoothing(high, width), _smoothing(wide, width)
    # one by one: a batched product may sum in another order, and an image must not depend on its batch
    return torch.stack([_bytes(down @ image.float() @ across.T) for image in images]) if len(images) else images


def contrast(images: UInt8[Tensor, "n c h w"], factor: float) -> UInt8[Tensor, "n c h w"]:
    """Scale the difference from the channel's mean by a factor."""
    mean = images.sum(dim=(2, 3), keepdim=True) / (images.shape[2] * images.shape[3])
    return _bytes((images - mean) * factor + mean)


def jpeg(images: UInt8[Tensor, "n c h w"], quality: int) -> UInt8[Tensor, "n c h w"]:
    """Compress and decompress with Pillow."""
    return torch.stack([_compressed(image, quality) for image in images]) if len(images) else images


def drop(images: UInt8[Tensor, "n c h w"], order: Int[Tensor, "n cells"], grid: Pair, share: float) -> UInt8[Tensor, "n c h w"]:
    """Black out this fraction of the cells, rounded: the first ones of the order."""
    lost = torch.zeros(order.shape, dtype=torch.bool).scatter_(1, order[:, : round(share * order.shape[1])], True)
    rows, columns = (_cells(side, count)[0] for side, count in zip(images.shape[-2:], grid, strict=True))
    return _blackened(images, lost.view(-1, *grid)[:, rows][:, :, columns])


def occlude(images: UInt8[Tensor, "n c h w"], places: Float[ndarray, "n 2"], share: float) -> UInt8[Tensor, "n c h w"]:
    """Black out one block of this fraction of the area, with the aspect ratio of the image."""
    inside = []
    for axis, side in enumerate(images.shape[-2:]):
        length = round(math.sqrt(share) * side)
        start = torch.from_numpy(np.floor(places[:, axis] * (side - length + 1)))[:, None]
        pixels = torch.arange(side)
        inside.append((pixels >= start) & (pixels < start + length))
    return _blackened(images, inside[0][:, :, None] & inside[1][:, None, :])


def shuffle(images: UInt8[Tensor, "n c h w"], order: Int[Tensor, "n cells"], grid: Pair) -> UInt8[Tensor, "n c h w"]:
    """Permute the cells. Where two cells differ in size, by a pixel, the nearest pixels are taken."""
    high, wide = images.shape[-2:]
    (row, down), (column, across) = _cells(high, grid[0]), _cells(wide, grid[1])
    source = order.view(-1, *grid)[:, row][:, :, column]  # the source cell of each pixel
    y = _pixel(source // grid[1], down[:, None], high, grid[0])
    x = _pixel(source % grid[1], across, wide, grid[1])
    places = (y * wide + x).flatten(1)[:, None].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, places).view(images.shape)


def edges(side: int, cells: int) -> Int[Tensor, " edges"]:
    """Return where the cells begin, and where the last one ends."""
    return torch.tensor([round(number * side / cells) for number in range(cells + 1)])


def _cells(side: int, cells: int) -> tuple[Int[Tensor, " side"], Float[Tensor, " side"]]:
    """Return the cell of each pixel along a side, and the position of its centre in the cell, from 0 to 1."""
    limits, pixels = edges(side, cells), torch.arange(side)
    cell = torch.bucketize(pixels, limits[1:], right=True)
    return cell, (pixels - limits[cell] + 0.5) / (limits[cell + 1] - limits[cell])


def _pixel(cell: Int[Tensor, "n h w"], inside: Float[Tensor, "..."], side: int, cells: int) -> Int[Tensor, "n h w"]:
    limits = edges(side, cells)
    return limits[cell] + (inside * (limits[cell + 1] - limits[cell])).long()


def _blackened(images: UInt8[Tensor, "n c h w"], where: Bool[Tensor, "n h w"]) -> UInt8[Tensor, "n c h w"]:
    return images.masked_fill(where[:, None], 0)


def _bytes(values: Float[Tensor, "..."]) -> UInt8[Tensor, "..."]:
    return values.round().clamp(0, 255).byte()


def _compressed(image: UInt8[Tensor, "c h w"], quality: int) -> UInt8[Tensor, "c h w"]:
    stream = io.BytesIO()
    grey = image.shape[0] == 1
    Image.fromarray(image[0].numpy() if grey else image.permute(1, 2, 0).contiguous().numpy()).save(
        stream, "JPEG", quality=quality
    )
    with Image.open(stream) as read:
        pixels = torch.from_numpy(np.array(read))
    return pixels[None] if grey else pixels.permute(2, 0, 1)


@lru_cache(maxsize=32)
def _smoothing(side: int, deviation: float) -> Float32[Tensor, "side side"]:
    """Return the blur along one axis as a matrix, with a replicated border."""
    reach = int(TRUNCATE * deviation + 0.5)
    steps = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (steps / deviation) ** 2) if reach else np.ones(1)
    matrix = np.zeros((side, side))
    for step, weight in zip(steps, weights / weights.sum(), strict=True):
        np.add.at(matrix, (np.arange(side), np.clip(np.arange(side) + step, 0, side - 1)), weight)
    return torch.from_numpy(matrix).float()
