"""Tasks whose outputs belong to places of an image, and so have to be brought back to its own size.

b images, n patches, k classes; the model's input is height by width, an image h high and w wide.
"""

from collections.abc import Iterator

import torch
from einops import rearrange
from jaxtyping import Float, Int16
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.decode import ImageSize
from vitrail.data.preprocess import Preprocess
from vitrail.data.transforms import crop_window
from vitrail.layers.position import Grid
from vitrail.models.config import Pair

MAX_BAND_NUMEL = 2**20  # numbers of a band of rows: 4 MiB, whatever the size of the image; larger ones are no faster
Window = tuple[float, float, float, float]  # the part of an image that an input shows: left, top, right, bottom


def upsample_patches(outputs: Float[Tensor, "b n k"], grid: Grid, patch: Pair) -> Float[Tensor, "b k height width"]:
    """Interpolate outputs of patches bilinearly to the pixels."""
    maps = rearrange(outputs, "b (y x) k -> b k y x", y=grid[0])
    return F.interpolate(maps, (grid[0] * patch[0], grid[1] * patch[1]), mode="bilinear")


def restored_bands(
    outputs: Float[Tensor, "k height width"], preprocess: Preprocess, size: ImageSize
) -> Iterator[tuple[slice, Float[Tensor, "k rows w"]]]:
    """Yield outputs at the size of an image, a band of its rows at a time: the preprocessing undone, bilinearly, as
    ``F.interpolate`` does with half-pixel centres. What a centre crop has cut off repeats the border."""
    height, width = size
    _, window = crop_window((width, height), preprocess)
    for band in row_bands(slice(0, height), outputs.shape[0] * max(width, outputs.shape[2])):
        yield band, restored_part(outputs, window, band, slice(0, width))


def classes_of_pixels(scores: Float[Tensor, "*b k height width"]) -> Int16[Tensor, "*b height width"]:
    """Return the class of the largest score of each pixel, of equal ones the first: ``argmax`` over the classes, which on a CPU
    is several times as slow over an axis that is not the last."""
    best = scores[..., 0, :, :]
    labels = torch.zeros(best.shape, dtype=torch.int16, device=scores.device)
    for label in range(1, scores.shape[-3]):
        score = scores[..., label, :, :]
        labels.masked_fill_(score > best, label)
        best = torch.maximum(best, score)
    return labels


def row_bands(rows: slice, numel_per_row: int) -> Iterator[slice]:
    """Yield rows in bands of at most ``MAX_BAND_NUMEL`` numbers, but at least one row."""
    rows_at_a_time = max(MAX_BAND_NUMEL // max(numel_per_row, 1), 1)
    for start in range(rows.start, rows.stop, rows_at_a_time):
        yield slice(start, min(start + rows_at_a_time, rows.stop))


def restored_part(
    outputs: Float[Tensor, "k height width"], window: Window, rows: slice, columns: slice
) -> Float[Tensor, "k rows columns"]:
    """Return the outputs of an input that shows a window of an image, at some of the image's pixels."""
    left, top, right, bottom = window
    first_row, next_row, down = _neighbours(rows, top, bottom, outputs.shape[1], outputs)
    first_column, next_column, across = _neighbours(columns, left, right, outputs.shape[2], outputs)
    between = torch.lerp(outputs[:, first_row], outputs[:, next_row], down[:, None])
    return torch.lerp(between[..., first_column], between[..., next_column], across)


def _neighbours(pixels: slice, start: float, end: float, inputs: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each pixel of a side of an image the two nearest of the model's input, and the fraction of the way between
    them; the input shows the image from ``start`` to ``end``."""
    centres = torch.arange(pixels.start, pixels.stop, dtype=torch.float64) + 0.5
    position = ((centres - start) * (inputs / (end - start)) - 0.5).clamp(0, inputs - 1)
    first = position.floor().long()
    return first, (first + 1).clamp(max=inputs - 1), (position - first).to(like.dtype)
