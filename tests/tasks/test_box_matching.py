"""Boxes overlap as in pycocotools, detections are matched as it matches them, and each counts once in the confusion matrix."""

from typing import Any

import numpy as np
import pytest
from numpy import ndarray

from tests.reference_libraries import reference_library
from tests.tasks.detected_scenes import EMPTY_SCENE, Scene, random_boxes, random_scene
from vitrail.data.sources.objects import NO_OBJECTS, build_objects
from vitrail.tasks.box_matching import (
    RIGHT,
    UNCOUNTED,
    WRONG,
    box_agreement,
    box_iou,
    confusion_with_background,
    match_image,
    pair_boxes,
)

CLASSES = 4
LOW = np.zeros(CLASSES)  # score thresholds


@pytest.mark.parity
def test_overlaps_are_those_of_pycocotools() -> None:
    mask: Any = reference_library("pycocotools.mask")
    generator = np.random.default_rng(0)
    first, other = random_boxes(generator, 13), random_boxes(generator, 17)
    crowd = generator.random(17) < 0.3
    sides = [np.concatenate([each[:, :2], each[:, 2:] - each[:, :2]], axis=1) for each in (first, other)]
    expected = mask.iou(*sides, crowd.astype(np.uint8).tolist())
    assert (expected > 0).sum() > 20
    np.testing.assert_allclose(box_iou(first, other, crowd), expected, atol=1e-12)
    assert box_iou(first[:0], other).shape == (0, 17)
    degenerate = np.array([[5.0, 5, 5, 9], [3, 3, 3, 3]])
    assert not box_iou(degenerate, degenerate).any()


def outcomes(boxes: list[list[float]], objects: Any, scores: list[float], area: int = 0) -> ndarray:
    labels = np.zeros(len(boxes), np.int64)
    return match_image(np.array(boxes), np.array(scores), labels, objects, (0.5, 0.9)).outcomes[:, area]


BOX, SHIFTED, ELSEWHERE = [10.0, 10, 30, 50], [11.0, 10, 31, 50], [80.0, 80, 90, 90]


def test_an_object_is_found_once_by_the_best_detection() -> None:
    objects = build_objects([BOX], [0])
    assert outcomes([SHIFTED, BOX, ELSEWHERE], objects, [0.9, 0.8, 0.7]).tolist() == [
        [RIGHT, RIGHT],
        [WRONG, WRONG],
        [WRONG, WRONG],
    ]
    assert outcomes([SHIFTED, BOX], objects, [0.8, 0.9]).tolist() == [[RIGHT, RIGHT], [WRONG, WRONG]]
    looser = [14.0, 10, 34, 50]  # an IoU of 2/3
    assert outcomes([looser, BOX], objects, [0.9, 0.8]).tolist() == [[RIGHT, WRONG], [WRONG, RIGHT]]


def test_detections_in_a_crowd_and_of_other_sizes_do_not_count() -> None:
    crowd = build_objects([[0, 0, 100, 100], BOX], [0, 0], np.array([True, False]))
    assert outcomes([BOX, SHIFTED, ELSEWHERE], crowd, [0.9, 0.8, 0.7])[:, 0].tolist() == [RIGHT, UNCOUNTED, UNCOUNTED]
    medium = build_objects([BOX], [0], areas=np.array([1025.0]))  # by its mask; the boxes have 800 pixels
    assert outcomes([BOX, ELSEWHERE], medium, [0.9, 0.8], area=1)[:, 0].tolist() == [UNCOUNTED, WRONG]
    assert outcomes([BOX, ELSEWHERE], medium, [0.9, 0.8], area=2)[:, 0].tolist() == [RIGHT, UNCOUNTED]


def test_agreement_is_the_f1_of_the_boxes_of_all_images() -> None:
    first = np.array([[*BOX, 0.9, 1], [*ELSEWHERE, 0.3, 1], [5, 5, 5, 9, 0.9, 1]])  # the last has no area
    second = np.array([[*ELSEWHERE, 0.2, 0]])
    none = np.zeros((0, 6))
    assert box_agreement([first, second], [first, second]) == 1
    assert box_agreement([none, none], [none, none]) == 1
    assert box_agreement([first, none], [first, second]) == 2 * 2 / 5
    assert box_agreement([none, none], [first, second]) == 0
    shifted = np.array([[*SHIFTED, 0.1, 1], [*BOX, 0.05, 1], [*ELSEWHERE, 0.3, 0]])
    assert box_agreement([shifted, second], [first, second]) == 2 * 2 / 7, "a box is matched once, and with its class"
    assert box_agreement([second, first], [first, second]) == 0, "images are not mixed"


def test_only_the_best_detections_of_each_class_are_kept() -> None:
    scene = random_scene(4)
    matches = match_image(scene.boxes, scene.scores, scene.labels, scene.objects, max_detections=2)
    assert (np.diff(matches.scores) <= 0).all()
    for label in range(CLASSES):
        best = np.sort(scene.scores[scene.labels == label])[::-1][:2]
        assert matches.scores[matches.labels == label].tolist() == best.tolist()
        assert matches.ranks[matches.labels == label].tolist() == list(range(len(best)))


def confusion(scene: Scene, thresholds: ndarray = LOW) -> ndarray:
    pairs = pair_boxes(scene.boxes, scene.scores, scene.labels, scene.objects, thresholds)
    return confusion_with_background(scene.labels, scene.objects, pairs, len(thresholds))


@pytest.mark.parametrize("seed", range(6))
def test_every_detection_and_object_counts_once(seed: int) -> None:
    scene, thresholds = random_scene(seed, objects=25), np.array([0.2, 0.5, 0.0, 0.9])
    counts, kept = confusion(scene, thresholds), scene.scores >= thresholds[scene.labels]
    np.testing.assert_array_equal(counts[:-1].sum(1), np.bincount(scene.objects.labels, minlength=CLASSES))
    np.testing.assert_array_equal(counts[:, :-1].sum(0), np.bincount(scene.labels[kept], minlength=CLASSES))
    assert counts[-1, -1] == 0
    matches = match_image(scene.boxes[kept], scene.scores[kept], scene.labels[kept], scene.objects)
    right = matches.labels[matches.outcomes[:, 0, 0] == RIGHT]
    np.testing.assert_array_equal(counts.diagonal()[:-1], np.bincount(right, minlength=CLASSES))


def test_a_detection_of_another_class_takes_what_its_own_has_left() -> None:
    objects = build_objects([BOX, ELSEWHERE], [0, 1])
    scene = Scene(np.array([BOX, BOX, ELSEWHERE]), np.array([0.9, 0.6, 0.7]), np.array([2, 0, 3]), objects)
    expected = np.zeros((5, 5), int)
    expected[0, 0] = expected[4, 2] = expected[1, 3] = 1  # the best detection of the first object is of another class
    np.testing.assert_array_equal(confusion(scene), expected)
    expected[0, 0], expected[4, 2], expected[0, 2] = 0, 0, 1
    np.testing.assert_array_equal(confusion(scene, np.array([0.65, 0, 0, 0])), expected)


def test_a_crowd_excuses_detections_of_its_class_alone() -> None:
    objects = build_objects([[0, 0, 100, 100]], [1], np.array([True]))
    scene = Scene(np.array([BOX, ELSEWHERE]), np.array([0.9, 0.8]), np.array([1, 2]), objects)
    expected = np.zeros((5, 5), int)
    expected[4, 2] = 1
    np.testing.assert_array_equal(confusion(scene), expected)
    assert not confusion(EMPTY_SCENE).any()
    assert confusion(Scene(scene.boxes, scene.scores, scene.labels, NO_OBJECTS))[4].tolist() == [0, 1, 1, 0, 0]
