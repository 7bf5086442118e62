"""Metrics of detection equal pycocotools': random scenes, equal scores, crowds, empty images in any order, other thresholds and
numbers of detections. Those of resamples equal the metrics of the resampled images themselves."""

from dataclasses import replace

import numpy as np
import pytest

from tests.tasks.detected_scenes import (
    EMPTY_SCENE,
    NOTHING_DETECTED,
    Scene,
    evaluate_with_pycocotools,
    match_scenes,
    random_scene,
)
from vitrail.data.sources.objects import NO_OBJECTS, build_objects
from vitrail.tasks.detection_metrics import (
    bootstrap_detection,
    class_rows,
    detection_scores,
    image_average_precision,
    precision_recall_curves,
)
from vitrail.tasks.resampling import iter_resamples

CLASSES = 4
NAMES = ("disc", "square", "star", "ring")


def mixed(seeds: range, **settings: bool) -> list[Scene]:
    """Scenes of several sizes."""
    return [random_scene(seed, objects=3 + seed % 11, **settings) for seed in seeds]


def without_objects(scene: Scene) -> Scene:
    return replace(scene, objects=NO_OBJECTS)


def without_detections(scene: Scene) -> Scene:
    return Scene(*NOTHING_DETECTED, scene.objects)


def crowded(seed: int = 5) -> list[Scene]:
    """Images with more detections of a class than count."""
    return [random_scene(seed + number, classes=2, objects=90) for number in range(2)]


CASES = {
    "random": mixed(range(12)),
    "ties": mixed(range(20, 40), ties=True),
    "crowds": mixed(range(40, 60), crowds=True),
    "ties and crowds": mixed(range(60, 90), ties=True, crowds=True),
    "areas of masks": mixed(range(90, 110), areas=True, crowds=True),
    "empty images first": [
        EMPTY_SCENE,
        without_objects(random_scene(1)),
        without_detections(random_scene(2)),
        *mixed(range(6)),
    ],
    "empty images last": [*mixed(range(6)), without_detections(random_scene(2)), without_objects(random_scene(1)), EMPTY_SCENE],
    "an absent class": [random_scene(seed, classes=CLASSES - 1) for seed in range(7)],
    "a class detected but absent": [
        replace(each, labels=np.where(np.arange(len(each.labels)) % 5 == 0, CLASSES - 1, each.labels))
        for each in (random_scene(seed, classes=CLASSES - 1) for seed in range(5))
    ],
    "nothing detected": [without_detections(each) for each in mixed(range(4))],
    "no objects": [without_objects(each) for each in mixed(range(4))],
    "nothing at all": [EMPTY_SCENE, EMPTY_SCENE],
    "many detections": crowded(),
}


@pytest.mark.parity
@pytest.mark.parametrize("case", CASES)
def test_metrics_are_those_of_pycocotools(case: str) -> None:
    scenes = CASES[case]
    coco, matches = evaluate_with_pycocotools(scenes, CLASSES), match_scenes(scenes)
    sizes = dict(enumerate(("all", "small", "medium", "large")))
    expected = {
        "ap": coco.mean_precision(),
        "ap50": coco.mean_precision([0]),
        "ap75": coco.mean_precision([5]),
        **{f"ap_{size}": coco.mean_precision(area=area) for area, size in sizes.items() if area},
        **{f"ar{limit}": coco.mean_recall(place) for place, limit in enumerate((1, 10, 100))},
        **{f"ar_{size}": coco.mean_recall(area=area) for area, size in sizes.items() if area},
    }
    assert detection_scores(matches, CLASSES) == pytest.approx(expected, abs=1e-9, nan_ok=True)
    rows = class_rows(NAMES, matches, {})
    for label, row in enumerate(rows):
        found = row["ap"], row["ap50"]
        wanted = coco.mean_precision(classes=label), coco.mean_precision([0], classes=label)
        assert found == pytest.approx(wanted, abs=1e-9, nan_ok=True)


@pytest.mark.parity
@pytest.mark.parametrize("limits", [(1,), (2, 5, 300), (7, 1000)])
def test_other_numbers_of_detections(limits: tuple[int, ...]) -> None:
    """torchmetrics#2560: the summary of pycocotools is -1 unless one of them is 100."""
    scenes = [*crowded(), *mixed(range(5), ties=True)]
    coco = evaluate_with_pycocotools(scenes, CLASSES, max_detections=limits)
    scores = detection_scores(match_scenes(scenes, max_detections=limits[-1]), CLASSES, limits)
    expected = {"ap": coco.mean_precision(), "ap50": coco.mean_precision([0]), "ap_small": coco.mean_precision(area=1)}
    expected |= {f"ar{limit}": coco.mean_recall(place) for place, limit in enumerate(limits)}
    assert {name: scores[name] for name in expected} == pytest.approx(expected, abs=1e-9)


@pytest.mark.parity
@pytest.mark.parametrize("thresholds", [(0.3,), (0.5, 0.55), (0.1, 0.5, 0.99, 1.0)])
def test_other_thresholds(thresholds: tuple[float, ...]) -> None:
    scenes = mixed(range(200, 215), ties=True, crowds=True)
    coco = evaluate_with_pycocotools(scenes, CLASSES, thresholds)
    scores = detection_scores(match_scenes(scenes, thresholds=thresholds), CLASSES)
    assert scores["ap"] == pytest.approx(coco.mean_precision(), abs=1e-9)
    assert scores["ar_medium"] == pytest.approx(coco.mean_recall(area=2), abs=1e-9)
    assert ("ap50" in scores) == (0.5 in thresholds)
    assert "ap75" not in scores


def test_the_order_of_the_images_matters_for_equal_scores_alone() -> None:
    scenes = [*CASES["empty images first"], *CASES["random"]]
    scores = detection_scores(match_scenes(scenes), CLASSES)
    assert detection_scores(match_scenes(scenes[::-1]), CLASSES) == scores  # torchmetrics#1774
    tied = CASES["ties"]
    assert detection_scores(match_scenes(tied), CLASSES) != detection_scores(match_scenes(tied[::-1]), CLASSES)


def test_metrics_of_resamples_are_those_of_the_resampled_images() -> None:
    scenes = [*mixed(range(300, 307), crowds=True), without_objects(random_scene(9)), without_detections(random_scene(8))]
    matches = match_scenes(scenes)
    scores, per_class = bootstrap_detection(matches, CLASSES, resamples=7)
    drawn = np.concatenate(list(iter_resamples(len(scenes), 7)))
    for number, times in enumerate(drawn):
        chosen = [each for each, count in zip(matches, times.tolist(), strict=True) for _ in range(count)]
        expected = detection_scores(chosen, CLASSES)
        for name, values in scores.items():
            assert values[number] == pytest.approx(expected[name], abs=1e-12)
        for label, row in enumerate(class_rows(NAMES, chosen, {})):
            for name, samples in per_class.items():
                assert samples[number, label] == pytest.approx(row[name], abs=1e-12, nan_ok=True)


def test_a_class_that_a_resample_has_no_object_of_is_left_out_of_it() -> None:
    one, other = random_scene(1, classes=1), random_scene(2, classes=1)
    other = replace(other, labels=other.labels + 1, objects=other.objects.with_labels(other.objects.labels + 1))
    scores, per_class = bootstrap_detection(match_scenes([one, other]), 2, resamples=30)
    once = np.isnan(per_class["ap"]).any(1)
    assert 0 < once.mean() < 1
    assert (np.nanmean(per_class["ap"], axis=1) == scores["ap"]).all()
    rows = class_rows(NAMES[:3], match_scenes([one, other]))
    assert all(row["interval"]["ap"][0] <= row["ap"] <= row["interval"]["ap"][1] for row in rows[:2])
    assert np.isnan(rows[2]["interval"]["ap50"]).all()


def test_the_curve_and_its_best_threshold_by_hand() -> None:
    box, elsewhere = [2.0, 3.0, 12.0, 23.0], [50.0, 50.0, 60.0, 80.0]
    first = Scene(np.array([box, elsewhere]), np.array([0.9, 0.5]), np.zeros(2, np.int64), build_objects([box], [0]))
    second = Scene(np.array([elsewhere, box]), np.array([0.8, 0.5]), np.zeros(2, np.int64), build_objects([box], [0]))
    (curve,) = precision_recall_curves(match_scenes([first, second]), 1)
    assert curve.scores.tolist() == [0.9, 0.8, 0.5]  # both of 0.5 at once
    assert curve.precision.tolist() == [1, 0.5, 0.5]
    assert curve.recall.tolist() == [0.5, 0.5, 1]
    assert curve.f1.tolist() == pytest.approx([2 / 3, 0.5, 2 / 3])
    assert curve.best_threshold == pytest.approx(0.85)
    (row,) = class_rows(("disc",), match_scenes([first, second]), {})
    assert (row["threshold"], row["precision"], row["recall"]) == (pytest.approx(0.85), 1, 0.5)
    assert (row["objects"], row["images"]) == (2, 2)


def test_a_curve_without_objects_or_detections_has_no_best_threshold() -> None:
    scenes = [without_objects(random_scene(3)), EMPTY_SCENE]
    curves = precision_recall_curves(match_scenes(scenes), CLASSES)
    assert [curve.best_threshold for curve in curves] == [None] * CLASSES
    assert all(np.isnan(curve.recall).all() for curve in curves)
    assert class_rows(NAMES, match_scenes(scenes), {})[0]["f1"] == 0


def test_an_image_is_scored_by_one_ranking_of_its_detections() -> None:
    box, other = [2.0, 3.0, 12.0, 23.0], [30.0, 40.0, 60.0, 55.0]
    objects = build_objects([box, other], [0, 1])
    boxes, scores = np.array([box, other, other]), np.array([0.9, 0.8, 0.7])

    def score(labels: list[int]) -> float:
        return image_average_precision(match_scenes([Scene(boxes, scores, np.array(labels), objects)])[0])

    assert score([0, 1, 1]) == pytest.approx(1)
    assert score([0, 0, 1]) == pytest.approx((51 * 1 + 50 * 2 / 3) / 101)  # levels up to a recall of 0.5, and the others
    assert score([1, 0, 0]) == 0
    assert np.isnan(image_average_precision(match_scenes([EMPTY_SCENE])[0]))
