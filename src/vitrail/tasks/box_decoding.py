"""Decode the outputs of a detection model: the peaks of its heat map, in place of anchors and non-maximum suppression.

b images, k classes, m detections; a map has rows by columns cells, the model's input is height by width.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.decode import ImageSize


class Detections(NamedTuple):
    """The boxes with the highest scores, in descending order."""

    boxes: Float[Tensor, "b m 4"]  # left, top, right, bottom in pixels of the model's input
    scores: Float[Tensor, "b m"]
    labels: Int[Tensor, "b m"]


class Peaks(NamedTuple):
    """Cells that are the maximum of their 3 x 3 neighbours in the heat map of a class, those of the highest scores first."""

    scores: Float[Tensor, "b m"]  # 0: there are no more peaks
    labels: Int[Tensor, "b m"]
    cells: Int[Tensor, "b m"]  # row by row


def decode_boxes(outputs: Float[Tensor, "b channels rows columns"], size: ImageSize, max_detections: int = 100) -> Detections:
    """Return the detections of each image: the boxes of the peaks of its heat maps.

    ``size``: height and width of the model's input.
    """
    peaks = find_peaks(outputs, max_detections)
    return Detections(boxes_of_cells(outputs, peaks.cells, size), peaks.scores, peaks.labels)


def find_peaks(outputs: Float[Tensor, "b channels rows columns"], max_detections: int = 100) -> Peaks:
    """Return the peaks of logits, which differ where the sigmoids of some backend are equal; few sigmoids are computed."""
    heat = outputs[:, :-4]
    peaks = torch.where(F.max_pool2d(heat, 3, stride=1, padding=1) == heat, heat, -torch.inf)
    cells = heat.shape[2] * heat.shape[3]
    logits, order = peaks.flatten(1).topk(min(max_detections, heat.shape[1] * cells))
    labels = order // cells
    return Peaks(logits.sigmoid(), labels, order - labels * cells)  # ONNX has no remainder by a dynamic size


def boxes_of_cells(
    outputs: Float[Tensor, "b channels rows columns"], cells: Int[Tensor, "b m"], size: ImageSize
) -> Float[Tensor, "b m 4"]:
    """Return the boxes that some cells predict, in pixels of the model's input."""
    rows, columns = outputs.shape[2:]
    distances = outputs[:, -4:].flatten(2).gather(2, cells[:, None].expand(-1, 4, -1)).mT
    y = cells // columns
    x = cells - y * columns
    centres = torch.stack([(x + 0.5) * size[1] / columns, (y + 0.5) * size[0] / rows], dim=-1)
    return torch.cat([centres - distances[..., :2], centres + distances[..., 2:]], dim=-1)
