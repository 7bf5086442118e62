"""One colour per class of pixels, the same in every image, page and file. k a class.

The first eight are the palette of Okabe and Ito (2008) with dark red in place of black, told apart with every kind of colour
vision; each later one is the colour that is farthest, in OKLab, from all before it.
"""

from functools import cache

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from vitrail.plot.colormap import rgb_to_oklab

FIRST_COLOURS = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0), (240, 228, 66),
                 (115, 15, 45))  # fmt: skip
IGNORED_COLOURS = ((90, 90, 90), (190, 190, 190))  # of the stripes over pixels that count for no class
MAX_COLOURS = 1024  # after which they repeat, since more could not be told apart
MAX_BAND_PIXELS = 2**20  # pixels that are blended at a time


def class_colour(index: int) -> str:
    """Return the colour of a class as ``#rrggbb``, for a legend; of a negative number, the grey of ignored pixels."""
    red, green, blue = class_colours(index + 1)[index].tolist() if index >= 0 else IGNORED_COLOURS[0]
    return f"#{red:02x}{green:02x}{blue:02x}"


def class_colours(count: int) -> UInt8[ndarray, "k 3"]:
    """Return the colours of the classes from 0, as RGB; more classes do not change the first colours."""
    colours = _farthest_colours(min(1 << max(count - 1, 7).bit_length(), MAX_COLOURS))
    return np.resize(colours, (count, 3))


def overlay(image: UInt8[ndarray, "h w 3"], mask: Int[ndarray, "h w"], alpha: float = 0.5) -> UInt8[ndarray, "h w 3"]:
    """Draw a mask over its image: each pixel in the colour of its class, ``alpha`` opaque; ignored ones (below 0) striped."""
    colours = class_colours(max(int(mask.max(initial=0)), 0) + 1)
    width = max(max(mask.shape) // 48, 1)  # of a stripe, in pixels
    blended = np.empty(image.shape, np.uint8)
    rows_at_a_time = max(MAX_BAND_PIXELS // max(mask.shape[1], 1), 1)
    for start in range(0, mask.shape[0], rows_at_a_time):
        band = slice(start, start + rows_at_a_time)
        diagonals = start + np.add.outer(*map(np.arange, mask[band].shape))
        stripes = np.array(IGNORED_COLOURS, np.uint8)[diagonals // width % 2]
        drawn = np.where((mask[band] < 0)[..., None], stripes, colours[np.maximum(mask[band], 0)])
        blended[band] = np.round((1 - alpha) * image[band] + alpha * drawn)
    return blended


@cache
def _farthest_colours(count: int) -> UInt8[ndarray, "k 3"]:
    """Return the first colours, then repeatedly the one farthest from all before it, among those that are not pale or dark."""
    steps = np.arange(0, 256, 8)
    grid = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(-1, 3).astype(np.uint8)
    lab = rgb_to_oklab(grid)
    kept = (lab[:, 0] > 0.35) & (lab[:, 0] < 0.93) & (np.linalg.norm(lab[:, 1:], axis=1) > 0.06)
    grid, lab = grid[kept], lab[kept]
    colours = [np.array(colour, np.uint8) for colour in FIRST_COLOURS]
    nearest = np.full(len(grid), np.inf)
    for before in rgb_to_oklab(np.stack(colours)):
        nearest = np.minimum(nearest, np.linalg.norm(lab - before, axis=1))
    while len(colours) < min(count, len(grid)):
        farthest = int(nearest.argmax())
        colours.append(grid[farthest])
        nearest = np.minimum(nearest, np.linalg.norm(lab - lab[farthest], axis=1))
    return np.stack(colours)
