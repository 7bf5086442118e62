"""What is explained of a detection model: a box by its index, by a pixel in it, or the best one, in pixels of the image."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.small_detector import CLASSES, boxed_images, random_detector
from vitrail.data.preprocess import Fit
from vitrail.data.sources.dataset import ArrayDataset
from vitrail.errors import VitrailError
from vitrail.evaluation.box_selection import BoxSelection
from vitrail.evaluation.explanation_benchmark import benchmark_explanations
from vitrail.evaluation.explanations import explain_images
from vitrail.evaluation.region_selection import PixelSelection, region_json
from vitrail.explain.box import box_classifier
from vitrail.explain.faithfulness import pointing_game, pool_to_patches
from vitrail.explain.saliency import saliency
from vitrail.inference.predict import predict
from vitrail.inference.preprocess_images import preprocess

WIDTH, HEIGHT = 30, 22  # of an image
PIXELS = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3)).astype(np.uint8)


def explain(model: Any | None = None, image: Any = PIXELS, **options: Any) -> list[Any]:
    return list(explain_images(model or random_detector(), [image], **{"methods": (), **options}))


@pytest.mark.parametrize("fit", ["stretch", "pad", "crop"])
def test_a_box_is_that_of_the_prediction(fit: Fit) -> None:
    model = random_detector(fit=fit)
    model.encoder.metadata["task_state"] = {"thresholds": [0.01, 0.3, 0.02]}
    (prediction,) = predict(model, [PIXELS])
    for index in (0, 2):
        (explanation,) = explain(model, box=BoxSelection(index))
        found: Any = prediction
        expected = found.boxes[index]
        assert (explanation.region.label, explanation.region.index) == (expected.label, index)
        assert_close(explanation.region.score, expected.score)
        assert_close(explanation.region.box, expected.box)
        assert explanation.target == CLASSES.index(expected.label)
        assert_close(float(explanation.probabilities[explanation.target]), expected.score, rtol=1e-5, atol=1e-6)


def test_a_pixel_chooses_the_box_with_the_highest_score_that_contains_it() -> None:
    model = random_detector()
    found: Any = predict(model, [PIXELS], threshold=0.0)[0]
    for column, row in ((3, 4), (17, 11), (28, 20)):
        containing = [
            index
            for index, each in enumerate(found.boxes)
            if each.box[0] <= column + 0.5 < each.box[2] and each.box[1] <= row + 0.5 < each.box[3]
        ]
        if not containing:
            with pytest.raises(VitrailError, match=f"no detection contains the pixel {column},{row}"):
                explain(model, box=BoxSelection(point=(column, row)))
            continue
        (explanation,) = explain(model, box=BoxSelection(point=(column, row)))
        assert explanation.region.index == containing[0]


def test_boxes_below_the_threshold_of_their_class_come_last() -> None:
    model = random_detector()
    labels = [CLASSES.index(each.region.label) for each in (explain(model, box=BoxSelection(index))[0] for index in range(6))]
    thresholds = [0.0 if label != labels[0] else 1.0 for label in range(len(CLASSES))]  # the class of the best box last
    model.encoder.metadata["task_state"] = {"thresholds": thresholds}
    first = next(label for label in labels if label != labels[0])
    assert explain(model)[0].region.label == CLASSES[first]
    assert len(explain(model)[0].region.detections.scores) < 30


def test_without_a_box_the_best_of_the_class_is_explained() -> None:
    (best,) = explain()
    assert best.region.index == 0
    for label, name in enumerate(CLASSES):
        (of_class,) = explain(target=label)
        assert (of_class.region.label, of_class.target) == (name, label)
        assert of_class.region.score <= best.region.score
    assert max(each.region.score for each in explain(target=[0, 1, 2])) == pytest.approx(best.region.score)


def test_several_classes_of_a_box_are_those_of_its_cell() -> None:
    first, second = explain(box=BoxSelection(2), target=[2, 0], methods=("rollout", "gradcam"))
    assert first.region.index == second.region.index == 2
    assert (first.target, second.target, second.is_another_target) == (2, 0, True)
    assert_close(first.outputs, second.outputs)
    values = region_json(first.region, first.curves)
    assert values["detection"]["index"] == 2
    assert values["detection"]["size"] == (WIDTH, HEIGHT)
    assert set(values["curves"]) == {"random", "edges", "rollout", "gradcam"}
    assert_close(values["curves"]["gradcam"]["deletion"][0], float(first.probabilities[2]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [(1, 1), (1, 70), (90, 2)])
def test_images_of_any_size_have_a_best_box(size: tuple[int, int]) -> None:
    (explanation,) = explain(image=np.full((*size, 3), 99, np.uint8))
    left, top, right, bottom = explanation.region.box
    assert 0 <= left <= right <= size[1]
    assert 0 <= top <= bottom <= size[0]


def test_what_cannot_be_explained_is_named() -> None:
    with pytest.raises(VitrailError, match="must lie in the image, which is 30x22, got 30,0"):
        explain(box=BoxSelection(point=(30, 0)))
    with pytest.raises(VitrailError, match="must be an index from 0 to"):
        explain(box=BoxSelection(999))
    with pytest.raises(VitrailError, match="leave --pixel and --region out"):
        explain(pixels=PixelSelection((0, 0)))


def test_faithfulness_on_a_dataset_is_that_of_the_best_boxes() -> None:
    """At the model's own size, the benchmark of one image is its explanation."""
    model, pixels = random_detector(), PIXELS[:12, :15].copy()
    model.head.heat.bias.data += 5
    data = ArrayDataset(pixels[None], np.zeros(1, np.int64), ("any",))
    scores = {row.method: row for row in benchmark_explanations(model, data, ["gradcam"], workers=0)}
    (explanation,) = explain(model, pixels, methods=("gradcam",))
    assert_close(scores["gradcam"].deletion_curve, tuple(explanation.curves["gradcam"].everywhere.deletion_curve[0].tolist()))
    images = preprocess(model, [pixels])
    classifier = box_classifier(model, images)
    maps = saliency(classifier, images, "gradcam", classifier.labels)
    expected = pointing_game(maps, pool_to_patches(classifier.box_masks((12, 15)), (2, 3)))
    assert scores["gradcam"].pointing_game is not None
    assert scores["gradcam"].pointing_game.mean == expected.item()


def test_images_without_a_box_of_the_class_are_left_out_of_the_benchmark() -> None:
    model, data = random_detector(), boxed_images(5).train
    model.head.heat.bias.data[:] = torch.tensor([0.0, 1.0, -40.0])
    rows = benchmark_explanations(model, data, ["rollout"], workers=0, target=1)
    assert 0 < rows[0].num_images <= 5
    with pytest.raises(VitrailError, match="no star is detected in these images"):
        benchmark_explanations(model, data, ["rollout"], workers=0, target=2)
