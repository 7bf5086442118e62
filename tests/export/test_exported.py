"""An exported file predicts and is evaluated like the model it was exported from; anything else is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.evaluate.test_evaluate import folder
from tests.export.small import noise, ready
from vitrail.cli.main import run
from vitrail.data.prepare import normalise
from vitrail.data.sources.open import pictures
from vitrail.errors import VitrailError
from vitrail.evaluate.caution import cautions
from vitrail.evaluate.evaluate import measure
from vitrail.evaluate.predict import predict
from vitrail.export.engine import TorchEngine, open_engine
from vitrail.export.exported import open_model
from vitrail.export.onnx import write_onnx
from vitrail.export.program import write_program
from vitrail.export.travelling import note, read_told
from vitrail.models.build import build
from vitrail.models.faster import Faster, faster
from vitrail.models.settings import ResNetConfig
from vitrail.models.vit import ViT
from vitrail.weights.checkpoint import save

pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def grey(tmp_path_factory: pytest.TempPathFactory) -> tuple[ViT, Path]:
    """Export a model with the classes of fashion."""
    model = ready(channels=1, classes=10)
    model.labels = pictures("fashion").names
    path = tmp_path_factory.mktemp("exported") / "grey.onnx"
    write_onnx(model, path)
    return model, path


@pytest.mark.compile
def test_it_predicts_as_the_model_does(grey: tuple[ViT, Path]) -> None:
    model, path = grey
    seen = list(noise(7, 30, 20, 1))
    for ours, theirs in zip(predict(model, seen), predict(open_model(path), seen), strict=True):
        assert ours.label == theirs.label
        assert ours.probability == pytest.approx(theirs.probability, rel=1e-5)


@pytest.mark.compile
@pytest.mark.parametrize("tta", [None, "flip", "crops"])
def test_it_is_evaluated_as_the_model_is(grey: tuple[ViT, Path], tta: None) -> None:
    model, path = grey
    data = pictures("fashion")
    ours, theirs = (measure(each, data, "test", tta, batch=200) for each in (model, open_model(path)))
    assert ours.top1 == theirs.top1
    assert ours.nll == pytest.approx(theirs.nll, rel=1e-5)


@pytest.mark.compile
def test_pixels_are_recovered_exactly(grey: tuple[ViT, Path]) -> None:
    model, path = grey
    assert model.preprocess is not None
    pixels = np.arange(256, dtype=np.uint8)[:180].reshape(1, 12, 15, 1)
    for first in (pixels, pixels + 76):  # every value there is
        images = normalise(torch.from_numpy(first).permute(0, 3, 1, 2).float().contiguous(), model.preprocess)
        assert_close(open_model(path)(images).numpy(), open_engine(path).logits(first), rtol=0, atol=0)


@pytest.mark.compile
def test_images_that_are_not_pixels_and_features_are_refused(grey: tuple[ViT, Path]) -> None:
    model = open_model(grey[1])
    with pytest.raises(VitrailError, match="pixels are whole numbers from 0 to 255"):
        model(torch.randn(1, 1, 12, 15))
    with pytest.raises(VitrailError, match="can only predict; use the run"):
        model.features(torch.zeros(1, 1, 12, 15))
    with pytest.raises(VitrailError, match="can only predict; use the run"):
        model.state_dict()
    with pytest.raises(VitrailError, match="is an exported file, which cannot be sped up"):
        open_model(grey[1], Faster(merge=1))
    for switch in ({"merge": 1}, {"drop": 0.5}, {"compile": True}):
        with pytest.raises(VitrailError, match="is an exported file, which cannot be sped up"):
            faster(model, **switch)


@pytest.mark.compile
def test_an_exported_file_is_not_exported_again(
    grey: tuple[ViT, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["export", str(grey[1])]) == 2
    said = capfd.readouterr()
    assert said.err == f"vitrail: {grey[1]} is already exported; name the run it was exported from\n"
    assert said.out == ""
    assert not list(tmp_path.glob("*.onnx.onnx"))


@pytest.mark.compile
def test_a_resnet_in_a_program_is_a_model_too(tmp_path: Path) -> None:
    model = build(ResNetConfig((1,), width=32, image=(40, 48), classes=5)).eval()
    model.preprocess = ready().preprocess
    write_program(model, tmp_path / "x.pt2")
    assert open_model(tmp_path / "x.pt2").config == model.config


@pytest.mark.compile
def test_a_wrong_backend_or_dtype_is_a_clear_error(grey: tuple[ViT, Path], tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="must be run by onnxruntime, got torch"):
        open_engine(grey[1], "torch")
    with pytest.raises(VitrailError, match="images must be uint8"):
        open_engine(grey[1]).logits(np.zeros((1, 12, 15, 1)))  # type: ignore[arg-type, unused-ignore]


def test_it_recognises_its_training_dataset_without_recording_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "mine" / "data", "bee", "elk", each=3)
    folder(tmp_path / "other" / "data", "bee", "elk", each=3)  # with the same last path component
    (tmp_path / "link").symlink_to(tmp_path / "mine" / "data")
    model = ready()
    model.facts = {"dataset": {"name": str(tmp_path / "mine" / "data"), "fingerprint": "abc"}, "recipe": {}}
    said = note(model)
    assert str(tmp_path) not in said
    model.facts = read_told(said, "x.onnx").facts
    monkeypatch.chdir(tmp_path / "mine")
    for name in (tmp_path / "mine" / "data", tmp_path / "link", "data"):
        (caution,) = cautions(model, pictures(str(name)), "train")
        assert caution == "the model was trained on images that are among these, so the scores are optimistic"
    assert not cautions(model, pictures(str(tmp_path / "other" / "data")), "train")


def test_onnxruntime_refuses_a_run(tmp_path: Path) -> None:
    save(ready(), tmp_path / "run")
    with pytest.raises(VitrailError, match=r"onnxruntime runs \.onnx files, got .*; try `vitrail export"):
        open_engine(tmp_path / "run", "onnxruntime")
    with pytest.raises(VitrailError, match="threads must be at least 1"):
        open_engine(tmp_path / "run", threads=0)
    (tmp_path / "x.onnx").write_bytes(b"no graph")
    with pytest.raises(VitrailError, match="is not an ONNX file that onnxruntime can run"):
        open_engine(tmp_path / "x.onnx")
    with pytest.raises(VitrailError, match=r"nowhere\.onnx does not exist"):
        open_engine(tmp_path / "nowhere.onnx")


def test_the_torch_predictor_normalises_pixels_as_the_model_expects(tmp_path: Path) -> None:
    model = ready()
    save(model, tmp_path / "run")
    assert model.preprocess is not None
    engine = open_engine(tmp_path / "run")
    images = normalise(torch.from_numpy(noise(3)).permute(0, 3, 1, 2).float().contiguous(), model.preprocess)
    with torch.inference_mode():
        assert_close(engine.logits(noise(3)), model(images).numpy(), rtol=0, atol=0)
    assert_close(engine.logits(noise(3))[:1], TorchEngine(model).logits(noise(3)[:1]), rtol=0, atol=1e-6)  # another batch size
    assert (engine.name, engine.model, engine.sigmoid) == ("torch", str(tmp_path / "run"), False)
