"""Boundary IoU (Cheng et al. 2021): the IoU of what lies within a small distance of the contours. k classes, h high, w wide.

The boundary of a class are its pixels that an erosion takes away: whose square window of 2 * distance + 1 pixels holds a pixel
of another class, or reaches beyond the image. Ignored pixels are no other class. The window has a pixel of another class if its
lowest or its highest class differs from that of its centre, so that two running extrema serve all classes at once.
"""

import math

import numpy as np
import torch
from jaxtyping import Bool, Int, Int16
from numpy import ndarray
from torch import Tensor

from vitrail.data.sources.dataset import IGNORED

DISTANCE = 0.02  # of the diagonal
MAX_BAND_NUMEL = 2**21  # pixels of a band of rows, besides those above and below it that its windows reach
LOWEST = np.iinfo(np.int16).min


def boundary_counts(predicted: Int16[ndarray, "h w"], target: Int16[ndarray, "h w"], classes: int) -> Int[Tensor, "k 3"]:
    """Count the pixels of the boundary of each class in the target, in the prediction, and in both."""
    (height, width), distance = target.shape, boundary_distance(*target.shape)
    rows = max(MAX_BAND_NUMEL // max(width, 1), 2 * distance)
    total = np.zeros((classes, 3), np.int64)
    for start in range(0, height, rows):
        top, end = max(start - distance, 0), min(start + rows, height)
        seen, inner = slice(top, min(end + distance, height)), slice(start - top, end - top)
        counted = target[seen] != IGNORED
        true, found = (
            _boundary(mask[seen], counted, distance)[inner] | _near_edge(start, end, height, width, distance)
            for mask in (target, predicted)
        )
        labels, guesses, counted = target[start:end], predicted[start:end], counted[inner]
        parts = labels[counted & true], guesses[counted & found], labels[counted & true & found & (labels == guesses)]
        total += np.stack([np.bincount(part, minlength=classes) for part in parts], axis=1)
    return torch.from_numpy(total)


def boundary_distance(height: int, width: int) -> int:
    return max(round(DISTANCE * math.hypot(height, width)), 1)


def _boundary(mask: Int16[ndarray, "h w"], counted: Bool[ndarray, "h w"], distance: int) -> Bool[ndarray, "h w"]:
    """Return where the window holds another class than that of its centre."""
    extrema = np.stack([np.where(counted, mask, LOWEST), np.where(counted, -mask, LOWEST)])
    for axis in (1, 2):
        extrema = _running_maximum(extrema, distance, axis)
    return np.asarray((extrema[0] != mask) | (extrema[1] != -mask))


def _running_maximum(values: Int16[ndarray, "two h w"], distance: int, axis: int) -> Int16[ndarray, "two h w"]:
    """Return the maximum over a window along an axis, whose length is doubled until it is reached."""
    values = np.pad(values, [(distance, distance) if each == axis else (0, 0) for each in range(3)], constant_values=LOWEST)
    values, length, span = np.moveaxis(values, axis, 0), 2 * distance + 1, 1
    while span < length:
        step = min(span, length - span)
        values, span = np.maximum(values[:-step], values[step:]), span + step
    return np.moveaxis(values, 0, axis)


def _near_edge(start: int, end: int, height: int, width: int, distance: int) -> Bool[ndarray, "rows w"]:
    """Return which pixels of some rows have a window that reaches beyond the image."""
    rows, columns = np.arange(start, end)[:, None], np.arange(width)
    return np.asarray(np.minimum(np.minimum(rows, height - 1 - rows), np.minimum(columns, width - 1 - columns)) < distance)
