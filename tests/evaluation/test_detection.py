"""Evaluation of boxes: the numbers are pycocotools' for the model's detections in the images' own pixels, and classes are
matched by name."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests.small_detector import CLASSES, SIZE, boxed_images, random_detector
from tests.tasks.detected_scenes import Scene, evaluate_with_pycocotools
from vitrail.data.loader import build_eval_loader
from vitrail.data.sources.dataset import DatasetSplits
from vitrail.data.sources.objects import NO_OBJECTS, build_objects
from vitrail.errors import VitrailError
from vitrail.evaluation.evaluate import evaluate
from vitrail.evaluation.resampled import compare_resampled
from vitrail.evaluation.robustness import evaluate_robustness
from vitrail.tasks.box_decoding import decode_boxes
from vitrail.tasks.detection_metrics import bootstrap_detection, score_thresholds
from vitrail.tasks.registry import model_task
from vitrail.tasks.resampling import finite_interval
from vitrail.tasks.task import Gather


def scenes(model: Any, data: DatasetSplits) -> list[Scene]:
    """The detections in the pixels of the images, which the input stretches by three."""
    images = vitrail.preprocess(model.encoder, [data.test.read(index) for index in range(len(data.test))])
    with torch.no_grad():
        found = decode_boxes(model(images), (12, 15), 30)
    limits = np.array([SIZE[1], SIZE[0]] * 2)
    rows = zip(found.boxes.double().numpy(), found.scores.numpy(), found.labels.numpy(), strict=True)
    return [
        Scene((3 * boxes).clip(0, limits)[scores > 0], scores[scores > 0], labels[scores > 0], data.test.objects(index))
        for index, (boxes, scores, labels) in enumerate(rows)
    ]


def near_detections(model: Any) -> DatasetSplits:
    """Images with objects near some detections of a model, mostly of their class."""
    data, generator, objects = boxed_images(), np.random.default_rng(0), []
    for scene in scenes(model, data):
        chosen = generator.permutation(len(scene.boxes))[:5]
        boxes = scene.boxes[chosen] + generator.normal(0, 1, (len(chosen), 4))
        labels = np.where(generator.random(len(chosen)) < 0.8, scene.labels[chosen], generator.integers(0, 3, len(chosen)))
        valid = (boxes[:, 2:] > boxes[:, :2]).all(1)
        objects.append(build_objects(boxes[valid], labels[valid]))
    split: Any = data.test
    changed = replace(split, dataset=replace(split.dataset, boxes=(*objects[:-1], NO_OBJECTS)))
    return replace(data, train=changed, validation=changed, test=changed)


@pytest.mark.parity
def test_the_metrics_are_those_of_pycocotools_in_the_pixels_of_the_images() -> None:
    model = random_detector()
    data = near_detections(model)
    result, coco = evaluate(model, data, batch_size=4), evaluate_with_pycocotools(scenes(model, data), len(CLASSES))
    expected = {"ap": coco.mean_precision(), "ap50": coco.mean_precision([0]), "ap75": coco.mean_precision([5])}
    expected |= {"ap_small": coco.mean_precision(area=1), "ar1": coco.mean_recall(0), "ar100": coco.mean_recall()}
    assert expected["ap50"] > 0.1  # something is found
    assert {name: result.metrics[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    for label, row in enumerate(result.details["classes"]):
        assert row["name"] == CLASSES[label]
        assert row["ap50"] == pytest.approx(coco.mean_precision([0], classes=label), abs=1e-6)
        assert row["interval"]["ap50"][0] <= row["ap50"] <= row["interval"]["ap50"][1]
    samples, _ = bootstrap_detection(result.detected.matches(), len(CLASSES))
    assert result.intervals == {name: finite_interval(values) for name, values in samples.items()}
    assert result.details["test"] == result.metrics


def test_the_confusion_counts_every_object_and_detection() -> None:
    model, data = random_detector(), boxed_images()
    result = evaluate(model, data)
    counts, thresholds = np.array(result.details["confusion"]), score_thresholds(result.details["classes"])
    found = scenes(model, data)
    objects = np.concatenate([each.objects.labels[~each.objects.crowd] for each in found])
    np.testing.assert_array_equal(counts[:-1].sum(1), np.bincount(objects, minlength=3))
    kept = sum(int((each.scores >= thresholds[each.labels]).sum()) for each in found)
    assert kept - counts[:, :-1].sum() in (0, 1, 2, 3)  # those in the crowd
    names = (*CLASSES, "background")
    for pair in result.details["confused"]:
        label, predicted = names.index(pair["label"]), names.index(pair["predicted"])
        assert label != predicted
        assert pair["count"] == counts[label, predicted]
        assert pair["fraction"] == pair["count"] / counts[label].sum()
    worst = result.details["worst"]
    assert len(worst) == len(found) - 1  # one has no objects
    assert [row["ap50"] for row in worst] == sorted(row["ap50"] for row in worst)


def test_training_and_evaluation_have_the_same_metrics() -> None:
    model = random_detector()
    data = near_detections(model)
    task, result = model_task(model), evaluate(model, data)
    scores = task.evaluate(model, build_eval_loader(data.test, model.encoder.preprocess, 4), workers=0)
    assert {name: scores[name] for name in result.metrics} == pytest.approx(result.metrics, abs=1e-5, nan_ok=True)
    assert scores["loss"] > 0
    rows = task.split_details(scores)["classes"]
    assert [row["ap"] for row in rows] == pytest.approx([row["ap"] for row in result.details["classes"]], abs=1e-5)


def test_two_ranks_have_the_metrics_of_one() -> None:
    """The ranks share the images of each batch, so that they are gathered in another order."""
    model = random_detector()
    data, task = near_detections(model), model_task(model)

    def evaluate_rank(gather: Gather, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
        loader = build_eval_loader(data.test, model.encoder.preprocess, 4, rank=rank, world_size=world_size)
        return task.evaluate(model, loader, 0, gather)

    own: list[torch.Tensor] = []

    def record(rows: torch.Tensor) -> torch.Tensor:
        own.append(rows)
        return rows

    evaluate_rank(record, 1, 2)
    others = iter(own)
    shared, alone = evaluate_rank(lambda rows: torch.cat([rows, next(others)]), 0, 2), evaluate_rank(lambda rows: rows)
    assert next(others, None) is None
    assert shared["indices"].tolist() == list(range(9))
    for name, value in alone.items():
        np.testing.assert_allclose(shared[name], value, rtol=0, atol=1e-5, err_msg=name)


def test_classes_are_matched_by_name_in_any_order() -> None:
    model = random_detector()
    expected = evaluate(model, boxed_images())
    found = evaluate(model, boxed_images(classes=("star", "disc", "square")))
    np.testing.assert_equal(found.metrics, expected.metrics)
    assert found.details["confusion"] == expected.details["confusion"]


def test_a_class_that_the_model_does_not_know_is_one_sentence() -> None:
    with pytest.raises(VitrailError, match="1 of the 4 classes of noise is unknown to the model: 'ring'; it knows 'disc'"):
        evaluate(random_detector(), boxed_images(classes=(*CLASSES, "ring")))
    with pytest.raises(VitrailError, match="two classes of the model are named 'disc', so the boxes of noise cannot be"):
        evaluate(random_detector(classes=("disc", "disc", "square", "star")), boxed_images())
    with pytest.raises(VitrailError, match="fashion:train_size=20 has no boxes"):
        evaluate(random_detector(), "fashion:train_size=20")


def test_a_model_may_know_more_classes_than_the_images_have() -> None:
    model = random_detector(classes=("star", "lamp", "disc", "square"))
    result = evaluate(model, boxed_images())
    assert "no image here has an object of 1 of the model's 4 classes, such as lamp; they are left out" in result.notes[-1]
    lamp = result.details["classes"][1]
    assert (lamp["objects"], lamp["threshold"]) == (0, None)
    assert np.isnan(lamp["ap"])
    assert result.metrics["ap"] == pytest.approx(np.nanmean([row["ap"] for row in result.details["classes"]]))


def test_two_models_are_compared_on_the_same_resamples() -> None:
    first, other = (evaluate(random_detector(seed), boxed_images()) for seed in (0, 1))
    pairs = compare_resampled(first, other)
    assert set(pairs) == {"ap", "ap50", "ap75"}
    assert pairs["ap50"].difference == other.metrics["ap50"] - first.metrics["ap50"]
    assert compare_resampled(first, first)["ap"].p == 1


def test_robustness_starts_from_the_average_precision_of_each_image() -> None:
    model = random_detector()
    data = near_detections(model)
    result, plain = evaluate_robustness(model, data), evaluate(model, data)
    own = plain.outputs.numpy().copy()
    assert np.isnan(own[-1])
    own[-1] = 1 - int((scenes(model, data)[-1].scores >= 0.5).any())
    np.testing.assert_allclose(result.image_scores[:, 0], own, atol=1e-6)
    assert "shuffle" not in result.scores
    assert any("moves parts of an image away from their boxes" in note for note in result.notes)


def test_an_image_without_objects_is_right_if_nothing_is_detected() -> None:
    model, data = random_detector(), boxed_images()
    task = model_task(model)
    outputs, targets = torch.zeros(2, 7, 6, 8), task.image_targets(data.test, np.array([8, 8]))
    outputs[:, :3] = -3.0
    outputs[1, 1, 2, 3] = 2.0
    assert task.image_scores(outputs, targets).tolist() == [1, 0]


def test_a_split_without_objects_has_no_scores() -> None:
    model, data = random_detector(), boxed_images(1)
    result = evaluate(model, data)
    assert all(np.isnan(value) for value in result.metrics.values())
    assert np.isnan(result.intervals["ap"]).all()
    assert result.details["worst"] == []
