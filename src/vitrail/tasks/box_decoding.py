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


def decode_boxes(outputs: Float[Tensor, "b channels rows columns"], size: ImageSize, max_detections: int = 100) -> Detections:
    """Return the detections of each image: the cells that are the maximum of their 3 x 3 neighbours in the heat map of a class.

    ``size``: height and width of the model's input.
    """
    heat, distances = outputs[:, :-4].sigmoid(), outputs[:, -4:].flatten(2)
    peaks = heat * (F.max_pool2d(heat, 3, stride=1, padding=1) == heat)
    cells = heat.shape[2] * heat.shape[3]
    scores, order = peaks.flatten(1).topk(min(max_detections, heat.shape[1] * cells))
    labels, cell = order // cells, order % cells
    picked = distances.gather(2, cell[:, None].expand(-1, 4, -1)).mT
    centres = torch.stack(
        [(cell % heat.shape[3] + 0.5) * (size[1] / heat.shape[3]), (cell // heat.shape[3] + 0.5) * (size[0] / heat.shape[2])],
        dim=-1,
    )
    boxes = torch.cat([centres - picked[..., :2], centres + picked[..., 2:]], dim=-1)
    return Detections(boxes, scores, labels)
