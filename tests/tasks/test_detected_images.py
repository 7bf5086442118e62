"""Detections of images survive being gathered in any order and saved, and give the same matches and confusion."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.tasks.detected_scenes import EMPTY_SCENE, Scene, match_scenes, random_scene
from tests.tasks.test_box_matching import confusion
from vitrail.tasks.detected_images import DetectedImages, load_detected_images, stack_detected_images
from vitrail.tasks.detection_metrics import detection_scores

CLASSES = 4
SCENES = [random_scene(seed, objects=2 + seed, ties=True, crowds=True, areas=True) for seed in range(6)]
SCENES[2] = EMPTY_SCENE


def detected(scenes: Sequence[Scene], indices: Sequence[int]) -> DetectedImages:
    rows = [torch.from_numpy(np.column_stack([each.boxes, each.scores, each.labels])) for each in scenes]
    return stack_detected_images(indices, rows, [each.objects for each in scenes])


def test_the_images_are_those_that_were_stacked() -> None:
    images = detected(SCENES, range(len(SCENES)))
    assert len(images) == len(SCENES)
    for (found, objects), scene in zip(images, SCENES, strict=True):
        np.testing.assert_array_equal(found.boxes, scene.boxes)
        np.testing.assert_array_equal(found.scores, scene.scores)
        np.testing.assert_array_equal(found.labels, scene.labels)
        for name in ("boxes", "labels", "crowd", "areas"):
            np.testing.assert_array_equal(getattr(objects, name), getattr(scene.objects, name))
    scores = detection_scores(images.matches(), CLASSES)
    np.testing.assert_equal(scores, detection_scores(match_scenes(SCENES), CLASSES))


def test_ranks_give_the_images_in_the_order_of_the_split() -> None:
    expected = detected(SCENES, range(len(SCENES)))
    ranks = [detected(SCENES[1::2], [1, 3, 5]), detected([], []), detected(SCENES[::2], [0, 2, 4])]
    rows = iter([torch.cat([getattr(each, name) for each in ranks]) for name in expected.tensors()])

    def gather(own: Tensor) -> Tensor:
        return next(rows)

    gathered = ranks[0].gathered(gather)
    for name, tensor in expected.tensors().items():
        assert_close(getattr(gathered, name), tensor, rtol=0, atol=0)


def test_saved_tensors_are_loaded_and_folds_follow_each_other() -> None:
    parts = [detected(SCENES[:2], [0, 1]), detected(SCENES[2:], range(4))]
    joined = {name: torch.cat([part.tensors()[name] for part in parts]) for name in parts[0].tensors()}
    images = load_detected_images({**joined, "losses": torch.zeros(3)})
    assert images is not None
    np.testing.assert_equal(detection_scores(images.matches(), CLASSES), detection_scores(match_scenes(SCENES), CLASSES))
    assert load_detected_images({"indices": joined["indices"]}) is None
    empty = detected([], [])
    assert empty.matches() == []
    assert not empty.confusion(np.zeros(CLASSES)).any()


def test_the_confusion_is_the_sum_over_the_images() -> None:
    thresholds = np.array([0.2, 0.4, 0.6, 0.0])
    expected = sum(confusion(each, thresholds) for each in SCENES)
    np.testing.assert_array_equal(detected(SCENES, range(len(SCENES))).confusion(thresholds), expected)
