"""Metrics of detection as COCO defines them, from the matches of each image: average precision and recall, of all objects and
by size, precision-recall curves, and the metrics of resamples of the images, for which no box is matched again.

n images, k classes, r resamples; of one class d detections, g objects, p of the detections right; a area ranges, t thresholds.
A class without objects has no score, and is left out of the means. Detections of equal scores are in the order of the images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Int8
from numpy import ndarray

from vitrail.tasks.box_matching import AREA_RANGES, IOU_THRESHOLDS, RIGHT, UNCOUNTED, ImageMatches
from vitrail.tasks.resampling import NUM_RESAMPLES, finite_interval, iter_resamples
from vitrail.tasks.thresholds import DEFAULT_THRESHOLD

RECALL_LEVELS = np.linspace(0, 1, 101)  # at which precision is averaged
MAX_DETECTIONS = (1, 10, 100)  # of a class in an image, for recall; the last for all else
MAX_BOOTSTRAP_NUMEL = 2**31  # detections times resamples; of larger splits there are fewer resamples
MIN_RESAMPLES = 100
CHUNK_NUMEL = 2**18  # detections times resamples at a time: a few MiB, which a cache holds
BOOTSTRAP_METRICS = ("ap", "ap50", "ap75")  # those that have intervals
METRIC_TITLES = {
    "ap": "AP",
    "ap50": "AP50",
    "ap75": "AP75",
    "ap_small": "AP of small objects",
    "ap_medium": "AP of medium objects",
    "ap_large": "AP of large objects",
    "ar1": "AR, 1 detection",
    "ar10": "AR, 10 detections",
    "ar100": "AR, 100 detections",
    "ar_small": "AR of small objects",
    "ar_medium": "AR of medium objects",
    "ar_large": "AR of large objects",
}
CURVE_IOU = 0.5
MIN_OBJECTS = 5  # of a class for a score threshold of its own


@dataclass(frozen=True, eq=False)
class _ClassMatches:
    """The detections and objects of one class in all images, the best detection first."""

    images: Int[ndarray, " d"]
    scores: Float[ndarray, " d"]
    ranks: Int[ndarray, " d"]
    outcomes: Int8[ndarray, "d a t"]
    object_images: Int[ndarray, " g"]
    counted: Bool[ndarray, "g a"]
    thresholds: tuple[float, ...]

    def within(self, max_detections: int) -> "_ClassMatches":
        """Leave out the detections of an image beyond a number."""
        kept = self.ranks < max_detections
        if kept.all():
            return self
        return replace(
            self, images=self.images[kept], scores=self.scores[kept], ranks=self.ranks[kept], outcomes=self.outcomes[kept]
        )


@dataclass(frozen=True, eq=False)
class PrecisionRecall:
    """Precision and recall of a class at an IoU of 0.5, for the score of each of its detections as the threshold."""

    scores: Float[ndarray, " d"]  # the highest first, each once
    precision: Float[ndarray, " d"]
    recall: Float[ndarray, " d"]  # NaN without objects

    @property
    def f1(self) -> Float[ndarray, " d"]:
        total = self.precision + self.recall
        return np.divide(2 * self.precision * self.recall, total, out=np.zeros_like(total), where=total > 0)

    @property
    def best(self) -> int | None:
        """The position of the largest F1; None if no detection is right."""
        return int(self.f1.argmax()) if (self.f1 > 0).any() else None

    @property
    def best_threshold(self) -> float | None:
        """The score threshold of the largest F1, halfway to the next lower score."""
        if self.best is None:
            return None
        below = self.scores[self.best + 1] if self.best + 1 < len(self.scores) else 0.0
        return float((self.scores[self.best] + below) / 2)


def detection_scores(
    matches: Sequence[ImageMatches], num_classes: int, max_detections: Sequence[int] = MAX_DETECTIONS
) -> dict[str, float]:
    """Return AP over all thresholds, at single ones and by size, and recall by the number of detections and by size: COCO's
    twelve numbers. One that no class has is NaN."""
    classes = _by_class(matches, num_classes)
    limited = [each.within(max_detections[-1]) for each in classes]
    precision = {name: np.stack([_average_precision(each, area) for each in limited]) for area, name in enumerate(AREA_RANGES)}
    scores = {"ap": _mean(precision["all"])}
    thresholds = _thresholds(matches)
    for name, threshold in (("ap50", 0.5), ("ap75", 0.75)):
        if (place := _index_of(threshold, thresholds)) is not None:
            scores[name] = _mean(precision["all"][:, place])
    sizes = [name for name in AREA_RANGES if name != "all"]
    scores |= {f"ap_{name}": _mean(precision[name]) for name in sizes}
    for limit in max_detections:
        scores[f"ar{limit}"] = _mean(np.stack([_recall(each.within(limit), 0) for each in classes]))
    for area, name in enumerate(AREA_RANGES):
        if name != "all":
            scores[f"ar_{name}"] = _mean(np.stack([_recall(each, area) for each in limited]))
    return scores


def class_rows(
    class_names: Sequence[str],
    matches: Sequence[ImageMatches],
    samples: Mapping[str, Float[ndarray, "r k"]] | None = None,
) -> list[dict[str, Any]]:
    """Return what is known of each class: its average precision with intervals, how many objects it has, and the score
    threshold of the largest F1 with its precision and recall. ``samples``: of ``bootstrap_detection``."""
    if samples is None:
        samples = bootstrap_detection(matches, len(class_names))[1]
    classes, thresholds = _by_class(matches, len(class_names)), _thresholds(matches)
    place = _index_of(CURVE_IOU, thresholds)
    rows = []
    for label, name in enumerate(class_names):
        limited = classes[label].within(MAX_DETECTIONS[-1])
        precision, curve = _average_precision(limited, 0), _curve(limited)
        best = curve.best
        rows.append(
            {
                "name": name,
                "ap": float(precision.mean()),
                "ap50": float("nan") if place is None else float(precision[place]),
                "ar100": float(_recall(limited, 0).mean()),
                "interval": {metric: finite_interval(values[:, label]) for metric, values in samples.items()},
                "objects": int(limited.counted[:, 0].sum()),
                "images": len(np.unique(limited.object_images[limited.counted[:, 0]])),
                "threshold": curve.best_threshold,
                "precision": 0.0 if best is None else float(curve.precision[best]),
                "recall": 0.0 if best is None else float(curve.recall[best]),
                "f1": 0.0 if best is None else float(curve.f1[best]),
            }
        )
    return rows


def precision_recall_curves(matches: Sequence[ImageMatches], num_classes: int) -> list[PrecisionRecall]:
    """Return the curve of each class."""
    return [_curve(each.within(MAX_DETECTIONS[-1])) for each in _by_class(matches, num_classes)]


def score_thresholds(rows: Sequence[Mapping[str, Any]]) -> Float[ndarray, " k"]:
    """Return the score threshold of each class from its ``class_rows``."""
    return np.array([DEFAULT_THRESHOLD if row["threshold"] is None else row["threshold"] for row in rows], np.float64)


def best_score_thresholds(matches: Sequence[ImageMatches], num_classes: int) -> list[float]:
    """Return the score threshold of each class of the largest F1: of a class with few objects, or of which none is found, the
    one of all classes together."""
    together = _curve(_by_class(list(map(_of_one_class, matches)), 1)[0]).best_threshold
    thresholds = []
    for each in _by_class(matches, num_classes):
        own = _curve(each).best_threshold if each.counted[:, 0].sum() >= MIN_OBJECTS else None
        thresholds.append(next((value for value in (own, together) if value is not None), DEFAULT_THRESHOLD))
    return thresholds


def image_average_precision(matches: ImageMatches) -> float:
    """Return the average precision at an IoU of 0.5 of the ranking of all detections in one image, of whatever class; NaN
    without objects."""
    place = _index_of(CURVE_IOU, matches.thresholds)
    assert place is not None
    return float(_average_precision(_by_class([_of_one_class(matches)], 1)[0], 0)[place])


def _of_one_class(matches: ImageMatches) -> ImageMatches:
    """Return matches as if all detections and objects were of the same class."""
    number = len(matches.scores)
    return replace(matches, labels=np.zeros(number, np.int64), object_labels=np.zeros(len(matches.object_labels), np.int64))


def bootstrap_detection(
    matches: Sequence[ImageMatches], num_classes: int, resamples: int = NUM_RESAMPLES
) -> tuple[dict[str, Float[ndarray, " r"]], dict[str, Float[ndarray, "r k"]]]:
    """Return the metrics of each resample of the images, and of each class AP and AP50. A class without objects in a resample
    is NaN there, and left out of its means."""
    classes, thresholds = [each.within(MAX_DETECTIONS[-1]) for each in _by_class(matches, num_classes)], _thresholds(matches)
    numel = sum(len(each.scores) for each in classes)
    affordable = max(MAX_BOOTSTRAP_NUMEL // max(numel, 1), MIN_RESAMPLES)
    drawn = np.concatenate(list(iter_resamples(len(matches), min(resamples, affordable)))) if matches else np.zeros((0, 0), int)
    precision = np.stack([_resampled_precision(each, drawn) for each in classes], axis=1)  # r k t
    per_class = {"ap": precision.mean(2)}
    scores = {"ap": _nanmean(per_class["ap"])}
    for name, threshold in (("ap50", 0.5), ("ap75", 0.75)):
        if (place := _index_of(threshold, thresholds)) is not None:
            scores[name] = _nanmean(precision[:, :, place])
            if name == "ap50":
                per_class[name] = precision[:, :, place]
    return scores, per_class


def _by_class(matches: Sequence[ImageMatches], num_classes: int) -> list[_ClassMatches]:
    thresholds, areas = _thresholds(matches), len(AREA_RANGES)
    scores = np.concatenate([np.zeros(0), *(each.scores for each in matches)])
    labels = np.concatenate([np.zeros(0, np.int64), *(each.labels for each in matches)])
    ranks = np.concatenate([np.zeros(0, np.int64), *(each.ranks for each in matches)])
    outcomes = np.concatenate([np.zeros((0, areas, len(thresholds)), np.int8), *(each.outcomes for each in matches)])
    images = np.repeat(np.arange(len(matches)), [len(each.scores) for each in matches])
    object_labels = np.concatenate([np.zeros(0, np.int64), *(each.object_labels for each in matches)])
    counted = np.concatenate([np.zeros((0, areas), bool), *(each.counted for each in matches)])
    object_images = np.repeat(np.arange(len(matches)), [len(each.object_labels) for each in matches])
    order = np.argsort(-scores, kind="stable")
    order = order[np.argsort(labels[order], kind="stable")]
    parts = np.split(order, np.searchsorted(labels[order], np.arange(1, num_classes)))
    object_order = np.argsort(object_labels, kind="stable")
    object_parts = np.split(object_order, np.searchsorted(object_labels[object_order], np.arange(1, num_classes)))
    return [
        _ClassMatches(
            images[part], scores[part], ranks[part], outcomes[part], object_images[objects], counted[objects], thresholds
        )
        for part, objects in zip(parts, object_parts, strict=True)
    ]


def _average_precision(matches: _ClassMatches, area: int) -> Float[ndarray, " t"]:
    """Return the average precision of a class at each threshold; NaN without objects."""
    drawn = np.ones((1, 1 + max(matches.images.max(initial=0), matches.object_images.max(initial=0))), np.int64)
    return _resampled_precision(matches, drawn, area)[0]


def _recall(matches: _ClassMatches, area: int) -> Float[ndarray, " t"]:
    total = matches.counted[:, area].sum()
    right = (matches.outcomes[:, area] == RIGHT).sum(0)
    return right / total if total else np.full(len(matches.thresholds), np.nan)


def _resampled_precision(matches: _ClassMatches, drawn: Int[ndarray, "r n"], area: int = 0) -> Float[ndarray, "r t"]:
    """Return the average precision of a class at each threshold in each resample, from how often it has each image."""
    objects = np.bincount(matches.object_images[matches.counted[:, area]], minlength=drawn.shape[1])
    at_a_time, outcomes = max(CHUNK_NUMEL // max(len(matches.scores), 1), 1), matches.outcomes[:, area]
    parts = [drawn[start : start + at_a_time] for start in range(0, len(drawn), at_a_time)]
    rows = [_precision_of_resamples(outcomes, times[:, matches.images], times @ objects) for times in parts]
    return np.concatenate([np.zeros((0, len(matches.thresholds))), *rows])


def _precision_of_resamples(
    outcomes: Int8[ndarray, "d t"], times: Int[ndarray, "r d"], total: Int[ndarray, " r"]
) -> Float[ndarray, "r t"]:
    """Return average precision from how often each detection occurs, and the number of objects.

    Precision made monotonous changes, and recall reaches another level, at detections that are right alone.
    """
    result = np.zeros((len(total), outcomes.shape[1]))
    result[total == 0] = np.nan
    times, total = times[total > 0], total[total > 0, None]
    all_before = times.cumsum(1)
    for number, outcome in enumerate(outcomes.T):
        right, uncounted = np.flatnonzero(outcome == RIGHT), np.flatnonzero(outcome == UNCOUNTED)
        if not len(right) or not len(total):
            continue
        counted_before = (times * (outcome != UNCOUNTED)).cumsum(1)[:, right] if len(uncounted) else all_before[:, right]
        right_before = times[:, right].cumsum(1)
        precision = right_before / np.maximum(counted_before, 1)
        envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        levels = np.searchsorted(RECALL_LEVELS, right_before / total, side="right")  # reached so far
        new_levels = np.diff(levels, axis=1, prepend=0)
        result[~np.isnan(result[:, number]), number] = (envelope * new_levels).sum(1) / len(RECALL_LEVELS)
    return result


def _curve(matches: _ClassMatches) -> PrecisionRecall:
    place = _index_of(CURVE_IOU, matches.thresholds)
    assert place is not None
    outcome = matches.outcomes[:, 0, place]
    scores, right = matches.scores[outcome != UNCOUNTED], (outcome == RIGHT)[outcome != UNCOUNTED].cumsum()
    last = np.flatnonzero(np.append(scores[1:] != scores[:-1], [True] * bool(len(scores))))  # of equal scores
    total = int(matches.counted[:, 0].sum())
    recall = right[last] / total if total else np.full(len(last), np.nan)
    return PrecisionRecall(scores[last], right[last] / (last + 1), recall)


def _thresholds(matches: Sequence[ImageMatches]) -> tuple[float, ...]:
    return matches[0].thresholds if matches else IOU_THRESHOLDS


def _index_of(threshold: float, thresholds: Sequence[float]) -> int | None:
    return next((place for place, each in enumerate(thresholds) if np.isclose(each, threshold)), None)


def _mean(values: Float[ndarray, "*k"]) -> float:
    """Return the mean of those that are a number; NaN if none is."""
    found = values[~np.isnan(values)]
    return float(found.mean()) if len(found) else float("nan")


def _nanmean(values: Float[ndarray, "r k"]) -> Float[ndarray, " r"]:
    """Return the mean of each row over the classes that have a value; NaN if none has."""
    has_value = ~np.isnan(values)
    count = has_value.sum(1)
    return np.where(count > 0, np.where(has_value, values, 0).sum(1) / np.maximum(count, 1), np.nan)
