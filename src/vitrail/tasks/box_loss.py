"""The loss of a heat map with boxes (CenterNet, Zhou et al. 2019; TTFNet, Liu et al. 2020).

Every object is a Gaussian on the heat map of its class. The heat map has the focal loss of CenterNet; the cells under the
Gaussian of an object, not its centre alone, predict its box, with the generalised IoU (Rezatofighi et al. 2019) as loss.

Losses are means over the objects of an image, and then over images, so that micro-batches and ranks change nothing.
b images, k classes, m objects of an image at most; a map has y by x cells.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.data.decode import ImageSize

GAUSSIAN_FRACTION = 0.54  # of the sides of a box, the part that its Gaussian covers (TTFNet's alpha)
LABEL, CROWD = 4, 5  # columns of targets, after the box
EPS = 1e-7


class CentreTargets(NamedTuple):
    """Targets for the map of an image."""

    heat: Float[Tensor, "k y x"]  # 1 at the centre of an object
    counts: Bool[Tensor, "k y x"]  # False inside of a crowd
    boxes: Float[Tensor, "4 y x"]  # left, top, right, bottom in pixels of the input
    weights: Float[Tensor, "y x"]  # of the cells in the loss of the boxes; of an object they sum to 1


def centre_targets(objects: Float[Tensor, "m 6"], classes: int, cells: tuple[int, int], size: ImageSize) -> CentreTargets:
    """Return the targets for the objects of an image: left, top, right, bottom, label, and 1 for a crowd; a label of -1 stands
    for no object. ``size``: height and width of the model's input."""
    rows, columns = cells
    y = (torch.arange(rows, device=objects.device) + 0.5) * (size[0] / rows)
    x = (torch.arange(columns, device=objects.device) + 0.5) * (size[1] / columns)
    objects = objects[objects[:, LABEL] >= 0]
    is_crowd = objects[:, CROWD] > 0
    counts = torch.ones(classes, rows, columns, dtype=torch.bool, device=objects.device)
    for crowd in objects[is_crowd]:
        inside = _between(y, crowd[1], crowd[3])[:, None] & _between(x, crowd[0], crowd[2])
        counts[int(crowd[LABEL])] &= ~inside
    objects = objects[~is_crowd]
    boxes = objects[:, :4]
    order = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).argsort(descending=True, stable=True)
    objects, boxes = objects[order], boxes[order]  # smaller ones lie over larger ones
    gaussians = _gaussians(boxes, x, y)
    heat = torch.zeros(classes, rows, columns, device=objects.device)
    targets = torch.zeros(4, rows, columns, device=objects.device)
    owner = torch.full((rows, columns), -1, device=objects.device)
    for index, (label, gaussian) in enumerate(zip(objects[:, LABEL].long().tolist(), gaussians, strict=True)):
        heat[label] = torch.maximum(heat[label], gaussian)
        owner[gaussian > 0] = index
    if not len(objects):
        return CentreTargets(heat, counts, targets, heat.new_zeros(rows, columns))
    owned = owner >= 0
    targets[:, owned] = boxes[owner[owned]].mT
    weights = torch.where(owned, gaussians.gather(0, owner.clamp(min=0)[None])[0], 0.0)
    totals = torch.zeros(len(objects), device=objects.device).index_add_(0, owner[owned], weights[owned])
    weights[owned] = weights[owned] / totals[owner[owned]].clamp(min=EPS)
    return CentreTargets(heat, counts | (heat == 1), targets, weights)


def _between(centres: Float[Tensor, " n"], start: Tensor, end: Tensor) -> Bool[Tensor, " n"]:
    return (centres >= start) & (centres < end)


def _gaussians(boxes: Float[Tensor, "m 4"], x: Float[Tensor, " x"], y: Float[Tensor, " y"]) -> Float[Tensor, "m y x"]:
    """Return a Gaussian for each box, as wide and high as the box: 1 at the cell of its centre, 0 from three deviations on."""
    along = []
    for centres, low, high in ((y, boxes[:, 1], boxes[:, 3]), (x, boxes[:, 0], boxes[:, 2])):
        cell = 2 * centres[0]  # its side
        nearest = centres[((low + high) / (2 * cell)).long().clamp(0, len(centres) - 1)]
        sigma = (GAUSSIAN_FRACTION / 6 * (high - low)).clamp(min=1e-3)  # pixels
        distance = (centres - nearest[:, None]) / sigma[:, None]
        along.append(torch.where(distance.abs() < 3, (-distance.square() / 2).exp(), 0.0))
    return along[0][:, :, None] * along[1][:, None, :]


def heat_loss(
    logits: Float[Tensor, "k y x"], targets: CentreTargets, class_weights: Float[Tensor, " k"] | None = None
) -> Float[Tensor, ""]:
    """Return the penalty-reduced focal loss of an image, per object."""
    logits = logits.float()
    probability = logits.sigmoid()
    is_centre = targets.heat == 1
    positive = torch.nn.functional.logsigmoid(logits) * (1 - probability).square()
    negative = torch.nn.functional.logsigmoid(-logits) * probability.square() * (1 - targets.heat) ** 4
    by_class = torch.where(is_centre, positive, torch.where(targets.counts, negative, 0.0)).sum((1, 2))
    total = by_class.sum() if class_weights is None else by_class @ class_weights
    return -total / is_centre.sum().clamp(min=1)


def box_loss(distances: Float[Tensor, "4 y x"], targets: CentreTargets, size: ImageSize) -> Float[Tensor, ""]:
    """Return one minus the generalised IoU of the boxes of an image, a mean over its objects."""
    owned = targets.weights > 0
    if not owned.any():
        return distances.sum() * 0
    boxes = cells_to_boxes(distances, size)
    losses = 1 - generalised_iou(boxes[:, owned].mT, targets.boxes[:, owned].mT)
    weights = targets.weights[owned]
    return (losses * weights).sum() / weights.sum()


def cells_to_boxes(distances: Float[Tensor, "4 y x"], size: ImageSize) -> Float[Tensor, "4 y x"]:
    """Return the boxes at these distances from the centres of the cells."""
    rows, columns = distances.shape[1:]
    y = (torch.arange(rows, device=distances.device) + 0.5)[:, None] * (size[0] / rows)
    x = (torch.arange(columns, device=distances.device) + 0.5) * (size[1] / columns)
    left, top, right, bottom = distances
    return torch.stack([x - left, y - top, x + right, y + bottom])


def generalised_iou(boxes: Float[Tensor, "m 4"], others: Float[Tensor, "m 4"]) -> Float[Tensor, " m"]:
    """Return the IoU of each pair of boxes, less the fraction of their common box that neither covers."""
    overlap = (torch.minimum(boxes[:, 2:], others[:, 2:]) - torch.maximum(boxes[:, :2], others[:, :2])).clamp(min=0).prod(1)
    union = _area(boxes) + _area(others) - overlap
    around = (torch.maximum(boxes[:, 2:], others[:, 2:]) - torch.minimum(boxes[:, :2], others[:, :2])).prod(1)
    return overlap / union.clamp(min=EPS) - (around - union) / around.clamp(min=EPS)


def _area(boxes: Float[Tensor, "m 4"]) -> Float[Tensor, " m"]:
    return (boxes[:, 2:] - boxes[:, :2]).prod(1)
