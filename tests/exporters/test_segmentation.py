"""Segmentation models as files: the logits of every pixel, and a drop of mean IoU at their own sizes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from numpy.testing import assert_allclose, assert_array_equal

from tests.exporters.small import random_images
from tests.small_segmenter import CLASS_NAMES, small_segmenter
from vitrail.data.sources.dataset import IGNORED
from vitrail.errors import VitrailError
from vitrail.exporters.export import export, write_and_verify
from vitrail.exporters.output_scores import MaskScorer, batch_size, output_scorer
from vitrail.exporters.parity import ParityReport, compare_with_model, require_accuracy
from vitrail.exporters.quantise import quantise
from vitrail.exporters.sample_images import SampleImages, load_sample_images
from vitrail.exporters.smoothquant import smooth_activations
from vitrail.inference.export_metadata import dump_metadata, parse_export_metadata
from vitrail.inference.load import load_predictor
from vitrail.inference.predictor import TorchPredictor
from vitrail.models.build import get_encoder

pytest.importorskip("onnx")
PANES = "panes:train_size=24,size=21x31"


def panes_segmenter() -> Any:
    model = small_segmenter()
    encoder = get_encoder(model)
    encoder.class_names = ("figure", "tree", "background")  # in another order than the dataset's
    return model


def masks_of(images: ndarray, size: tuple[int, int] = (19, 23)) -> list[ndarray]:
    """Masks of another size than the model's input, a tenth of whose pixels is ignored."""
    random = np.random.default_rng(1)
    masks = random.integers(0, 3, (len(images), *size)).astype(np.int16)
    masks[random.random(masks.shape) < 0.1] = IGNORED
    return list(masks)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("to", "dynamic"),
    [
        ("onnx", False),
        ("program", True),
        *(pytest.param(*each, marks=pytest.mark.thorough) for each in (("program", False), ("onnx", True))),
    ],
)
@pytest.mark.parametrize("layers", [(), pytest.param((1, 2), marks=pytest.mark.thorough)])
def test_an_exported_file_has_the_logits_of_the_model(to: Any, dynamic: bool, layers: tuple[int, ...], tmp_path: Path) -> None:
    model = small_segmenter(layers=layers)
    path = tmp_path / ("x.pt2" if to == "program" else "x.onnx")
    report = export(model, path, to, dynamic=dynamic).parity
    assert report.relative_difference < 1e-5
    assert (report.agreement, report.agreement_title) == (1.0, "same class of a pixel")
    assert (report.other_sizes_difference is None) != dynamic
    predictor, reference = load_predictor(path), TorchPredictor(model)
    assert predictor.class_names == CLASS_NAMES
    assert predictor.task.config == reference.task.config
    for count in (1, 3):
        images = random_images(count)
        assert_allclose(predictor.outputs(images), reference.outputs(images), rtol=0, atol=1e-4)
    with pytest.raises(VitrailError, match="since it was exported"):
        predictor.features(random_images(1))


@pytest.mark.compile
def test_a_graph_has_logits_alone(tmp_path: Path) -> None:
    """onnxruntime computes every output, asked for or not; the class of a pixel is decided at the size of the image."""
    import onnx

    export(small_segmenter(), tmp_path / "x.onnx")
    assert [each.name for each in onnx.load(str(tmp_path / "x.onnx")).graph.output] == ["logits"]


def test_smoothing_changes_the_encoder_and_no_output() -> None:
    model, images = small_segmenter(layers=(1, 2)), torch.randn(5, 3, 12, 15)
    smoothed = smooth_activations(model, images)
    with torch.no_grad():
        assert_allclose(smoothed(images).numpy(), model(images).numpy(), atol=1e-4)
    changed = {name for name, weight in model.state_dict().items() if not torch.equal(weight, smoothed.state_dict()[name])}
    assert changed
    assert all(name.startswith("encoder.blocks.") for name in changed)


@pytest.mark.compile
@pytest.mark.parametrize("activations", ["static", pytest.param("dynamic", marks=pytest.mark.thorough)])
def test_the_blocks_are_in_int8_and_the_head_in_float(activations: Any, tmp_path: Path) -> None:
    model, images = small_segmenter(), random_images(20)
    masks = [mask.argmax(0).astype(np.int16) for mask in TorchPredictor(model).outputs(images)]  # the model itself is perfect
    samples = SampleImages(images, np.full(20, -1), "noise", masks=lambda index: masks[index])
    report = quantise(model, tmp_path / "a.onnx", images[:8], samples, activations, max_drop=0.3)
    assert report.num_layers == 8
    assert report.float_layers == ()
    assert 0 < report.accuracy_drop < 0.3
    parity = compare_with_model(model, load_predictor(tmp_path / "a.onnx"), samples)
    assert parity.torch_miou == 1
    assert parity.accuracy_drop == pytest.approx(report.accuracy_drop, abs=1e-6)
    assert 0 < 1 - parity.agreement < 0.2


@pytest.mark.compile
def test_layers_stay_in_float_until_little_of_the_mean_iou_is_lost(tmp_path: Path) -> None:
    model, images = small_segmenter(), random_images(20)
    masks = [mask.argmax(0).astype(np.int16) for mask in TorchPredictor(model).outputs(images)]
    samples = SampleImages(images, np.full(20, -1), "noise", masks=lambda index: masks[index])
    report = quantise(model, tmp_path / "a.onnx", images[:8], samples, max_drop=0.0)
    assert report.float_layers
    assert report.accuracy_drop <= 0


@pytest.mark.compile
def test_a_file_that_loses_too_much_is_removed(tmp_path: Path) -> None:
    """The file is of another model, whose masks are others."""
    model, images = small_segmenter(), random_images(6)
    export(model, tmp_path / "good.onnx")
    content = (tmp_path / "good.onnx").read_bytes()

    def write(path: Path) -> None:
        path.write_bytes(content)

    with torch.no_grad():
        model.head.linear.bias += torch.randn(model.head.linear.bias.shape)
    masks = [mask.argmax(0).astype(np.int16) for mask in TorchPredictor(model).outputs(images)]
    samples = SampleImages(images, np.full(6, -1), "noise", masks=lambda index: masks[index])
    with pytest.raises(VitrailError, match=r"x\.onnx loses \d+\.\d+ points of mean IoU on noise, where 0.5 are allowed, so it"):
        write_and_verify(
            model, tmp_path / "x.onnx", "int8", write, samples, lambda report: require_accuracy(report, "x.onnx", 0.005)
        )
    assert [each.name for each in tmp_path.iterdir()] == ["good.onnx"]


def test_scores_are_the_mean_iou_at_the_sizes_of_the_images_whatever_the_batches() -> None:
    model, images = small_segmenter(), random_images(5)
    predictor, masks = TorchPredictor(model), masks_of(random_images(5))
    samples = SampleImages(images, np.full(5, -1), "noise", masks=lambda index: masks[index])
    scorer = output_scorer(predictor.task, samples, True)
    assert isinstance(scorer, MaskScorer)
    outputs = predictor.outputs(images)
    whole = scorer.join([scorer.reduce(outputs, 0)])
    parts = scorer.join([scorer.reduce(outputs[:2], 0), scorer.reduce(outputs[2:], 2)])
    assert_array_equal(parts.classes, whole.classes)
    assert torch.equal(parts.confusion, whole.confusion)
    assert int(whole.confusion.sum()) == sum(int((mask != IGNORED).sum()) for mask in masks)
    scores = scorer.scores(parts, whole)
    assert scores is not None
    iou = []
    for label in range(3):
        true, predicted = zip(
            *(_regions(predictor, logits, mask, label) for logits, mask in zip(outputs, masks, strict=True)), strict=True
        )
        a, b = np.concatenate(true), np.concatenate(predicted)
        iou.append((a & b).sum() / (a | b).sum())
    assert scores == pytest.approx((np.mean(iou), np.mean(iou)))
    assert scorer.agreement(scorer.reduce(outputs, 0), scorer.reduce(-outputs, 0)) < 0.5
    assert (
        output_scorer(predictor.task, replace(samples, masks=None), True).scores(*[scorer.reduce(outputs, 0)] * 2) is not None
    )


def _regions(predictor: Any, logits: ndarray, mask: ndarray, label: int) -> tuple[ndarray, ndarray]:
    predicted = np.concatenate([rows for _, rows, _ in predictor.task.predict_mask(torch.from_numpy(logits), mask.shape)])
    counted = mask != IGNORED
    return mask[counted] == label, predicted[counted] == label


def test_the_masks_of_a_dataset_have_the_classes_of_the_model_by_name() -> None:
    model = panes_segmenter()
    samples = load_sample_images(model, PANES, 6)
    assert samples.masks is not None
    mask = samples.masks(0)
    assert mask.shape == (21, 31)
    assert set(np.unique(mask)) <= {0, 2}
    assert np.bincount(mask.ravel()).argmax() == 2  # most of it is background
    get_encoder(model).class_names = CLASS_NAMES
    assert load_sample_images(model, PANES, 6).masks is None
    assert load_sample_images(model, "fashion", 6).masks is None


def test_large_outputs_are_computed_in_small_batches() -> None:
    assert [batch_size(numel) for numel in (10, 3 * 224**2, 150 * 512**2)] == [8, 8, 1]


def test_what_a_file_records_must_agree(tmp_path: Path) -> None:
    model = small_segmenter()
    text = dump_metadata(model, to="onnx")
    assert parse_export_metadata(text, "x.onnx").class_names == CLASS_NAMES
    with pytest.raises(VitrailError, match=r"x.onnx must name all 3 classes, got 2 names; export the model again"):
        parse_export_metadata(text.replace('"sky", ', ""), "x.onnx")


def test_the_loss_of_mean_iou_decides() -> None:
    report = ParityReport(
        9, "noise", True, 0.1, 3.0, 0.7, torch_miou=0.8, file_miou=0.797, agreement_title="same class of a pixel"
    )
    require_accuracy(report, "x.onnx", 0.005)
    with pytest.raises(VitrailError, match=r"x.onnx loses 1\.00 points of mean IoU on noise, where 0.5 are allowed"):
        require_accuracy(replace(report, file_miou=0.79), "x.onnx", 0.005)
    with pytest.raises(VitrailError, match="points"):
        require_accuracy(replace(report, file_miou=None, torch_miou=None), "x.onnx", 0.005)
