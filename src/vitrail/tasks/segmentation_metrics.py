"""Metrics of segmentation from counts per image, so that they can be summed over images, ranks and resamples.

n images, k classes; h high, w wide.
"""

from jaxtyping import Float, Int
from torch import Tensor

from vitrail.data.sources.dataset import IGNORED


def confusion_matrix(predicted: Int[Tensor, "h w"], target: Int[Tensor, "h w"], classes: int) -> Int[Tensor, "k k"]:
    """Count the pixels by their true class (rows) and the predicted one (columns); ignored pixels do not count."""
    counted = target != IGNORED
    pairs = target[counted].long() * classes + predicted[counted].long()
    return pairs.bincount(minlength=classes**2).reshape(classes, classes)


def iou_per_class(confusion: Int[Tensor, "*n k k"]) -> Float[Tensor, "*n k"]:
    """Return the intersection over union of each class; NaN if it is neither in the masks nor predicted."""
    intersection = confusion.diagonal(dim1=-2, dim2=-1).double()
    return intersection / (confusion.sum(-1) + confusion.sum(-2) - intersection)


def segmentation_scores(confusion: Int[Tensor, "*n k k"]) -> dict[str, Float[Tensor, "*n"]]:
    """Return mean IoU, mean Dice and pixel accuracy; the means are over the classes that occur or are predicted."""
    iou = iou_per_class(confusion)
    dice = 2 * iou / (1 + iou)
    correct = confusion.diagonal(dim1=-2, dim2=-1).sum(-1).double()
    return {"miou": iou.nanmean(-1), "dice": dice.nanmean(-1), "pixel_accuracy": correct / confusion.sum((-1, -2))}
