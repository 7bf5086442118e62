"""Detection models as files: the map of the model, the boxes that are decoded from it in the graph, and a drop of AP."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from numpy.testing import assert_allclose, assert_array_equal

import vitrail
from tests.exporters.small import random_images
from tests.small_detector import CLASSES, random_detector
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import DatasetSplits
from vitrail.data.sources.objects import NO_OBJECTS, Objects, build_objects
from vitrail.errors import VitrailError
from vitrail.exporters.export import export, write_and_verify
from vitrail.exporters.output_scores import BoxScorer, output_scorer
from vitrail.exporters.parity import ParityReport, compare_with_model, require_accuracy, require_parity
from vitrail.exporters.quantise import quantise
from vitrail.exporters.sample_images import SampleImages, load_sample_images
from vitrail.inference.load import load_predictor
from vitrail.inference.onnx_predictor import import_onnxruntime
from vitrail.inference.predictor import TorchPredictor
from vitrail.tasks.detection import DetectionTask
from vitrail.tasks.registry import model_task

pytest.importorskip("onnx")
SIZE = (24, 30)
PANES = "panes:train_size=24,size=21x31"
OUTPUTS = ["outputs", "boxes", "scores", "labels"]


def small_detector(**changes: Any) -> Any:
    """Build a detector in whose eyes some of the objects that it finds are more probable than not."""
    model = random_detector(image=SIZE, depth=2, **changes)
    with torch.no_grad():
        model.head.heat.bias += 5.5
    return model


def panes_detector() -> Any:
    return small_detector(classes=("none", "figure", "other"))  # the dataset has the second alone


def panes() -> DatasetSplits:
    return vitrail.open_dataset(PANES, columns=Columns(boxes=True))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the ONNX file of a small detector."""
    path = tmp_path_factory.mktemp("exported") / "good.onnx"
    report = export(panes_detector(), path, data=PANES, images=6).parity
    assert report.torch_ap is not None
    assert report.file_ap == pytest.approx(report.torch_ap, abs=1e-6)
    return path


def images_of(count: int) -> ndarray:
    return random_images(count, *SIZE)


def found_objects(model: Any, images: ndarray) -> list[tuple[Objects, tuple[int, int]]]:
    """Return what the model finds as the objects of images of the input's size, so that its AP is 1."""
    predictor, task = TorchPredictor(model), detection_task(model)
    rows = [task.detect(torch.from_numpy(output), SIZE).numpy() for output in predictor.outputs(images)]
    rows = [each[(each[:, 2:4] - each[:, :2]).min(1) > 0.1] for each in rows]
    return [(build_objects(each[:, :4], each[:, 5]), SIZE) for each in rows]


def detection_task(model: Any) -> DetectionTask:
    task = model_task(model)
    assert isinstance(task, DetectionTask)
    return task


def labelled_samples(model: Any, count: int) -> SampleImages:
    images = images_of(count)
    return SampleImages(images, np.full(count, -1), "noise", objects=found_objects(model, images))


@pytest.mark.compile
@pytest.mark.parametrize(
    ("to", "dynamic"),
    [
        ("onnx", True),
        ("program", False),
        *(pytest.param(*each, marks=pytest.mark.thorough) for each in (("program", True), ("onnx", False))),
    ],
)
@pytest.mark.parametrize("layers", [(1, 2), pytest.param((), marks=pytest.mark.thorough)])
def test_an_exported_file_has_the_map_and_the_boxes_of_the_model(
    to: Any, dynamic: bool, layers: tuple[int, ...], tmp_path: Path
) -> None:
    model = small_detector(layers=layers)
    path = tmp_path / ("x.pt2" if to == "program" else "x.onnx")
    report = export(model, path, to, dynamic=dynamic).parity
    assert report.relative_difference < 1e-5
    assert (report.agreement, report.agreement_title) == (1.0, "same objects")
    assert (report.other_sizes_difference is None) != dynamic
    predictor: Any = load_predictor(path)
    reference = TorchPredictor(model)
    assert predictor.class_names == CLASSES
    assert predictor.task.config == reference.task.config
    for count in (1, 3):
        images = images_of(count)
        assert_allclose(predictor.outputs(images), reference.outputs(images), rtol=0, atol=1e-4)
        named = predictor.named_outputs(images)
        assert list(named) == OUTPUTS
        expected = reference.task.export_outputs(torch.from_numpy(reference.outputs(images)))
        for name in OUTPUTS:
            assert_allclose(named[name], expected[name].numpy(), rtol=0, atol=1e-4)
    if dynamic:
        assert predictor.named_outputs(random_images(2, 6, 5))["boxes"].shape == (2, 12, 4)  # of as many cells


@pytest.mark.compile
def test_onnxruntime_by_hand_finds_the_boxes_of_predict(exported: Path) -> None:
    """The images of the arrays have the size of the model's input, so that pixels are the same."""
    model = panes_detector()
    session = import_onnxruntime().InferenceSession(str(exported), providers=["CPUExecutionProvider"])
    images = images_of(4)
    boxes, scores, labels = session.run(OUTPUTS[1:], {"images": images})
    by_model, by_file = (vitrail.predict(each, list(images)) for each in (model, exported))
    for number, (prediction, other) in enumerate(zip(by_model, by_file, strict=True)):
        assert len(prediction.boxes) > 1
        assert [(box.label, pytest.approx(box.score, abs=1e-5), pytest.approx(box.box, abs=1e-4)) for box in other.boxes] == [
            (box.label, box.score, box.box) for box in prediction.boxes
        ]
        shown = scores[number] >= min(box.score for box in prediction.boxes) - 1e-6
        assert [model.class_names[label] for label in labels[number][shown]] == [box.label for box in prediction.boxes]
        assert_allclose(scores[number][shown], [box.score for box in prediction.boxes], atol=1e-5)
        inside = boxes[number][shown].clip(0, [SIZE[1], SIZE[0]] * 2)
        assert_allclose(inside, [box.box for box in prediction.boxes], atol=1e-4)


@pytest.mark.compile
def test_a_graph_decodes_with_plain_operators(exported: Path) -> None:
    import onnx

    proto = onnx.load(str(exported))
    assert [each.name for each in proto.graph.output] == OUTPUTS
    operators = {node.op_type for node in proto.graph.node}
    assert {node.domain for node in proto.graph.node} == {""}
    assert {"MaxPool", "TopK", "GatherElements"} <= operators
    assert not any("Suppression" in name for name in operators)
    batch = [each.type.tensor_type.shape.dim[0] for each in (*proto.graph.input, *proto.graph.output)]
    assert len({dim.dim_param for dim in batch}) == 1
    assert batch[0].dim_param


@pytest.mark.compile
@pytest.mark.parametrize("activations", ["static", pytest.param("dynamic", marks=pytest.mark.thorough)])
def test_the_blocks_are_in_int8_and_the_head_in_float(activations: Any, tmp_path: Path) -> None:
    model = small_detector()
    samples = labelled_samples(model, 20)
    report = quantise(model, tmp_path / "a.onnx", samples.images[:8], samples, activations, max_drop=0.4)
    assert report.num_layers == 8
    assert report.float_layers == ()
    assert 0 < report.accuracy_drop < 0.4
    parity = compare_with_model(model, load_predictor(tmp_path / "a.onnx"), samples)
    assert parity.torch_ap is not None
    assert parity.torch_ap > 0.9  # some boxes have no area
    assert parity.accuracy_drop == pytest.approx(report.accuracy_drop, abs=1e-6)
    assert 0.5 < parity.agreement < 1


@pytest.mark.compile
@pytest.mark.thorough
def test_layers_stay_in_float_until_little_of_the_ap_is_lost(tmp_path: Path) -> None:
    model = small_detector()
    samples = labelled_samples(model, 20)
    report = quantise(model, tmp_path / "a.onnx", samples.images[:8], samples, max_drop=0.001)
    assert report.float_layers
    assert report.accuracy_drop <= 0.001


@pytest.mark.compile
def test_a_file_of_other_boxes_is_removed(exported: Path, tmp_path: Path) -> None:
    """The file is of another model, whose boxes are wider; its heat map is the same."""
    model, samples = small_detector(), labelled_samples(small_detector(), 6)

    def write(path: Path) -> None:
        path.write_bytes(exported.read_bytes())

    with torch.no_grad():
        model.head.boxes.bias[2:] += 0.7
    samples = replace(samples, objects=found_objects(model, samples.images))
    requirements: dict[str, Any] = {
        r"the logits of x\.onnx differ from the model's by 0\.\d+ of the": lambda report: require_parity(
            report, "x.onnx", 1e-3
        ),
        r"x\.onnx loses \d+\.\d+ points of AP on noise, where 0.5 are allowed, so it was removed": lambda report: (
            require_accuracy(report, "x.onnx", 0.005)
        ),
    }
    for message, require in requirements.items():
        with pytest.raises(VitrailError, match=message):
            write_and_verify(model, tmp_path / "x.onnx", "onnx", write, samples, require)
    assert not list(tmp_path.iterdir())


@pytest.mark.compile
def test_a_file_that_decodes_wrongly_is_removed(exported: Path, tmp_path: Path) -> None:
    """Its map is right, and its boxes are those of a pool over other neighbours."""
    import onnx

    model, proto = small_detector(), onnx.load(str(exported))
    (pool,) = (node for node in proto.graph.node if node.op_type == "MaxPool")
    for attribute in pool.attribute:
        if attribute.name in ("kernel_shape", "pads"):
            attribute.ints[:] = {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}[attribute.name]

    def write(path: Path) -> None:
        path.write_bytes(proto.SerializeToString())

    with pytest.raises(
        VitrailError, match=r"boxes and scores and labels in the file differ by .* its outputs, so it was removed"
    ):
        write_and_verify(model, tmp_path / "x.onnx", "onnx", write, labelled_samples(model, 3), lambda report: None)
    assert not list(tmp_path.iterdir())


def test_equal_scores_may_be_in_any_order() -> None:
    model = small_detector()
    task = TorchPredictor(model).task
    scorer = output_scorer(task, labelled_samples(model, 2), True)
    outputs = torch.from_numpy(TorchPredictor(model).outputs(images_of(2)))
    outputs[:, 0, 2, 3] = outputs[:, 1, 6, 8] = 9.0
    named = {name: value.numpy() for name, value in task.export_outputs(outputs).items()}
    assert scorer.decoding_difference(named) == 0
    exchanged = {name: value if name == "outputs" else value[:, [1, 0, *range(2, 30)]] for name, value in named.items()}
    assert not np.array_equal(exchanged["boxes"], named["boxes"])
    assert scorer.decoding_difference(exchanged) == 0
    for name in OUTPUTS[1:]:
        wrong = named[name].copy()
        wrong[1, 4] += 1
        assert scorer.decoding_difference({**named, name: wrong}) == pytest.approx(1)


def test_the_scale_of_differences_is_that_of_logits_and_that_of_pixels() -> None:
    """A wrong logit does not hide behind long distances, nor a wrong box behind one that is larger than any image."""
    model = small_detector()
    scorer = output_scorer(TorchPredictor(model).task, labelled_samples(model, 2), True)
    outputs = np.zeros((2, 7, 8, 12), np.float32)
    outputs[0, 0], outputs[1, 4:] = -3, 20_000
    logits, distances = scorer.parts(outputs)
    assert (np.abs(logits).max(), np.abs(distances).max()) == (3, 30)
    assert_array_equal(distances[0], outputs[0, 3:])


@pytest.mark.parametrize("fit", ["stretch", "crop"])
def test_scores_are_the_ap_at_the_sizes_of_the_images_whatever_the_batches(fit: Any) -> None:
    model = small_detector(fit=fit)
    predictor, task, size = TorchPredictor(model), detection_task(model), (61, 47)
    samples = labelled_samples(model, 5)
    outputs = predictor.outputs(samples.images)
    rows = [task.detect(torch.from_numpy(output), size).numpy() for output in outputs]
    rows = [each[(each[:, 2:4] > each[:, :2]).all(1)] for each in rows]
    objects = [(build_objects(each[:, :4], each[:, 5]), size) for each in rows]
    scorer = output_scorer(task, replace(samples, objects=objects), True)
    assert isinstance(scorer, BoxScorer)
    whole = scorer.join([scorer.reduce(outputs, 0)])
    parts = scorer.join([scorer.reduce(outputs[:2], 0), scorer.reduce(outputs[2:], 2)])
    assert [each.tolist() for each in parts] == [each.tolist() for each in whole]
    scores = scorer.scores(parts, whole)
    assert scores is not None
    assert scores[0] == scores[1] > 0.9
    others = scorer.reduce(predictor.outputs(images_of(6)[:5]), 0)
    scores = scorer.scores(others, whole)
    assert scores is not None
    assert scores[0] < 0.5
    assert scorer.agreement(others, whole) < 0.8
    without = [(NO_OBJECTS, size)] * len(objects)
    for unknown in (None, without):
        assert output_scorer(task, replace(samples, objects=unknown), True).scores(parts, whole) is None


def test_the_boxes_of_a_dataset_have_the_classes_of_the_model_by_name() -> None:
    assert load_sample_images(small_detector(), PANES, 6).objects is None  # they have other classes
    model, dataset = panes_detector(), panes()
    samples = load_sample_images(model, PANES, 6)
    assert samples.objects is not None
    objects, size = samples.objects[0]
    assert size == (21, 31)
    assert_array_equal(objects.boxes, dataset.test.objects(0).boxes)
    names = [model.class_names[label] for label in objects.labels]
    assert names == [dataset.class_names[label] for label in dataset.test.objects(0).labels]
    assert load_sample_images(model, "fashion", 6).objects is None


def test_the_ap_of_a_comparison_is_that_of_evaluate() -> None:
    model, data = panes_detector(), "panes:train_size=8,size=21x31"
    samples = load_sample_images(model, data, 10_000)
    predictor, scorer = TorchPredictor(model), output_scorer(detection_task(model), samples, True)
    reduced = scorer.reduce(predictor.outputs(samples.images), 0)
    metrics = vitrail.evaluate(model, data).metrics
    assert scorer.scores(reduced, reduced) == (metrics["ap"], metrics["ap"])


@pytest.mark.compile
def test_evaluating_a_file_is_evaluating_its_model(exported: Path) -> None:
    expected, actual = (vitrail.evaluate(each, PANES).metrics for each in (panes_detector(), exported))
    assert actual == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_the_loss_of_ap_decides() -> None:
    report = ParityReport(9, "noise", True, 0.1, 3.0, 0.7, torch_ap=0.8, file_ap=0.797, agreement_title="same objects")
    require_accuracy(report, "x.onnx", 0.005)
    with pytest.raises(VitrailError, match=r"x.onnx loses 1\.00 points of AP on noise, where 0.5 are allowed"):
        require_accuracy(replace(report, file_ap=0.79), "x.onnx", 0.005)
