"""Tiles: windows of a large image that overlap, and the outputs of a model for them, joined to those of the image.

A tile has a size in pixels of the image, whatever the model's input size: a tile of 512 pixels shows objects to a model of 224
as an image of 512 pixels would that is resized as a whole. In every tile a pixel counts the more, the nearer it is to the
centre, so that no edge of a tile is seen in the result.

k classes; the model's input is height by width, an image h high and w wide, r rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Num
from numpy import ndarray
from torch import Tensor

from vitrail.data.decode import ImageSize
from vitrail.data.preprocess import Preprocess
from vitrail.data.transforms import crop_window, to_pixels
from vitrail.errors import VitrailError
from vitrail.inference.predictor import Predictor
from vitrail.tasks.dense import restored_part, row_bands

TileWindow = tuple[int, int, int, int]  # left, top, right, bottom
TileSize = int | tuple[int, int] | str | None  # height and width, or "auto" or "none"
DEFAULT_OVERLAP, MAX_OVERLAP = 0.25, 0.9
MIN_TILE = 8  # pixels
MIN_ENLARGEMENT = 2.0  # of the training images, from which on "auto" takes tiles


@dataclass(frozen=True)
class Tiling:
    """How large images are cut into tiles."""

    size: ImageSize  # of a tile, in pixels of the image
    overlap: float  # fraction of a tile that its neighbour shows as well
    grid: ImageSize  # patches of the model's input, by whole numbers of which tiles lie apart
    min_ratio: float = 1.0  # an image that is not larger than this many tiles, in both directions, is predicted as a whole

    def applies_to(self, size: ImageSize) -> bool:
        """Whether an image of this size is cut into tiles."""
        return size[0] > self.min_ratio * self.size[0] or size[1] > self.min_ratio * self.size[1]

    def rows(self, size: ImageSize) -> list[list[TileWindow]]:
        """Return the windows of an image, from the top left on. They lie beyond it only where it is smaller than a tile."""
        height, width = self.size
        tops, lefts = (self._starts(side, axis) for axis, side in enumerate(size))
        return [[(left, top, left + width, top + height) for left in lefts] for top in tops]

    def _starts(self, side: int, axis: int) -> list[int]:
        """Return the first pixel of each tile along one side of an image; the last tile ends where the image does."""
        tile, patches = self.size[axis], self.grid[axis]
        if side <= tile:
            return [-((tile - side) // 2)]
        stride = tile / patches * max(int(patches * (1 - self.overlap)), 1)
        return [min(round(number * stride), side - tile) for number in range(ceil((side - tile) / stride) + 1)]


def choose_tiling(tile: TileSize, overlap: float, predictor: Predictor) -> Tiling | None:
    """Return the tiling for what a user has asked for; None: every image is predicted as a whole."""
    if not 0 <= overlap <= MAX_OVERLAP:
        raise VitrailError(f"overlap must be from 0 to {MAX_OVERLAP}, got {overlap}; try overlap={DEFAULT_OVERLAP}")
    if tile is None or tile == "none":
        return None
    if not predictor.task.config.is_dense:
        kind = predictor.task.config.name
        raise VitrailError(
            f"tiles are for models that predict masks or boxes, and {predictor.source} is a model for {kind}; try tile=none"
        )
    height, width = predictor.preprocess.image_size
    patch = getattr(predictor.config, "patch_stride", (1, 1))
    tiling = Tiling((0, 0), float(overlap), (max(height // patch[0], 1), max(width // patch[1], 1)))
    if tile == "auto":
        return replace(tiling, size=training_window(predictor), min_ratio=MIN_ENLARGEMENT)
    sides = (tile, tile) if isinstance(tile, int) else tile
    if not (isinstance(sides, tuple) and len(sides) == 2 and all(isinstance(side, int) and side >= MIN_TILE for side in sides)):
        raise VitrailError(
            f"tile must be auto, none, or height and width from {MIN_TILE} pixels on, got {tile!r}; try tile=512"
        )
    return replace(tiling, size=sides)


def training_window(predictor: Predictor) -> ImageSize:
    """Return the size of the part of a training image that the model's input has shown, for the image of median size."""
    recorded = predictor.metadata.get("dataset")
    sides = recorded.get("image_size") if isinstance(recorded, dict) else None
    if not (isinstance(sides, list) and len(sides) == 2 and all(isinstance(side, int) and side > 0 for side in sides)):
        raise VitrailError(
            f"{predictor.source} does not record how large its training images were, which tile=auto needs; name the size of a "
            f"tile in pixels: tile={4 * max(predictor.preprocess.image_size)}"
        )
    height, width = sides
    _, (left, top, right, bottom) = crop_window((width, height), predictor.preprocess)
    return max(round(bottom - top), MIN_TILE), max(round(right - left), MIN_TILE)


def cut_tile(pixels: Num[ndarray, "h w c"], window: TileWindow, preprocess: Preprocess) -> Num[ndarray, "height width c"]:
    """Return a window of an image as the model's input, with the padding's colour where the image has ended."""
    left, top, right, bottom = window
    height, width = pixels.shape[:2]
    part = pixels[max(top, 0) : min(bottom, height), max(left, 0) : min(right, width)]
    if part.shape[:2] != (bottom - top, right - left):
        canvas = np.empty((bottom - top, right - left, pixels.shape[2]), pixels.dtype)
        canvas[:] = np.resize(np.array(preprocess.pad_colour), pixels.shape[2])
        canvas[max(-top, 0) :, max(-left, 0) :][: part.shape[0], : part.shape[1]] = part
        part = canvas
    return to_pixels(np.ascontiguousarray(part), tile_preprocess(preprocess))


def tile_preprocess(preprocess: Preprocess) -> Preprocess:
    """Return the preprocessing of a tile: it is stretched to the model's input."""
    return replace(preprocess, fit="stretch", crop_pct=1.0, trim=(0, 0))


@dataclass(frozen=True)
class TileOutputs:
    """The outputs of a model for a window of an image."""

    window: TileWindow
    outputs: Float[Tensor, "k height width"]

    def part(self, size: ImageSize, rows: slice) -> tuple[slice, slice, Float[Tensor, "r columns"], Tensor]:
        """Return the rows of the image that are among these and in the window, the columns, their weights and outputs."""
        left, top, right, bottom = self.window
        inside = slice(max(rows.start, top), max(min(rows.stop, bottom), rows.start, top))
        columns = slice(max(left, 0), min(right, size[1]))
        window = float(left), float(top), float(right), float(bottom)
        weights = _weights(inside, top, bottom)[:, None] * _weights(columns, left, right)
        return inside, columns, weights, restored_part(self.outputs, window, inside, columns)


def _weights(pixels: slice, start: int, end: int) -> Float[Tensor, " r"]:
    """Return how much pixels count by where they are between two edges: the square of a sine, above 0 for each."""
    centres = torch.arange(pixels.start, pixels.stop, dtype=torch.float64) + 0.5
    return ((centres - start) * (torch.pi / (end - start))).sin().square().float()


def joined_bands(rows: Iterable[Sequence[TileOutputs]], size: ImageSize) -> Iterator[tuple[slice, Float[Tensor, "k r w"]]]:
    """Yield the outputs at the size of an image, a band of its rows at a time, from those of rows of tiles, from the top on.

    Where tiles overlap, it is their weighted mean. Only rows of tiles that are still needed are kept in memory.
    """
    kept: list[Sequence[TileOutputs]] = []
    done = 0
    for row in rows:
        top = max(row[0].window[1], 0)
        yield from _join(kept, slice(done, top), size)
        done, kept = top, [*(before for before in kept if before[0].window[3] > top), row]
    yield from _join(kept, slice(done, size[0]), size)


def _join(
    kept: Sequence[Sequence[TileOutputs]], rows: slice, size: ImageSize
) -> Iterator[tuple[slice, Float[Tensor, "k r w"]]]:
    if rows.start >= rows.stop:
        return
    classes = kept[0][0].outputs.shape[0]
    for band in row_bands(rows, classes * size[1]):
        total = torch.zeros(classes, band.stop - band.start, size[1])
        weight = torch.zeros(band.stop - band.start, size[1])
        for tile in (tile for row in kept for tile in row):
            inside, columns, weights, outputs = tile.part(size, band)
            where = slice(inside.start - band.start, inside.stop - band.start), columns
            total[:, *where].addcmul_(outputs, weights)
            weight[where] += weights
        yield band, total.div_(weight)


def tile_outputs(
    predictor: Predictor, pixels: Num[ndarray, "h w c"], tiling: Tiling, batch_size: int
) -> Iterator[list[TileOutputs]]:
    """Yield the outputs for each row of tiles of an image."""
    for windows in tiling.rows((pixels.shape[0], pixels.shape[1])):
        row = []
        for start in range(0, len(windows), batch_size):
            some = windows[start : start + batch_size]
            inputs = np.stack([cut_tile(pixels, window, predictor.preprocess) for window in some])
            outputs: Any = predictor.outputs(inputs)
            row += [TileOutputs(window, torch.from_numpy(each)) for window, each in zip(some, outputs, strict=True)]
        yield row
