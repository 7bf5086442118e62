"""Panoptic quality (Kirillov et al. 2019) from counts per image. n images, k classes, s segments; h high, w wide.

A segment is an object of a class that has objects, or all of an image that is of another class. A predicted and a true segment
of one class match if their IoU is above 1/2, which at most one pair of each does. Ignored pixels belong to no union, and a
predicted segment more than half of which is ignored does not count.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int16
from numpy import ndarray
from torch import Tensor

from vitrail.data.sources.dataset import IGNORED

MATCHING_IOU = 0.5  # above it
MAX_IGNORED = 0.5  # fraction of an unmatched prediction that may be ignored for it to count


def panoptic_counts(
    predicted: Int16[ndarray, "h w"],
    predicted_objects: Int[ndarray, "h w"],
    target: Int16[ndarray, "h w"],
    target_objects: Int[ndarray, "h w"],
    classes: int,
) -> Float[Tensor, "k 4"]:
    """Return for each class the sum of the IoUs of its matches, and the matches, unmatched predictions and missed segments.

    Objects are numbered from 1; 0 is the part of a class that is no object. Predicted pixels may be ``IGNORED`` too.
    """
    found, found_classes, found_areas = _segments(predicted, predicted_objects, classes)
    true, true_classes, true_areas = _segments(target, target_objects, classes)
    pairs, overlap = np.unique(found.astype(np.int64) * (len(true_areas) + 1) + true, return_counts=True)
    first, second = np.divmod(pairs, len(true_areas) + 1)
    # segments are numbered from 1, and 0 is what is ignored
    void_of_found, void_of_true = np.zeros(len(found_areas) + 1, np.int64), np.zeros(len(true_areas) + 1, np.int64)
    void_of_found[first[second == 0]] = overlap[second == 0]
    void_of_true[second[first == 0]] = overlap[first == 0]
    is_pair = (first > 0) & (second > 0)
    first, second, overlap = first[is_pair], second[is_pair], overlap[is_pair]
    of_one_class = found_classes[first - 1] == true_classes[second - 1]
    first, second, overlap = first[of_one_class], second[of_one_class], overlap[of_one_class]
    union = found_areas[first - 1] - void_of_found[first] + true_areas[second - 1] - void_of_true[second] - overlap
    iou = overlap / union
    matches = iou > MATCHING_IOU
    is_extra = void_of_found[1:] <= MAX_IGNORED * found_areas
    is_missed = void_of_true[1:] <= MAX_IGNORED * true_areas
    is_extra[first[matches] - 1] = False
    is_missed[second[matches] - 1] = False
    matched_classes = true_classes[second[matches] - 1]
    columns = (
        np.bincount(matched_classes, iou[matches], minlength=classes),
        np.bincount(matched_classes, minlength=classes),
        np.bincount(found_classes[is_extra], minlength=classes),
        np.bincount(true_classes[is_missed], minlength=classes),
    )
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.float64))


def panoptic_quality_per_class(counts: Float[Tensor, "*n k 4"]) -> dict[str, Float[Tensor, "*n k"]]:
    """Return PQ, and its factors SQ and RQ: the mean IoU of the matches, and the F1 of finding the segments.

    They are NaN for a class without a segment, true or predicted.
    """
    iou_sum, matches, extra, missed = counts.unbind(-1)
    num_segments = matches + (extra + missed) / 2
    absent = num_segments == 0
    sq = torch.where(matches > 0, iou_sum / matches, 0.0).masked_fill(absent, torch.nan)
    rq = matches / num_segments
    return {"pq": iou_sum / num_segments, "sq": sq, "rq": rq}


def without_unnumbered(
    mask: Int16[ndarray, "h w"], objects: Int[ndarray, "h w"], has_objects: Bool[ndarray, " k"]
) -> Int16[ndarray, "h w"]:
    """Return a true mask in which the parts of a class of objects that belong to none of them, such as crowds, are ignored."""
    unnumbered = (objects == 0) & (mask != IGNORED)
    unnumbered[unnumbered] = has_objects[mask[unnumbered]]
    return np.where(unnumbered, np.int16(IGNORED), mask)


def _segments(
    mask: Int16[ndarray, "h w"], objects: Int[ndarray, "h w"], classes: int
) -> tuple[Int[ndarray, " pixels"], Int[ndarray, " s"], Int[ndarray, " s"]]:
    """Return the number of each pixel's segment, from 1, 0 if it is ignored, and class and area of each segment."""
    keys = objects.astype(np.int64).ravel() * classes + mask.ravel()
    keys[mask.ravel() == IGNORED] = -1
    unique, numbers, areas = np.unique(keys, return_inverse=True, return_counts=True)
    has_ignored = int(len(unique) > 0 and unique[0] == -1)
    return numbers.ravel() + 1 - has_ignored, unique[has_ignored:] % classes, areas[has_ignored:]
