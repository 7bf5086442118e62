"""The loss of a set of predicted boxes (Carion et al. 2020, DETR): each object of an image is matched with the query that
predicts it best, by an assignment with the smallest cost; the other queries are to predict that there is none.

It is a mean over the objects of an image, then over images, so that micro-batches and ranks change nothing. Crowds are no
objects. q queries, m objects of an image, o classes and none.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.decode import ImageSize
from vitrail.tasks.box_loss import CROWD, LABEL, generalised_iou
from vitrail.tasks.detection_queries import input_scale, to_centres
from vitrail.tasks.linear_assignment import assign
from vitrail.tasks.query_loss import NO_OBJECT_WEIGHT

CLASS_COST = 1.0  # the paper's, as the next: of the probability of the class, the distances and the IoU
DISTANCE_WEIGHT, IOU_WEIGHT = 2.5, 1.0  # times ``task.box_weight``, which is 2


def set_losses(
    output: Float[Tensor, "channels q 1"],
    objects: Float[Tensor, "m 6"],
    size: ImageSize,
    box_weight: float,
    class_weights: Float[Tensor, " k"] | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return the losses of the classes and of the boxes of an image. ``size``: height and width of the model's input."""
    logits, boxes = output[:-4, :, 0].mT, output[-4:, :, 0].mT / input_scale(output, size)
    objects = objects[(objects[:, LABEL] >= 0) & (objects[:, CROWD] == 0)]
    labels, targets = objects[:, LABEL].long(), objects[:, :4] / input_scale(output, size)
    queries, matched = match_boxes(logits.detach(), boxes.detach(), labels, targets, box_weight)
    none = logits.shape[1] - 1
    wanted = torch.full((len(logits),), none, device=logits.device)
    wanted[queries] = labels[matched]
    of_classes = logits.new_ones(none) if class_weights is None else class_weights.to(logits)
    weights = torch.cat([of_classes, logits.new_full((1,), NO_OBJECT_WEIGHT)])
    class_loss = F.cross_entropy(logits, wanted, weights)
    return class_loss, (_pair_costs(boxes[queries], targets[matched]).sum() / max(len(matched), 1))


@torch.no_grad()
def match_boxes(
    logits: Float[Tensor, "q o"],
    boxes: Float[Tensor, "q 4"],
    labels: Int[Tensor, " m"],
    targets: Float[Tensor, "m 4"],
    box_weight: float,
) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """Return the queries and the objects that are matched; boxes are fractions of the input."""
    count = len(labels)
    pairs = _pair_costs(boxes.repeat_interleave(count, 0), targets.repeat(len(boxes), 1)).reshape(len(boxes), count)
    costs = box_weight * pairs - CLASS_COST * logits.softmax(-1)[:, labels]
    queries, objects = assign(costs.cpu().numpy())
    return torch.from_numpy(queries).to(boxes.device), torch.from_numpy(objects).to(boxes.device)


def _pair_costs(boxes: Float[Tensor, "p 4"], targets: Float[Tensor, "p 4"]) -> Float[Tensor, " p"]:
    """Return how far each box is from its target: the distances of centre and sides, and one minus the generalised IoU."""
    distances = (to_centres(boxes) - to_centres(targets)).abs().sum(1)
    return DISTANCE_WEIGHT * distances + IOU_WEIGHT * (1 - generalised_iou(boxes, targets))
