"""An exported file predicts and is evaluated like the model it was exported from; anything else is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.evaluation.test_classification import image_folder
from tests.exporters.small import exportable_vit, random_images
from vitrail.cli.main import run
from vitrail.data.sources.open import open_dataset
from vitrail.data.transforms import normalise
from vitrail.errors import VitrailError
from vitrail.evaluation.classification import evaluate
from vitrail.evaluation.leakage import leakage_warnings
from vitrail.exporters.onnx import write_onnx
from vitrail.exporters.torch_export import write_program
from vitrail.inference.export_metadata import dump_metadata, parse_export_metadata
from vitrail.inference.exported_model import load_any_model
from vitrail.inference.predict import predict
from vitrail.inference.predictor import TorchPredictor, load_predictor
from vitrail.models.build import build
from vitrail.models.config import ResNetConfig
from vitrail.models.speedup_config import Speedups
from vitrail.models.speedups import speed_up
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
    for ours, theirs in zip(predict(model, images), predict(load_any_model(path), images), strict=True):
        assert ours.label == theirs.label
        assert ours.probability == pytest.approx(theirs.probability, rel=1e-5)


@pytest.mark.compile
@pytest.mark.parametrize("tta", [None, *(pytest.param(tta, marks=pytest.mark.thorough) for tta in ("flip", "crops"))])
def test_it_is_evaluated_as_the_model_is(grey: tuple[ViT, Path], tta: None) -> None:
    model, path = grey
    splits = open_dataset("fashion")
    ours, theirs = (evaluate(each, splits, "test", tta, batch_size=200) for each in (model, load_any_model(path)))
    assert ours.top1 == theirs.top1
    assert ours.nll == pytest.approx(theirs.nll, rel=1e-5)


@pytest.mark.compile
def test_pixels_are_recovered_exactly(grey: tuple[ViT, Path]) -> None:
    model, path = grey
    assert model.preprocess is not None
    pixels = np.arange(256, dtype=np.uint8)[:180].reshape(1, 12, 15, 1)
    for first in (pixels, pixels + 76):  # every value there is
        images = normalise(torch.from_numpy(first).permute(0, 3, 1, 2).float().contiguous(), model.preprocess)
        assert_close(load_any_model(path)(images).numpy(), load_predictor(path).logits(first), rtol=0, atol=0)


@pytest.mark.compile
def test_images_that_are_not_pixels_and_features_are_refused(grey: tuple[ViT, Path]) -> None:
    model = load_any_model(grey[1])
    with pytest.raises(VitrailError, match="pixels are whole numbers from 0 to 255"):
        model(torch.randn(1, 1, 12, 15))
    with pytest.raises(VitrailError, match="can only predict; use the run"):
        model.features(torch.zeros(1, 1, 12, 15))
    with pytest.raises(VitrailError, match="can only predict; use the run"):
        model.state_dict()
    with pytest.raises(VitrailError, match="is an exported file, which cannot be sped up"):
        load_any_model(grey[1], Speedups(merge_tokens=1))
    for speedup in ({"merge_tokens": 1}, {"drop_patches": 0.5}, {"compile": True}):
        with pytest.raises(VitrailError, match="is an exported file, which cannot be sped up"):
            speed_up(model, **speedup)


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
def test_a_resnet_in_a_program_is_a_model_too(tmp_path: Path) -> None:
    model = build(ResNetConfig((1,), width=32, image=(40, 48), classes=5)).eval()
    model.preprocess = exportable_vit().preprocess
    write_program(model, tmp_path / "x.pt2")
    assert load_any_model(tmp_path / "x.pt2").config == model.config


@pytest.mark.compile
def test_a_wrong_backend_or_dtype_is_a_clear_error(grey: tuple[ViT, Path], tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="must be run by onnxruntime, got torch"):
        load_predictor(grey[1], "torch")
    with pytest.raises(VitrailError, match="images must be uint8"):
        load_predictor(grey[1]).logits(np.zeros((1, 12, 15, 1)))  # type: ignore[arg-type, unused-ignore]


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
        (warning,) = leakage_warnings(model, open_dataset(str(name)), "train")
        assert warning == "the model was trained on images that are among these, so the scores are optimistic"
    assert not leakage_warnings(model, open_dataset(str(tmp_path / "other" / "data")), "train")


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
        assert leakage_warnings(model, open_dataset(name), "train")
    monkeypatch.chdir(tmp_path / "mine")
    assert not leakage_warnings(model, open_dataset("data"), "train")


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
        assert_close(predictor.logits(random_images(3)), model(images).numpy(), rtol=0, atol=0)
    other_batch_size = TorchPredictor(model).logits(random_images(3)[:1])
    assert_close(predictor.logits(random_images(3))[:1], other_batch_size, rtol=0, atol=1e-6)
    assert (predictor.backend, predictor.source, predictor.sigmoid) == ("torch", str(tmp_path / "run"), False)
