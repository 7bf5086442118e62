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
from vitrail.evaluate.corrupt import (
    DROP,
    SHUFFLE,
    Pair,
    blur,
    contrast,
    draw_noise,
    draw_order,
    draw_place,
    drop,
    jpeg,
    noise,
    occlude,
    shuffle,
)

SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
MOST = 5  # severities

Apply = Callable[[float], UInt8[Tensor, "n c h w"]]
Ready = Callable[[UInt8[Tensor, "n c h w"], Int[ndarray, " n"], int], Apply]  # images, their indices, the seed


@dataclass(frozen=True)
class Disturbance:
    name: str
    title: str
    unit: str  # of the strengths
    strengths: tuple[float, ...]  # severity 1 and up
    captions: tuple[str, ...]  # of each strength
    ready: Ready  # draws the random numbers, once for all strengths

    def severities(self, images: UInt8[Tensor, "n c h w"], numbers: Int[ndarray, " n"], seed: int) -> Iterator[Tensor]:
        """Yield the images at each severity."""
        apply = self.ready(images, numbers, seed)
        return map(apply, self.strengths)

    def at(self, severity: int, images: UInt8[Tensor, "n c h w"], numbers: Int[ndarray, " n"], seed: int = 0) -> Tensor:
        """Return the images at one severity; 0 leaves them unchanged."""
        return self.ready(images, numbers, seed)(self.strengths[severity - 1]) if severity else images


def disturbances(grid: Pair) -> tuple[Disturbance, ...]:
    """Return all corruptions, with the cells of this grid. A grid of one cell has no shuffling."""
    cuts = {float(math.prod(cells)): cells for cells in coarser(grid)}
    every = (
        _plain("noise", "Noise", "std, as a fraction of white", (0.08, 0.12, 0.18, 0.26, 0.38), _noise),
        _plain("blur", "Blur", "std, in pixels of 224", (1.0, 2.0, 3.0, 4.0, 6.0), lambda x, *_: partial(blur, x)),
        _plain("contrast", "Contrast", "fraction kept", (0.4, 0.3, 0.2, 0.1, 0.05), lambda x, *_: partial(contrast, x)),
        _plain("jpeg", "JPEG", "quality", (25.0, 18.0, 15.0, 10.0, 7.0), lambda x, *_: lambda quality: jpeg(x, int(quality))),
        _plain("drop", "Patch drop", "fraction of the cells", SHARES, partial(_drop, grid)),
        _plain("occlude", "Occlusion", "fraction of the area", SHARES, _occlude),
        Disturbance(
            "shuffle", "Shuffle", "cells", tuple(cuts), tuple(f"{rows}×{columns}" for rows, columns in cuts.values()),
            partial(_shuffle, cuts),
        ),
    )  # fmt: skip
    return tuple(each for each in every if each.strengths)


def coarser(grid: Pair) -> list[Pair]:
    """Return the grids to shuffle in, coarse to fine: squares of whole cells, the grid itself the last; at most five."""
    whole = math.gcd(*grid)
    cuts = [(grid[0] // each, grid[1] // each) for each in range(whole, 0, -1) if whole % each == 0]
    cuts = [cut for cut in cuts if math.prod(cut) > 1]
    if len(cuts) <= MOST:
        return cuts
    return [cuts[int(place)] for place in np.linspace(0, len(cuts) - 1, MOST).round()]


def check_grid(grid: Pair, image: Pair) -> None:
    if min(grid) < 1 or any(cells > side for cells, side in zip(grid, image, strict=True)):
        works = "x".join(str(max(min(cells, side), 1)) for cells, side in zip(grid, image, strict=True))
        raise VitrailError(
            f"the grid must have at least one cell and none smaller than a pixel, got {grid[0]}x{grid[1]} for images of "
            f"{image[0]}x{image[1]}; try {works}"
        )


def _plain(name: str, title: str, unit: str, strengths: tuple[float, ...], ready: Ready) -> Disturbance:
    captions = tuple(f"{each:.0%}" if strengths is SHARES else f"{each:g}" for each in strengths)
    return Disturbance(name, title, unit, strengths, captions, ready)


def _noise(images: Tensor, numbers: ndarray, seed: int) -> Apply:
    return partial(noise, images, draw_noise(seed, numbers, images.shape[1:]))


def _drop(grid: Pair, images: Tensor, numbers: ndarray, seed: int) -> Apply:
    return partial(drop, images, draw_order(seed, DROP, numbers, math.prod(grid)), grid)


def _occlude(images: Tensor, numbers: ndarray, seed: int) -> Apply:
    return partial(occlude, images, draw_place(seed, numbers))


def _shuffle(cuts: dict[float, Pair], images: Tensor, numbers: ndarray, seed: int) -> Apply:
    return lambda cells: shuffle(images, draw_order(seed, SHUFFLE, numbers, int(cells)), cuts[cells])
