"""Random images with objects and detections, and COCO's own evaluation of them."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from tests.reference_libraries import reference_library
from vitrail.data.sources.objects import NO_OBJECTS, Objects, build_objects
from vitrail.tasks.box_matching import ImageMatches, match_image

SIZE = (157.0, 201.0)


@dataclass(frozen=True, eq=False)
class Scene:
    """An image: what is detected in it, and its objects."""

    boxes: ndarray
    scores: ndarray
    labels: ndarray
    objects: Objects


NOTHING_DETECTED = (np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))
EMPTY_SCENE = Scene(*NOTHING_DETECTED, NO_OBJECTS)


def random_boxes(generator: np.random.Generator, count: int) -> ndarray:
    """Boxes of all sizes, from 4 to 150 pixels, at whole pixels so that areas lie on the borders of the ranges too."""
    sides = np.exp(generator.uniform(np.log(4), np.log(150), (count, 2))).round()
    sides[generator.random(count) < 0.1] = 32
    corners = (generator.random((count, 2)) * (np.array(SIZE) - sides).clip(1)).round()
    return np.concatenate([corners, corners + sides], axis=1)


def random_scene(
    seed: int, classes: int = 4, objects: int = 9, ties: bool = False, crowds: bool = False, areas: bool = False
) -> Scene:
    """Detections near some of the objects, mostly of their class, and some elsewhere; equal scores if there are ``ties``."""
    generator = np.random.default_rng(seed)
    true, labels = random_boxes(generator, objects), generator.integers(0, classes, objects)
    near = np.concatenate([true, true[: objects // 2], true[: objects // 3]])
    noise = generator.standard_normal(near.shape) * generator.choice([0, 1, 2, 6], (len(near), 1))
    found = near + noise.round() if ties else near + noise
    found[:, 2:] = np.maximum(found[:, 2:], found[:, :2] + 1)
    boxes = np.concatenate([found, random_boxes(generator, objects)])
    found_labels = np.concatenate(
        [labels, labels[: objects // 2], labels[: objects // 3], generator.integers(0, classes, objects)]
    )
    wrong = generator.random(len(found_labels)) < 0.2
    found_labels[wrong] = generator.integers(0, classes, wrong.sum())
    kept = generator.random(len(boxes)) < 0.85
    scores = generator.random(len(boxes))
    scores = ((scores * 5).round() / 5 if ties else scores).astype(np.float32)
    targets = build_objects(
        true,
        labels,
        generator.random(objects) < 0.2 if crowds else None,
        (true[:, 2:] - true[:, :2]).prod(1) * generator.uniform(0.3, 1, objects) if areas else None,
    )
    return Scene(boxes[kept], scores[kept], found_labels[kept], targets)


def match_scenes(scenes: Sequence[Scene], **settings: Any) -> list[ImageMatches]:
    return [match_image(each.boxes, each.scores, each.labels, each.objects, **settings) for each in scenes]


@dataclass(frozen=True, eq=False)
class CocoEvaluation:
    """The arrays of pycocotools: precision by threshold, recall level, class, area range and number of detections; and recall
    without recall levels. -1 is a class without objects."""

    precision: ndarray
    recall: ndarray

    def mean_precision(self, thresholds: Any = slice(None), area: int = 0, classes: Any = slice(None)) -> float:
        return _mean(self.precision[thresholds, :, classes, area, -1])

    def mean_recall(self, limit: int = -1, area: int = 0) -> float:
        return _mean(self.recall[:, :, area, limit])


def evaluate_with_pycocotools(
    scenes: Sequence[Scene],
    classes: int,
    thresholds: Sequence[float] | None = None,
    max_detections: Sequence[int] = (1, 10, 100),
) -> CocoEvaluation:
    """Evaluate without ``summarize``, which knows 100 detections alone."""
    coco, evaluation = (reference_library(f"pycocotools.{name}") for name in ("coco", "cocoeval"))
    truth: Any = coco.COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": index} for index in range(len(scenes))],
        "categories": [{"id": label} for label in range(classes)],
        "annotations": list(_annotations(scenes)),
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        found = truth.loadRes(results) if (results := list(_results(scenes))) else coco.COCO()
        if not results:
            found.dataset = {**truth.dataset, "annotations": []}
            found.createIndex()
        evaluator: Any = evaluation.COCOeval(truth, found, "bbox")
        evaluator.params.maxDets = list(max_detections)
        if thresholds is not None:
            evaluator.params.iouThrs = np.array(thresholds)
        evaluator.evaluate()
        evaluator.accumulate()
    return CocoEvaluation(evaluator.eval["precision"], evaluator.eval["recall"])


def _annotations(scenes: Sequence[Scene]) -> Any:
    number = 0
    for index, scene in enumerate(scenes):
        each = scene.objects
        for box, label, crowd, area in zip(each.boxes, each.labels, each.crowd, each.areas, strict=True):
            number += 1  # 0 would count as no match in pycocotools
            yield {
                "id": number, "image_id": index, "category_id": int(label), "bbox": _width_height(box), "area": float(area),
                "iscrowd": int(crowd),
            }  # fmt: skip


def _results(scenes: Sequence[Scene]) -> Any:
    for index, scene in enumerate(scenes):
        for box, score, label in zip(scene.boxes, scene.scores, scene.labels, strict=True):
            yield {"image_id": index, "category_id": int(label), "bbox": _width_height(box), "score": float(score)}


def _width_height(box: ndarray) -> list[float]:
    left, top, right, bottom = box.tolist()
    return [left, top, right - left, bottom - top]


def _mean(values: ndarray) -> float:
    return float(values[values > -1].mean()) if (values > -1).any() else float("nan")
