"""Image corruptions that a model is tested under, in severities from mild to severe. n images, c channels, h by w.

Noise, blur, contrast and JPEG are corruptions of ImageNet-C (Hendrycks and Dietterich 2019), in its five severities and
computed as its code does; dropped, occluded and shuffled parts are those of Naseer et al. 2021, and like theirs what is lost is
black. Dropping and occluding lose the same fractions, scattered or in one block. Cells are fractions of the image, not pixels:
where they do not divide it, their edges lie on the nearest pixel. All are pure functions: bytes in, bytes of this shape out.

Random numbers are drawn apart, for (seed, kind, index of the image): every model gets the same corrupted image, whatever else
is in the batch; and once for all severities, so that a higher severity is more of the same.
"""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int, UInt8
from numpy import ndarray
from PIL import Image
from torch import Tensor

from vitrail.augment.counter_rng import normals, random_bits, uniforms
from vitrail.errors import VitrailError

FRACTIONS = (0.1, 0.3, 0.5, 0.7, 0.9)
MAX_SEVERITIES = 5
BLUR_REFERENCE_SIZE = 224  # side of the image in whose pixels a blur is given
BLUR_TRUNCATE = 4.0  # standard deviations that a blur reaches, as in scipy
NOISE_STREAM, DROP_STREAM, OCCLUDE_STREAM, SHUFFLE_STREAM = 1, 2, 3, 4  # streams of the random generator

GridSize = tuple[int, int]  # rows and columns
ApplyAtStrength = Callable[[float], UInt8[Tensor, "n c h w"]]
# Of images, their indices and the seed.
PrepareCorruption = Callable[[UInt8[Tensor, "n c h w"], Int[ndarray, " n"], int], ApplyAtStrength]


@dataclass(frozen=True)
class Corruption:
    name: str
    title: str
    unit: str  # of the strengths
    strengths: tuple[float, ...]  # severity 1 and up
    captions: tuple[str, ...]  # of each strength
    prepare: PrepareCorruption  # draws the random numbers, once for all strengths
    moves_parts: bool = False  # of the image to other places, so that a mask no longer fits

    def iter_severities(self, images: UInt8[Tensor, "n c h w"], indices: Int[ndarray, " n"], seed: int) -> Iterator[Tensor]:
        """Yield the images at each severity."""
        apply = self.prepare(images, indices, seed)
        return map(apply, self.strengths)


def corruption_suite(grid: GridSize) -> tuple[Corruption, ...]:
    """Return all corruptions, with the cells of this grid. A grid of one cell has no shuffling."""
    shuffle_sizes = {float(math.prod(cells)): cells for cells in shuffle_grids(grid)}
    shuffle_captions = tuple(f"{rows}×{columns}" for rows, columns in shuffle_sizes.values())
    shuffle = partial(_prepare_shuffle, shuffle_sizes)
    corruptions = (
        _with_captions("noise", "Noise", "std, as a fraction of white", (0.08, 0.12, 0.18, 0.26, 0.38), _prepare_noise),
        _with_captions("blur", "Blur", "std, in pixels of 224", (1.0, 2.0, 3.0, 4.0, 6.0), _prepare_blur),
        _with_captions("contrast", "Contrast", "fraction kept", (0.4, 0.3, 0.2, 0.1, 0.05), _prepare_contrast),
        _with_captions("jpeg", "JPEG", "quality", (25.0, 18.0, 15.0, 10.0, 7.0), _prepare_jpeg),
        _with_captions("drop", "Patch drop", "fraction of the cells", FRACTIONS, partial(_prepare_drop, grid)),
        _with_captions("occlude", "Occlusion", "fraction of the area", FRACTIONS, _prepare_occlusion),
        Corruption("shuffle", "Shuffle", "cells", tuple(shuffle_sizes), shuffle_captions, shuffle, moves_parts=True),
    )
    return tuple(each for each in corruptions if each.strengths)


def shuffle_grids(grid: GridSize) -> list[GridSize]:
    """Return the grids to shuffle in, coarse to fine: squares of whole cells, the grid itself the last; at most five."""
    divisor = math.gcd(*grid)
    grids = [(grid[0] // each, grid[1] // each) for each in range(divisor, 0, -1) if divisor % each == 0]
    grids = [cut for cut in grids if math.prod(cut) > 1]
    if len(grids) <= MAX_SEVERITIES:
        return grids
    return [grids[int(position)] for position in np.linspace(0, len(grids) - 1, MAX_SEVERITIES).round()]


def check_grid(grid: GridSize, image: GridSize) -> None:
    if min(grid) < 1 or any(cells > side for cells, side in zip(grid, image, strict=True)):
        valid = "x".join(str(max(min(cells, side), 1)) for cells, side in zip(grid, image, strict=True))
        raise VitrailError(
            f"the grid must have at least one cell and none smaller than a pixel, got {grid[0]}x{grid[1]} for images of "
            f"{image[0]}x{image[1]}; try {valid}"
        )


def _with_captions(name: str, title: str, unit: str, strengths: tuple[float, ...], prepare: PrepareCorruption) -> Corruption:
    captions = tuple(f"{each:.0%}" if strengths is FRACTIONS else f"{each:g}" for each in strengths)
    return Corruption(name, title, unit, strengths, captions, prepare)


def _prepare_noise(images: Tensor, indices: ndarray, seed: int) -> ApplyAtStrength:
    return partial(add_noise, images, draw_noise(seed, indices, images.shape[1:]))


def _prepare_blur(images: Tensor, indices: ndarray, seed: int) -> ApplyAtStrength:
    return partial(gaussian_blur, images)


def _prepare_contrast(images: Tensor, indices: ndarray, seed: int) -> ApplyAtStrength:
    return partial(reduce_contrast, images)


def _prepare_jpeg(images: Tensor, indices: ndarray, seed: int) -> ApplyAtStrength:
    return lambda quality: jpeg_compress(images, int(quality))


def _prepare_drop(grid: GridSize, images: Tensor, indices: ndarray, seed: int) -> ApplyAtStrength:
    return partial(drop_cells, images, draw_permutations(seed, DROP_STREAM, indices, math.prod(grid)), grid)


def _prepare_occlusion(images: Tensor, indices: ndarray, seed: int) -> ApplyAtStrength:
    return partial(occlude, images, draw_positions(seed, indices))


def _prepare_shuffle(shuffle_sizes: dict[float, GridSize], images: Tensor, indices: ndarray, seed: int) -> ApplyAtStrength:
    return lambda cells: shuffle_cells(
        images, draw_permutations(seed, SHUFFLE_STREAM, indices, int(cells)), shuffle_sizes[cells]
    )


def draw_noise(seed: int, indices: Int[ndarray, " n"], shape: Sequence[int]) -> Float32[Tensor, "n c h w"]:
    """Draw a standard normal number for each value of each image."""
    keys = random_bits(seed, NOISE_STREAM, indices, 0)[:, 0]
    return torch.from_numpy(np.stack([normals(key, math.prod(shape)) for key in keys])).view(len(indices), *shape)


def draw_permutations(seed: int, stream: int, indices: Int[ndarray, " n"], cells: int) -> Int[Tensor, "n cells"]:
    """Draw a permutation of the cells for each image."""
    first_slot = cells * (cells - 1) // 2  # other random numbers for another number of cells
    return torch.from_numpy(np.argsort(uniforms(seed, stream, indices, cells, first_slot), axis=1, kind="stable"))


def draw_positions(seed: int, indices: Int[ndarray, " n"]) -> Float[ndarray, "n 2"]:
    """Draw a position in each image, down and across, each from [0, 1)."""
    return uniforms(seed, OCCLUDE_STREAM, indices, 2)


def add_noise(images: UInt8[Tensor, "n c h w"], samples: Float32[Tensor, "n c h w"], std: float) -> UInt8[Tensor, "n c h w"]:
    """Add Gaussian noise to every value; the standard deviation is a fraction of the range from black to white."""
    return _to_uint8(images + samples * (255 * std))


def gaussian_blur(images: UInt8[Tensor, "n c h w"], std: float) -> UInt8[Tensor, "n c h w"]:
    """Blur by a Gaussian, its deviation in pixels of an image whose short side is 224; the border is replicated."""
    height, width = images.shape[-2:]
    sigma = std * min(height, width) / BLUR_REFERENCE_SIZE
    vertical, horizontal = _blur_matrix(height, sigma), _blur_matrix(width, sigma)
    # one by one: a batched product may sum in another order, and an image must not depend on its batch
    return torch.stack([_to_uint8(vertical @ image.float() @ horizontal.T) for image in images]) if len(images) else images


def reduce_contrast(images: UInt8[Tensor, "n c h w"], factor: float) -> UInt8[Tensor, "n c h w"]:
    """Scale the difference from the channel's mean by a factor."""
    mean = images.sum(dim=(2, 3), keepdim=True) / (images.shape[2] * images.shape[3])
    return _to_uint8((images - mean) * factor + mean)


def jpeg_compress(images: UInt8[Tensor, "n c h w"], quality: int) -> UInt8[Tensor, "n c h w"]:
    """Compress and decompress with Pillow."""
    return torch.stack([_jpeg_roundtrip(image, quality) for image in images]) if len(images) else images


def drop_cells(
    images: UInt8[Tensor, "n c h w"], order: Int[Tensor, "n cells"], grid: GridSize, fraction: float
) -> UInt8[Tensor, "n c h w"]:
    """Black out this fraction of the cells, rounded: the first ones of the order."""
    dropped = torch.zeros(order.shape, dtype=torch.bool).scatter_(1, order[:, : round(fraction * order.shape[1])], True)
    rows, columns = (_cell_of_pixel(side, count)[0] for side, count in zip(images.shape[-2:], grid, strict=True))
    return _black_out(images, dropped.view(-1, *grid)[:, rows][:, :, columns])


def occlude(images: UInt8[Tensor, "n c h w"], positions: Float[ndarray, "n 2"], fraction: float) -> UInt8[Tensor, "n c h w"]:
    """Black out one block of this fraction of the area, with the aspect ratio of the image."""
    inside = []
    for axis, side in enumerate(images.shape[-2:]):
        length = round(math.sqrt(fraction) * side)
        start = torch.from_numpy(np.floor(positions[:, axis] * (side - length + 1)))[:, None]
        pixels = torch.arange(side)
        inside.append((pixels >= start) & (pixels < start + length))
    return _black_out(images, inside[0][:, :, None] & inside[1][:, None, :])


def shuffle_cells(images: UInt8[Tensor, "n c h w"], order: Int[Tensor, "n cells"], grid: GridSize) -> UInt8[Tensor, "n c h w"]:
    """Permute the cells. Where two cells differ in size, by a pixel, the nearest pixels are taken."""
    height, width = images.shape[-2:]
    (row, down), (column, across) = _cell_of_pixel(height, grid[0]), _cell_of_pixel(width, grid[1])
    source = order.view(-1, *grid)[:, row][:, :, column]  # the source cell of each pixel
    y = _source_pixel(source // grid[1], down[:, None], height, grid[0])
    x = _source_pixel(source % grid[1], across, width, grid[1])
    pixel_index = (y * width + x).flatten(1)[:, None].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, pixel_index).view(images.shape)


def cell_edges(side: int, cells: int) -> Int[Tensor, " edges"]:
    """Return where the cells begin, and where the last one ends."""
    return torch.tensor([round(number * side / cells) for number in range(cells + 1)])


def _cell_of_pixel(side: int, cells: int) -> tuple[Int[Tensor, " side"], Float[Tensor, " side"]]:
    """Return the cell of each pixel along a side, and the position of its centre in the cell, from 0 to 1."""
    limits, pixels = cell_edges(side, cells), torch.arange(side)
    cell = torch.bucketize(pixels, limits[1:], right=True)
    return cell, (pixels - limits[cell] + 0.5) / (limits[cell + 1] - limits[cell])


def _source_pixel(cell: Int[Tensor, "n h w"], inside: Float[Tensor, "..."], side: int, cells: int) -> Int[Tensor, "n h w"]:
    limits = cell_edges(side, cells)
    return limits[cell] + (inside * (limits[cell + 1] - limits[cell])).long()


def _black_out(images: UInt8[Tensor, "n c h w"], mask: Bool[Tensor, "n h w"]) -> UInt8[Tensor, "n c h w"]:
    return images.masked_fill(mask[:, None], 0)


def _to_uint8(values: Float[Tensor, "..."]) -> UInt8[Tensor, "..."]:
    return values.round().clamp(0, 255).byte()


def _jpeg_roundtrip(image: UInt8[Tensor, "c h w"], quality: int) -> UInt8[Tensor, "c h w"]:
    stream = io.BytesIO()
    grey = image.shape[0] == 1
    Image.fromarray(image[0].numpy() if grey else image.permute(1, 2, 0).contiguous().numpy()).save(
        stream, "JPEG", quality=quality
    )
    with Image.open(stream) as read:
        pixels = torch.from_numpy(np.array(read))
    return pixels[None] if grey else pixels.permute(2, 0, 1)


@lru_cache(maxsize=32)
def _blur_matrix(side: int, std: float) -> Float32[Tensor, "side side"]:
    """Return the blur along one axis as a matrix, with a replicated border."""
    radius = int(BLUR_TRUNCATE * std + 0.5)
    steps = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (steps / std) ** 2) if radius else np.ones(1)
    matrix = np.zeros((side, side))
    for step, weight in zip(steps, weights / weights.sum(), strict=True):
        np.add.at(matrix, (np.arange(side), np.clip(np.arange(side) + step, 0, side - 1)), weight)
    return torch.from_numpy(matrix).float()
