"""Evaluation of masks: the numbers are those of the outputs at the images' sizes, classes are matched by name, and several
views of an image are averaged where they belong."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from tests.evaluation.segmenters import CLASSES, SIZE, masked_images, random_segmenter
from tests.small_models import small_vit
from vitrail.data.connected_components import connected_components
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import with_class_names
from vitrail.errors import VitrailError
from vitrail.evaluation.evaluate import evaluate
from vitrail.evaluation.label_matching import match_masks
from vitrail.evaluation.resampled import compare_resampled
from vitrail.evaluation.segmentation import _absence_notes
from vitrail.inference import dense_tta
from vitrail.inference.dense_tta import DenseTTAPredictor, resize_pixels, scaled_sizes, with_image_size
from vitrail.inference.predictor import Predictor, TorchPredictor
from vitrail.tasks.boundary_iou import boundary_counts
from vitrail.tasks.panoptic_quality import panoptic_counts, panoptic_quality_per_class
from vitrail.tasks.segmentation import SegmentationTask


def predicted_masks(model: Any, data: Any) -> list[np.ndarray]:
    """Masks at the images' sizes, by torch's own interpolation."""
    images = vitrail.preprocess(model.encoder, [data.test.read(index) for index in range(len(data.test))])
    with torch.no_grad():
        outputs = F.interpolate(model(images), SIZE, mode="bilinear")
    return [each.argmax(0).numpy().astype(np.int16) for each in outputs]


def test_the_metrics_are_those_of_the_masks_at_the_images_sizes() -> None:
    model, data = random_segmenter(), masked_images()
    result, predicted = evaluate(model, data), predicted_masks(model, data)
    masks = [data.test.mask(index) for index in range(len(data.test))]
    pixels, truth = (np.concatenate([each.ravel() for each in column]) for column in (predicted, masks))
    pixels, truth = pixels[truth >= 0], truth[truth >= 0]
    iou = [((pixels == k) & (truth == k)).sum() / ((pixels == k) | (truth == k)).sum() for k in range(3)]
    assert list(result.details["iou"].values()) == pytest.approx(iou)
    assert result.metrics["miou"] == pytest.approx(np.mean(iou))
    assert result.metrics["pixel_accuracy"] == pytest.approx((pixels == truth).mean())
    counts = torch.stack([boundary_counts(*pair, 3) for pair in zip(predicted, masks, strict=True)]).sum(0).double()
    boundary = counts[:, 2] / (counts[:, 0] + counts[:, 1] - counts[:, 2])
    assert result.metrics["boundary_iou"] == pytest.approx(float(boundary.nanmean()))
    assert result.details["confusion"] == [[int(((truth == a) & (pixels == b)).sum()) for b in range(3)] for a in range(3)]
    assert result.details["test"]["iou"] == result.details["iou"]
    assert len(result.details["worst"]) == len(masks) - 1  # one has no counted pixel
    for name, (low, high) in result.intervals.items():
        assert low <= result.metrics[name] <= high, name


def test_objects_of_a_class_are_its_connected_components() -> None:
    model, data = random_segmenter(), masked_images()
    result, total = evaluate(model, data), torch.zeros(3, 4, dtype=torch.float64)
    for index, predicted in enumerate(predicted_masks(model, data)):
        found, objects = connected_components(predicted, predicted == 1), data.test.instances(index)
        assert objects is not None
        total += panoptic_counts(predicted, found, data.test.mask(index), objects, 3)
    for name, values in panoptic_quality_per_class(total).items():
        assert result.metrics[name] == pytest.approx(float(values.nanmean()))
    assert "pq" not in evaluate(model, masked_images(objects=False)).metrics


def test_classes_are_matched_by_name_in_any_order() -> None:
    model = random_segmenter()
    expected = evaluate(model, masked_images()).details
    found = evaluate(model, masked_images(classes=("road", "sky", "tree"))).details
    assert found["iou"] == expected["iou"]
    assert found["confusion"] == expected["confusion"]


def test_a_class_that_the_model_does_not_know_is_one_sentence() -> None:
    data = masked_images(classes=("sky", "car", "tree", "road"))
    with pytest.raises(
        VitrailError, match="1 of the 4 classes of noise is unknown to the model: 'car'; it knows 'sky', 'tree'"
    ):
        evaluate(random_segmenter(), data)
    with pytest.raises(VitrailError, match="two classes of the model are named 'tree'"):
        evaluate(random_segmenter(classes=("sky", "tree", "tree", "road")), masked_images())
    with pytest.raises(VitrailError, match="fashion:train_size=20 has no masks"):
        evaluate(random_segmenter(), "fashion:train_size=20")


def test_a_model_may_know_more_classes_than_the_masks_have() -> None:
    model = random_segmenter(classes=("road", "lamp", "sky", "tree"))
    result = evaluate(model, masked_images())
    source = match_masks(masked_images().test, TorchPredictor(model), "noise")
    assert source.mask_names == ("road", "lamp", "sky", "tree")
    assert set(np.unique(source.mask(0))) == {-1, 0, 2, 3}
    assert with_class_names(source, source.mask_names) is source
    assert "no mask here has 1 of the model's 4 classes, such as lamp" in result.notes[-1]


def test_classes_without_a_pixel_count_only_if_they_are_predicted() -> None:
    task = TorchPredictor(random_segmenter()).task
    assert isinstance(task, SegmentationTask)
    confusion = torch.zeros(1, 3, 3, dtype=torch.long)
    confusion[0, 0, 0] = 5
    assert _absence_notes(task, confusion)[0].endswith("; none is predicted, so the means leave them out")
    confusion[0, 0, 1] = 1
    assert _absence_notes(task, confusion)[0].endswith("counted in the means with an IoU of 0: 1 of them")


def test_two_models_are_compared_on_the_same_resamples() -> None:
    first, other = (evaluate(random_segmenter(seed), masked_images()) for seed in (0, 1))
    pairs = compare_resampled(first, other)
    assert pairs["miou"].difference == other.metrics["miou"] - first.metrics["miou"]
    assert {"miou", "pixel_accuracy", "boundary_iou", "pq", "nll"} <= pairs.keys()
    assert compare_resampled(first, first)["miou"].p == 1


def images(count: int = 4) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, 12, 15, 3), np.uint8)


def test_flipping_makes_a_prediction_that_does_not_depend_on_the_side() -> None:
    plain = TorchPredictor(random_segmenter())
    flipped = DenseTTAPredictor(plain, "flip")
    outputs, mirrored = flipped.outputs(images()), flipped.outputs(images()[:, :, ::-1].copy())
    np.testing.assert_allclose(outputs, mirrored[..., ::-1], atol=1e-5)
    views = [torch.from_numpy(plain.outputs(images())), torch.from_numpy(plain.outputs(images()[:, :, ::-1].copy())).flip(-1)]
    assert_close(torch.from_numpy(outputs).exp(), torch.stack([view.softmax(1) for view in views]).mean(0))


def test_scales_are_whole_patches_and_the_largest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_segmenter()
    plain = TorchPredictor(model)
    scaled = DenseTTAPredictor(plain, "scales")
    assert scaled.sizes == scaled_sizes(model.config, plain.preprocess) == [(12, 10), (12, 15), (12, 20)]
    assert scaled.preprocess.image_size == (12, 20)
    wide = np.random.default_rng(0).integers(0, 256, (3, 12, 20, 3), np.uint8)
    outputs = scaled.outputs(wide)
    assert outputs.shape == (3, 3, 12, 15)
    np.testing.assert_allclose(np.exp(outputs).sum(1), 1, atol=1e-5)
    assert not model.encoder.config.flexible
    with pytest.raises(VitrailError, match="images must be 12x15"):
        plain.outputs(wide)
    monkeypatch.setattr(dense_tta, "SCALES", (1.0,))
    alone = DenseTTAPredictor(plain, "scales").outputs(images())
    np.testing.assert_allclose(alone, DenseTTAPredictor(plain, "flip").outputs(images()), atol=1e-6)


def test_a_constant_image_stays_constant_and_trimmed_parts_grow_with_the_size() -> None:
    np.testing.assert_allclose(resize_pixels(np.full((2, 20, 20, 3), 255, np.uint8), (12, 15)), 255, atol=1e-4)
    larger = with_image_size(Preprocess((100, 200), 0.9, trim=(4, 0)), (150, 300))
    assert (larger.trim, larger.crop_pct) == ((6, 0), 0.9)


def test_evaluation_with_several_views_differs_and_is_repeatable() -> None:
    model, data = random_segmenter(), masked_images()
    values = {tta: evaluate(model, data, tta=tta).metrics["nll"] for tta in (None, "flip", "scales")}
    assert len(set(values.values())) == 3
    assert evaluate(model, data, tta="flip").metrics["nll"] == values["flip"]


def test_masks_are_predicted_from_several_views_also_in_tiles() -> None:
    model, data = random_segmenter(), masked_images()
    plain = TorchPredictor(model)
    files = [data.test.read(index) for index in range(4)]
    for tta in ("flip", "scales"):
        found = vitrail.predict(model, files, tta=tta)
        given = vitrail.predict(DenseTTAPredictor(plain, tta), files)  # a predictor may be given itself
        assert all(np.array_equal(first.mask, other.mask) for first, other in zip(found, given, strict=True))
        assert any((first.mask != other.mask).any() for first, other in zip(found, vitrail.predict(model, files), strict=True))
        assert [each.mask.shape for each in vitrail.predict(model, files, tta=tta, tile=(12, 15))] == [SIZE] * 4
    confusion = np.zeros((3, 3), np.int64)
    for index, prediction in enumerate(vitrail.predict(model, data.test, tta="scales")):
        mask = data.test.mask(index)
        np.add.at(confusion, (mask[mask >= 0], prediction.mask[mask >= 0]), 1)
    assert confusion.tolist() == evaluate(model, data, tta="scales").details["confusion"]


class Exported(Predictor):
    """A predictor without weights, as an exported file's."""

    backend = "onnxruntime"

    def outputs(self, images: np.ndarray) -> np.ndarray:
        return np.zeros((len(images), 3, 12, 15), np.float32)

    def hash(self) -> str:
        return ""


def test_views_that_a_model_cannot_have_are_refused() -> None:
    model = random_segmenter()
    plain = TorchPredictor(model)
    exported = Exported("model.onnx", plain.config, plain.preprocess, CLASSES, plain.metadata, has_decoder=True)
    relative = random_segmenter(position="relative")
    for arguments, message in (
        ((model, "crops"), "segmentation needs all of it; try tta=flip or tta=scales"),
        ((exported, "scales"), "model.onnx is an exported file, which takes images of one size; try tta=flip"),
        ((relative, "scales"), "because of its relative positions"),
    ):
        with pytest.raises(VitrailError, match=message):
            evaluate(arguments[0], masked_images(), tta=arguments[1])  # type: ignore[arg-type]
    assert evaluate(exported, masked_images(), tta="flip").metrics["miou"] > 0
    classifier = small_vit()
    classifier.preprocess = Preprocess((12, 15))
    with pytest.raises(VitrailError, match="tta=scales is for masks"):
        evaluate(classifier, "fashion:train_size=20", tta="scales")


def test_robustness_measures_the_pixel_accuracy_of_each_image_and_moves_no_parts() -> None:
    model, data = random_segmenter(), masked_images()
    result = vitrail.evaluate_robustness(model, data, batch_size=4)
    expected = [
        (predicted == mask)[mask >= 0].mean() if (mask >= 0).any() else 1.0
        for predicted, mask in zip(predicted_masks(model, data), map(data.test.mask, range(9)), strict=True)
    ]
    np.testing.assert_allclose(result.image_scores[:, 0], expected)
    assert [kind.name for kind in result.corruptions] == ["noise", "blur", "contrast", "jpeg", "drop", "occlude"]
    assert "shuffle moves parts of an image away from their masks, so it is left out" in result.notes
