"""The suite of image corruptions that a model is tested under, in severities from mild to severe. n images, c channels, h by w.

Four corruptions in the five severities of ImageNet-C (Hendrycks and Dietterich 2019), and three that lose or permute parts of
the image (Naseer et al. 2021). Dropping and occluding lose the same fractions, scattered or in one block.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.evaluation.corruption_ops import (
    DROP_STREAM,
    SHUFFLE_STREAM,
    GridSize,
    add_noise,
    draw_noise,
    draw_permutations,
    draw_positions,
    drop_cells,
    gaussian_blur,
    jpeg_compress,
    occlude,
    reduce_contrast,
    shuffle_cells,
)

FRACTIONS = (0.1, 0.3, 0.5, 0.7, 0.9)
MAX_SEVERITIES = 5

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

    def iter_severities(self, images: UInt8[Tensor, "n c h w"], indices: Int[ndarray, " n"], seed: int) -> Iterator[Tensor]:
        """Yield the images at each severity."""
        apply = self.prepare(images, indices, seed)
        return map(apply, self.strengths)

    def at_severity(
        self, severity: int, images: UInt8[Tensor, "n c h w"], indices: Int[ndarray, " n"], seed: int = 0
    ) -> Tensor:
        """Return the images at one severity; 0 leaves them unchanged."""
        return self.prepare(images, indices, seed)(self.strengths[severity - 1]) if severity else images


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
        Corruption("shuffle", "Shuffle", "cells", tuple(shuffle_sizes), shuffle_captions, shuffle),
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
