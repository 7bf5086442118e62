"""Matching of detections with the objects of an image, as COCO's evaluation has it, and the confusion of classes.

d detections, g objects, k classes, a area ranges, t IoU thresholds. The best detections come first; each is matched with the
free object of its class that it overlaps most. One that is matched with a crowd, or with an object outside of the area range,
is neither right nor wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Int8
from numpy import ndarray

from vitrail.data.sources.objects import Objects, box_areas, build_objects

IOU_THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).tolist())
MAX_DETECTIONS = 100  # of a class in an image
MAX_AREA = 1e10
AREA_RANGES = {"all": (0, MAX_AREA), "small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, MAX_AREA)}  # in pixels
MAX_THRESHOLD = 1 - 1e-10  # rounding must not keep equal boxes from a match at an IoU of 1
WRONG, RIGHT, UNCOUNTED = 0, 1, 2  # outcomes of a detection
BACKGROUND = "background"  # name of the last row and column of a confusion matrix


@dataclass(frozen=True, eq=False)
class ImageMatches:
    """The detections and objects of an image, matched: all that the metrics of any set of images need of it."""

    scores: Float[ndarray, " d"]  # the highest first
    labels: Int[ndarray, " d"]
    ranks: Int[ndarray, " d"]  # among the detections of the class in the image, from 0
    outcomes: Int8[ndarray, "d a t"]  # wrong, right or uncounted
    object_labels: Int[ndarray, " g"]
    counted: Bool[ndarray, "g a"]  # no crowd, and in the area range
    thresholds: tuple[float, ...]


def match_image(
    boxes: Float[ndarray, "d 4"],
    scores: Float[ndarray, " d"],
    labels: Int[ndarray, " d"],
    objects: Objects,
    thresholds: Sequence[float] = IOU_THRESHOLDS,
    max_detections: int = MAX_DETECTIONS,
) -> ImageMatches:
    """Match detections, boxes in the pixels of the objects', at every IoU threshold and for every area range."""
    order = np.argsort(-scores, kind="stable")  # of equal scores the first, as in COCO
    ranks = _ranks(labels[order])
    order, ranks = order[ranks < max_detections], ranks[ranks < max_detections]
    boxes, scores, labels = boxes[order].astype(np.float64), scores[order].astype(np.float64), labels[order]
    counted = in_area_ranges(objects.areas) & ~objects.crowd[:, None]
    overlap = box_iou(boxes, objects.boxes, objects.crowd)
    levels = np.minimum(thresholds, MAX_THRESHOLD)
    outcomes = np.empty((len(boxes), len(AREA_RANGES), len(levels)), np.int8)
    outcomes[:] = np.where(in_area_ranges(box_areas(boxes)), WRONG, UNCOUNTED)[:, :, None]  # unless it matches an object
    is_near = (labels[:, None] == objects.labels) & (overlap >= levels.min(initial=1))
    taken = np.zeros((len(objects), *outcomes.shape[1:]), bool)
    across, along = np.ogrid[: outcomes.shape[1], : outcomes.shape[2]]
    for detection in np.flatnonzero(is_near.any(1)).tolist():
        near = np.flatnonzero(is_near[detection])[::-1]  # of equal overlaps the last, as in COCO
        near = near[np.argsort(-overlap[detection, near], kind="stable")]
        enough = overlap[detection, near][:, None, None] >= levels
        free = enough & (~taken[near] | objects.crowd[near][:, None, None])
        preference = free * np.where(counted[near], np.int8(2), np.int8(1))[:, :, None]  # objects that count come first
        best, value = preference.argmax(0), preference.max(0)
        taken[near[best], across, along] |= value > 0
        outcomes[detection] = np.where(value == 2, RIGHT, np.where(value == 1, UNCOUNTED, outcomes[detection]))
    return ImageMatches(scores, labels, ranks, outcomes, objects.labels, counted, tuple(thresholds))


@dataclass(frozen=True, eq=False)
class BoxPairs:
    """Detections that are above their score thresholds, each with the object that it stands for, of whatever class."""

    detections: Int[ndarray, " m"]  # index of each, the best first
    objects: Int[ndarray, " m"]  # index of its object; -1: it has none
    excused: Bool[ndarray, " m"]  # whether it has none because it is in a crowd of its class


def pair_boxes(
    boxes: Float[ndarray, "d 4"],
    scores: Float[ndarray, " d"],
    labels: Int[ndarray, " d"],
    objects: Objects,
    score_thresholds: Float[ndarray, " k"],
    threshold: float = 0.5,
) -> BoxPairs:
    """Pair detections above the score threshold of their class with objects that they overlap enough: within the class first,
    so that these pairs are the matches of the metrics; then those that are left, whatever their class."""
    kept = np.flatnonzero(scores >= score_thresholds[labels])
    kept = kept[np.argsort(-scores[kept], kind="stable")]
    overlap = box_iou(boxes[kept].astype(np.float64), objects.boxes, objects.crowd)
    enough, same = overlap >= min(threshold, MAX_THRESHOLD), labels[kept][:, None] == objects.labels
    paired, is_free = np.full(len(kept), -1), ~objects.crowd
    for of_one_class in (True, False):
        for detection in np.flatnonzero(paired < 0).tolist():
            near = np.flatnonzero(is_free & (same[detection] == of_one_class) & enough[detection])[::-1]
            if len(near):
                paired[detection] = near[overlap[detection, near].argmax()]
                is_free[paired[detection]] = False
    return BoxPairs(kept, paired, (paired < 0) & (same & objects.crowd & enough).any(1))


def box_agreement(
    detections: Sequence[Float[ndarray, "_ 6"]], expected: Sequence[Float[ndarray, "_ 6"]], threshold: float = 0.5
) -> float:
    """Return the F1 of the detections in all images, as if the expected ones were the objects: left, top, right, bottom, score,
    label. Those without an area count for nothing."""
    matched = total = 0
    for images in zip(detections, expected, strict=True):
        rows, true = (each[(each[:, 2:4] > each[:, :2]).all(1)] for each in images)
        objects, labels = build_objects(true[:, :4], true[:, 5]), rows[:, 5].astype(np.int64)
        matches = match_image(rows[:, :4], rows[:, 4], labels, objects, (threshold,), max_detections=max(len(rows), 1))
        matched += int((matches.outcomes[:, 0] == RIGHT).sum())
        total += len(rows) + len(true)
    return 2 * matched / total if total else 1.0


def confusion_with_background(
    labels: Int[ndarray, " d"], objects: Objects, pairs: BoxPairs, classes: int
) -> Int[ndarray, "{classes}+1 {classes}+1"]:
    """Count the objects of an image by their class (rows) and the detected one (columns); the last row is of detections
    without an object, the last column of objects without a detection. Crowds have no row."""
    missed = np.setdiff1d(np.flatnonzero(~objects.crowd), pairs.objects)
    counted = ~pairs.excused
    true = np.append(objects.labels, classes)[pairs.objects[counted]]  # the last is the background
    rows = np.concatenate([true, objects.labels[missed]])
    columns = np.concatenate([labels[pairs.detections[counted]], np.full(len(missed), classes)])
    return np.bincount(rows * (classes + 1) + columns, minlength=(classes + 1) ** 2).reshape(classes + 1, classes + 1)


def box_iou(
    boxes: Float[ndarray, "d 4"], others: Float[ndarray, "g 4"], crowd: Bool[ndarray, " g"] | None = None
) -> Float[ndarray, "d g"]:
    """Return the intersection over union of every pair of boxes; with a crowd, the fraction of the box that is inside."""
    width = np.minimum(boxes[:, None, 2], others[:, 2]) - np.maximum(boxes[:, None, 0], others[:, 0])
    height = np.minimum(boxes[:, None, 3], others[:, 3]) - np.maximum(boxes[:, None, 1], others[:, 1])
    both = width.clip(0) * height.clip(0)
    union = box_areas(boxes)[:, None] + box_areas(others) - both
    if crowd is not None:
        union = np.where(crowd, box_areas(boxes)[:, None], union)
    return np.divide(both, union, out=np.zeros_like(both), where=both > 0)


def in_area_ranges(areas: Float[ndarray, " n"]) -> Bool[ndarray, "n a"]:
    """Return which ranges an area is in; their ends belong to both sides, as in COCO."""
    low, high = np.array(list(AREA_RANGES.values()), np.float64).T
    return (areas[:, None] >= low) & (areas[:, None] <= high)


def _ranks(labels: Int[ndarray, " d"]) -> Int[ndarray, " d"]:
    """Return how many of its class come before each."""
    order = np.argsort(labels, kind="stable")
    grouped = labels[order]
    ranks = np.empty(len(labels), np.int64)
    ranks[order] = np.arange(len(labels)) - np.searchsorted(grouped, grouped)
    return ranks
