"""An exported file predicts and is evaluated like the model it was exported from; its task says what the outputs mean."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import vitrail
from tests.evaluation.test_classification import image_folder
from tests.exporters.small import exportable_vit, random_images
from vitrail.cli.main import run
from vitrail.data.sources.open import open_dataset
from vitrail.data.transforms import normalise
from vitrail.errors import VitrailError
from vitrail.evaluation.evaluate import evaluate
from vitrail.evaluation.leakage import leakage_warnings
from vitrail.exporters.onnx import write_onnx
from vitrail.exporters.torch_export import write_program
from vitrail.inference.export_metadata import dump_metadata, parse_export_metadata
from vitrail.inference.load import load_predictor
from vitrail.inference.predict import predict
from vitrail.inference.predictor import TorchPredictor
from vitrail.models.build import build
from vitrail.models.config import ResNetConfig
from vitrail.models.speedup_config import Speedups
from vitrail.models.vit import ViT
from vitrail.weights.save import save

pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def grey(tmp_path_factory: pytest.TempPathFactory) -> tuple[ViT, Path]:
    """Export a model with the classes of fashion."""
    model = exportable_vit(channels=1, classes=10)
    model.class_names = open_dataset("fashion").class_names
    path = tmp_path_factory.mktemp("exported") / "grey.onnx"
    write_onnx(model, path)
    return model, path


@pytest.mark.compile
def test_it_predicts_as_the_model_does(grey: tuple[ViT, Path]) -> None:
    model, path = grey
    images = list(random_images(7, 30, 20, 1))
    for ours, theirs in zip(predict(model, images), predict(path, images), strict=True):
        assert ours.label == theirs.label
        assert ours.probability == pytest.approx(theirs.probability, rel=1e-5)


@pytest.mark.compile
@pytest.mark.parametrize("tta", [None, *(pytest.param(tta, marks=pytest.mark.thorough) for tta in ("flip", "crops"))])
def test_it_is_evaluated_as_the_model_is(grey: tuple[ViT, Path], tta: None) -> None:
    model, path = grey
    splits = open_dataset("fashion")
    ours, theirs = (evaluate(each, splits, "test", tta, batch_size=200) for each in (model, load_predictor(path)))
    assert ours.top1 == theirs.top1
    assert ours.nll == pytest.approx(theirs.nll, rel=1e-5)


@pytest.mark.compile
def test_features_and_speedups_of_an_exported_classifier_are_refused(grey: tuple[ViT, Path]) -> None:
    with pytest.raises(VitrailError, match="can only predict; use the run"):
        vitrail.embed(grey[1], random_images(2, 12, 15, 1))
    with pytest.raises(VitrailError, match="is an exported file, which cannot be sped up"):
        load_predictor(grey[1], speedups=Speedups(merge_tokens=1))


@pytest.mark.compile
def test_the_outputs_of_an_exported_model_without_a_head_are_its_features(tmp_path: Path) -> None:
    model = exportable_vit(classes=0)
    write_onnx(model, tmp_path / "x.onnx")
    images = list(random_images(5, 20, 17))
    ours, theirs = (vitrail.embed(each, images).values for each in (model, tmp_path / "x.onnx"))
    assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.compile
def test_robustness_of_an_exported_file_is_the_models(grey: tuple[ViT, Path]) -> None:
    data = open_dataset("fashion:test_size=24")
    ours, theirs = (vitrail.evaluate_robustness(each, data, "test", (4, 5)) for each in grey)
    assert (ours.correct == theirs.correct).mean() > 0.99  # of equal logits, rounding may decide


@pytest.mark.compile
def test_an_exported_file_is_not_exported_again(
    grey: tuple[ViT, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["export", str(grey[1])]) == 2
    captured = capfd.readouterr()
    assert captured.err == f"vitrail: {grey[1]} is already exported; name the run it was exported from\n"
    assert captured.out == ""
    assert not list(tmp_path.glob("*.onnx.onnx"))


@pytest.mark.compile
def test_a_resnet_in_a_program_knows_its_config(tmp_path: Path) -> None:
    model = build(ResNetConfig((1,), width=32, image=(40, 48), classes=5)).eval()
    model.preprocess = exportable_vit().preprocess
    write_program(model, tmp_path / "x.pt2")
    assert load_predictor(tmp_path / "x.pt2").config == model.config


@pytest.mark.compile
def test_a_wrong_backend_or_dtype_is_a_clear_error(grey: tuple[ViT, Path], tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="must be run by onnxruntime, got torch"):
        load_predictor(grey[1], "torch")
    with pytest.raises(VitrailError, match="images must be uint8"):
        load_predictor(grey[1]).outputs(np.zeros((1, 12, 15, 1)))  # type: ignore[arg-type, unused-ignore]


def test_it_recognises_its_training_dataset_without_recording_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image_folder(tmp_path / "mine" / "data", "bee", "elk", each=3)
    image_folder(tmp_path / "other" / "data", "bee", "elk", each=3)  # with the same last path component
    (tmp_path / "link").symlink_to(tmp_path / "mine" / "data")
    model = exportable_vit()
    model.metadata = {"dataset": {"name": str(tmp_path / "mine" / "data"), "fingerprint": "abc"}, "recipe": {}}
    text = dump_metadata(model)
    assert str(tmp_path) not in text
    model.metadata = parse_export_metadata(text, "x.onnx").training
    monkeypatch.chdir(tmp_path / "mine")
    for name in (tmp_path / "mine" / "data", tmp_path / "link", "data"):
        (warning,) = leakage_warnings(TorchPredictor(model), open_dataset(str(name)), "train")
        assert warning == "the model was trained on images that are among these, so the scores are optimistic"
    assert not leakage_warnings(TorchPredictor(model), open_dataset(str(tmp_path / "other" / "data")), "train")


def test_a_relative_path_is_not_recorded_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image_folder(tmp_path / "mine" / "data", "bee", "elk", each=3)
    monkeypatch.chdir(tmp_path)
    model = exportable_vit()
    model.metadata = {"dataset": {"name": "mine/data", "fingerprint": "abc"}, "recipe": {"init_from": "runs/first/best"}}
    text = dump_metadata(model)
    assert "mine/data" not in text
    model.metadata = parse_export_metadata(text, "x.onnx").training
    assert model.metadata["recipe"] == {"init_from": "first"}
    for name in ("mine/data", "./mine/data/", str(tmp_path / "mine" / "data")):
        assert leakage_warnings(TorchPredictor(model), open_dataset(name), "train")
    monkeypatch.chdir(tmp_path / "mine")
    assert not leakage_warnings(TorchPredictor(model), open_dataset("data"), "train")


def test_onnxruntime_refuses_a_run(tmp_path: Path) -> None:
    save(exportable_vit(), tmp_path / "run")
    with pytest.raises(VitrailError, match=r"onnxruntime runs \.onnx files, got .*; try `vitrail export"):
        load_predictor(tmp_path / "run", "onnxruntime")
    with pytest.raises(VitrailError, match="threads must be at least 1"):
        load_predictor(tmp_path / "run", threads=0)
    (tmp_path / "x.onnx").write_bytes(b"no graph")
    with pytest.raises(VitrailError, match="is not an ONNX file that onnxruntime can run"):
        load_predictor(tmp_path / "x.onnx")
    with pytest.raises(VitrailError, match=r"nowhere\.onnx does not exist"):
        load_predictor(tmp_path / "nowhere.onnx")


def test_the_torch_predictor_normalises_pixels_as_the_model_expects(tmp_path: Path) -> None:
    model = exportable_vit()
    save(model, tmp_path / "run")
    assert model.preprocess is not None
    predictor = load_predictor(tmp_path / "run")
    images = normalise(torch.from_numpy(random_images(3)).permute(0, 3, 1, 2).float().contiguous(), model.preprocess)
    with torch.inference_mode():
        assert_close(predictor.outputs(random_images(3)), model(images).numpy(), rtol=0, atol=0)
    other_batch_size = TorchPredictor(model).outputs(random_images(3)[:1])
    assert_close(predictor.outputs(random_images(3))[:1], other_batch_size, rtol=0, atol=1e-6)
    assert (predictor.backend, predictor.source) == ("torch", str(tmp_path / "run"))


def test_a_model_that_is_training_is_run_in_eval_mode_and_goes_on_training(tmp_path: Path) -> None:
    model = exportable_vit(dropout=0.5)
    expected = TorchPredictor(model).outputs(random_images(3))
    assert_close(TorchPredictor(model.train()).outputs(random_images(3)), expected, rtol=0, atol=0)
    assert model.training


def test_probabilities_are_those_of_the_loss_that_the_model_was_trained_with() -> None:
    model, image = exportable_vit(), random_images(1)[0]
    logits = torch.from_numpy(TorchPredictor(model).outputs(image[None])).double()[0]
    by_softmax = predict(model, image, top_k=100)[0]
    model.metadata = {"recipe": {"task": {"kind": "classification", "loss": "sigmoid"}}}
    by_sigmoid = predict(model, image, top_k=100)[0]
    names = TorchPredictor(model).class_names
    for prediction, expected in ((by_softmax, logits.softmax(0)), (by_sigmoid, logits.sigmoid())):
        values = {entry.label: entry.probability for entry in prediction.top}
        assert_close(torch.tensor([values[name] for name in names], dtype=torch.float64), expected)
