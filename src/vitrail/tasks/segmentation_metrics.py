"""Metrics of segmentation from counts per image, so that they can be summed over images, ranks and resamples.

n images, k classes; h high, w wide; r resamples. A mean over classes is over those that occur or are predicted.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Num
from numpy import ndarray
from torch import Tensor

from vitrail.data.sources.dataset import IGNORED
from vitrail.tasks.resampling import NUM_RESAMPLES, finite_interval, iter_resamples

MAX_BOOTSTRAP_NUMEL = 2**31  # images times columns times resamples; of larger splits there are fewer resamples
MIN_RESAMPLES = 100


def confusion_matrix(predicted: Int[Tensor, "h w"], target: Int[Tensor, "h w"], classes: int) -> Int[Tensor, "k k"]:
    """Count the pixels by their true class (rows) and the predicted one (columns); ignored pixels do not count."""
    counted = target != IGNORED
    pairs = target[counted].long() * classes + predicted[counted].long()
    return pairs.bincount(minlength=classes**2).reshape(classes, classes)


def pixel_counts(confusion: Int[Tensor, "*n k k"]) -> Int[Tensor, "*n k 3"]:
    """Return the pixels of each class in the target, in the prediction, and in both."""
    return torch.stack([confusion.sum(-1), confusion.sum(-2), confusion.diagonal(dim1=-2, dim2=-1)], dim=-1)


def iou_of_counts(counts: Num[Tensor, "*n k 3"]) -> Float[Tensor, "*n k"]:
    """Return the intersection over union of each class from its pixels in the target, in the prediction, and in both; NaN if it
    is in neither."""
    true, predicted, both = counts.double().unbind(-1)
    return both / (true + predicted - both)


def iou_per_class(confusion: Int[Tensor, "*n k k"]) -> Float[Tensor, "*n k"]:
    """Return the intersection over union of each class; NaN if it is neither in the masks nor predicted."""
    return iou_of_counts(pixel_counts(confusion))


def segmentation_scores(
    confusion: Int[Tensor, "*n k k"], boundary: Int[Tensor, "*n k 3"] | None = None
) -> dict[str, Float[Tensor, "*n"]]:
    """Return mean IoU, mean Dice and pixel accuracy, and the mean boundary IoU if the pixels of boundaries were counted."""
    return _scores(pixel_counts(confusion), boundary)


def class_rows(
    class_names: Sequence[str], confusion: Int[Tensor, "n k k"], boundary: Int[Tensor, "n k 3"]
) -> list[dict[str, Any]]:
    """Return what is known of each class: its scores, the interval of its IoU, and how many pixels it has."""
    total = confusion.sum(0)
    true, predicted, both = pixel_counts(total).double().unbind(-1)
    iou = iou_per_class(total)
    columns = {
        "iou": iou,
        "dice": 2 * iou / (1 + iou),
        "boundary_iou": iou_of_counts(boundary.sum(0)),
        "precision": both / predicted.clamp(min=1),  # 0 of a class that is never predicted
        "recall": both / true.clamp(min=1),
    }
    samples = bootstrap_segmentation(confusion, boundary)[1] if len(confusion) else np.zeros((0, len(class_names)))
    return [
        {
            "name": name,
            **{key: float(values[label]) for key, values in columns.items()},
            "interval": finite_interval(samples[:, label]),
            "pixels": int(true[label]),
        }
        for label, name in enumerate(class_names)
    ]


def bootstrap_segmentation(
    confusion: Int[Tensor, "n k k"], boundary: Int[Tensor, "n k 3"], resamples: int = NUM_RESAMPLES
) -> tuple[dict[str, Float[ndarray, " r"]], Float[ndarray, "r k"]]:
    """Return the scores of each resample of the images, and the IoU of each class."""
    counts = torch.stack([pixel_counts(confusion), boundary], dim=1)
    table = counts.flatten(1).double().numpy()
    affordable = max(MAX_BOOTSTRAP_NUMEL // max(table.size, 1), MIN_RESAMPLES)
    drawn = iter_resamples(len(table), min(resamples, affordable))
    sums = torch.from_numpy(np.concatenate([times @ table for times in drawn])).unflatten(1, counts.shape[1:])
    scores = _scores(sums[:, 0], sums[:, 1])
    return {name: values.numpy() for name, values in scores.items()}, iou_of_counts(sums[:, 0]).numpy()


def _scores(pixels: Num[Tensor, "*n k 3"], boundary: Num[Tensor, "*n k 3"] | None) -> dict[str, Float[Tensor, "*n"]]:
    iou = iou_of_counts(pixels)
    true, _, both = pixels.double().sum(-2).unbind(-1)
    scores = {"miou": iou.nanmean(-1), "dice": (2 * iou / (1 + iou)).nanmean(-1), "pixel_accuracy": both / true}
    return scores if boundary is None else {**scores, "boundary_iou": iou_of_counts(boundary).nanmean(-1)}
