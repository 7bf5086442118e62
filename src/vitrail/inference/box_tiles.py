"""Boxes of a large image from its tiles: what several tiles show becomes one box, and what the edge of a tile cuts off is put
together again. Boxes of one tile are never taken for each other, however much they overlap.

Neighbouring tiles share a strip of the image, in which both see the same: two boxes of a class are one object if they agree
there. A box that ends at an inner edge of its tile is cut. If it begins in the neighbouring tile, that one shows more of the
object, and the box is left out; if it begins before, each tile has a part, and the object spans both.

m boxes, v views of objects; left, top, right, bottom in pixels of the image.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Num
from numpy import ndarray
from torch import Tensor

from vitrail.inference.predictor import Predictor, require_finite
from vitrail.inference.tiles import TileWindow, Tiling, tile_outputs, tile_preprocess
from vitrail.tasks.detection import DetectionTask

MIN_AGREEMENT = 0.3  # IoU of two boxes in the part of the image that both tiles show, from which they are one object
CUT_CELLS = 1.0  # a box is cut that ends within so many cells of the map from the edge of its tile
INSIDE_CELLS = 2.0  # a box begins in the neighbouring tile, uncut, that begins so many cells from its edge

Edges = tuple[float, float]  # where the tile before one ends, and where the one after it begins


@dataclass(frozen=True, eq=False)
class TileBoxes:
    """Detections in a window of an image."""

    window: Float[ndarray, " 4"]
    boxes: Float[ndarray, "m 4"]
    scores: Float[ndarray, " m"]
    labels: Float[ndarray, " m"]
    cut: Bool[ndarray, "m 4"]  # which sides of each box are where the window ends and the image goes on

    def __getitem__(self, selected: ndarray) -> "TileBoxes":
        return TileBoxes(self.window, self.boxes[selected], self.scores[selected], self.labels[selected], self.cut[selected])


@dataclass(frozen=True, eq=False)
class _Object:
    """An object that one or several tiles show."""

    box: Float[ndarray, " 4"]
    score: float
    label: float
    cut: Bool[ndarray, " 4"]

    def joined(self, other: "_Object") -> "_Object":
        """Return the object of two views. Each side is that of the view with fewer cut sides, of equal ones that with the
        higher score, unless it is cut just there; a side that both cut is as far out as they see."""
        first, second = sorted((self, other), key=lambda each: (each.cut.sum(), -each.score))
        outer = np.concatenate([np.minimum(first.box, second.box)[:2], np.maximum(first.box, second.box)[2:]])
        box = np.where(first.cut, np.where(second.cut, outer, second.box), first.box)
        return _Object(box, max(first.score, second.score), self.label, first.cut & second.cut)


def detect_in_tiles(
    predictor: Predictor, task: DetectionTask, pixels: Num[ndarray, "h w c"], tiling: Tiling, batch_size: int
) -> Float[Tensor, "m 6"]:
    """Return the detections in an image, as ``DetectionTask.detect`` does, of any number; outputs that are not finite raise."""
    size = pixels.shape[0], pixels.shape[1]
    windows = tiling.rows(size)
    lefts, tops = [window[0] for window in windows[0]], [row[0][1] for row in windows]
    tile_task = replace(task, preprocess=tile_preprocess(predictor.preprocess))
    tiles = []
    for row, outputs in enumerate(tile_outputs(predictor, pixels, tiling, batch_size)):
        for column, tile in enumerate(outputs):
            across, down = _neighbours(lefts, column, tiling.size[1]), _neighbours(tops, row, tiling.size[0])
            tiles.append(_detect_in_tile(tile_task, require_finite(tile.outputs, predictor), tile.window, (across, down)))
    return torch.from_numpy(merge_tiles(tiles))


def _neighbours(starts: Sequence[int], place: int, length: int) -> Edges:
    before = float(starts[place - 1] + length) if place else -math.inf
    after = float(starts[place + 1]) if place + 1 < len(starts) else math.inf
    return before, after


def _detect_in_tile(
    task: DetectionTask, outputs: Float[Tensor, "channels rows columns"], window: TileWindow, neighbours: tuple[Edges, Edges]
) -> TileBoxes:
    """Return what a tile shows, apart from what ends at one of its edges and is shown by the neighbour there."""
    left, top, right, bottom = window
    rows = task.detect(outputs, (bottom - top, right - left)).numpy()
    boxes = rows[:, :4] + np.tile([left, top], 2)
    cell = np.array([(right - left) / outputs.shape[2], (bottom - top) / outputs.shape[1]])
    before, after = np.array(neighbours).T
    cut_starts = (boxes[:, :2] <= (left, top) + CUT_CELLS * cell) & np.isfinite(before)
    cut_ends = (boxes[:, 2:] >= (right, bottom) - CUT_CELLS * cell) & np.isfinite(after)
    begins_before = cut_starts & (boxes[:, 2:] < before - INSIDE_CELLS * cell)
    begins_after = cut_ends & (boxes[:, :2] > after + INSIDE_CELLS * cell)
    every = TileBoxes(np.array(window, np.float64), boxes, rows[:, 4], rows[:, 5], np.concatenate([cut_starts, cut_ends], 1))
    return every[~(begins_before | begins_after).any(1)]


def merge_tiles(tiles: Iterable[TileBoxes]) -> Float[ndarray, "m 6"]:
    """Return the objects of tiles, each once: rows of left, top, right, bottom, score and label, the highest scores first."""
    objects: list[_Object] = []
    windows, boxes = np.zeros((0, 4)), np.zeros((0, 4))  # of all views so far
    labels, owners = np.zeros(0), np.zeros(0, np.int64)
    for tile in tiles:
        near = np.flatnonzero(_areas(_intersection(windows, tile.window)) > 0)
        agreement = _agreement(tile, windows[near], boxes[near]) * (tile.labels[:, None] == labels[near])
        own = _assign(agreement, owners[near])
        for place, owner in enumerate(own.tolist()):
            view = _Object(tile.boxes[place], tile.scores[place], tile.labels[place], tile.cut[place])
            if owner >= 0:
                objects[owner] = objects[owner].joined(view)
            else:
                own[place] = len(objects)
                objects.append(view)
        windows = np.concatenate([windows, np.broadcast_to(tile.window, tile.boxes.shape)])
        boxes, labels = np.concatenate([boxes, tile.boxes]), np.concatenate([labels, tile.labels])
        owners = np.concatenate([owners, own])
    rows = np.array([[*each.box, each.score, each.label] for each in objects], np.float64).reshape(-1, 6)
    return rows[np.argsort(-rows[:, 4], kind="stable")]


def _agreement(tile: TileBoxes, windows: Float[ndarray, "v 4"], boxes: Float[ndarray, "v 4"]) -> Float[ndarray, "m v"]:
    """Return the IoU of boxes of a tile with views of others, each pair in the window that both tiles share."""
    shared = _intersection(windows, tile.window)
    mine, others = _intersection(tile.boxes[:, None], shared), _intersection(boxes, shared)
    both = _areas(_intersection(mine, others))
    total = _areas(mine) + _areas(others) - both
    return np.divide(both, total, out=np.zeros_like(both), where=both > 0)


def _intersection(boxes: Float[ndarray, "*m 4"], others: Float[ndarray, "*v 4"]) -> Float[ndarray, "*mv 4"]:
    return np.concatenate([np.maximum(boxes[..., :2], others[..., :2]), np.minimum(boxes[..., 2:], others[..., 2:])], axis=-1)


def _areas(boxes: Float[ndarray, "*m 4"]) -> Float[ndarray, " *m"]:
    return (boxes[..., 2] - boxes[..., 0]).clip(0) * (boxes[..., 3] - boxes[..., 1]).clip(0)


def _assign(agreement: Float[ndarray, "m v"], owners: Int[ndarray, " v"]) -> Int[ndarray, " m"]:
    """Return for each box the object that it is a view of, -1 for none: each object once, those that agree most first."""
    own, taken = np.full(len(agreement), -1), set[int]()
    boxes, views = np.nonzero(agreement >= MIN_AGREEMENT)
    for pair in np.argsort(-agreement[boxes, views], kind="stable").tolist():
        box, owner = boxes[pair], int(owners[views[pair]])
        if own[box] < 0 and owner not in taken:
            own[box] = owner
            taken.add(owner)
    return own
