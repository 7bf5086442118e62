"""A task that is defined outside of the package, one number per image, goes the whole way from training to the server.

No line of ``src`` knows it: what differs from classification is in the three classes below.
"""

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from numpy import ndarray
from PIL import Image
from starlette.testclient import TestClient
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from tests.serve.fake_predictor import encode_image, multipart_form
from tests.training.test_loop import RaisesAt, same
from vitrail.cli.main import run as run_command
from vitrail.data.loader import Batch
from vitrail.data.sources.dataset import Dataset
from vitrail.errors import VitrailError
from vitrail.inference.predictor import TorchPredictor
from vitrail.report.robustness_page import robustness_page
from vitrail.serve.app import create_serve_app
from vitrail.tasks.task import ImageScore
from vitrail.training.trained_run import TrainedRun


@dataclass(frozen=True)
class Brightness(vitrail.TaskConfig):
    """Settings of the task."""

    kind: Literal["test-brightness"] = "test-brightness"
    scale: float = 255.0
    labelled: ClassVar[bool] = False
    mixes: ClassVar[bool] = False

    def num_outputs(self, class_names: Sequence[str]) -> int:
        return 1


@dataclass(frozen=True)
class Level(vitrail.Prediction):
    """The brightness of an image."""

    level: float | None = None


@dataclass(frozen=True)
class BrightnessTask(vitrail.Task):
    """Predict the mean pixel of an image."""

    config_class: ClassVar = Brightness
    primary_metric: ClassVar[str] = "mae"
    lower_is_better: ClassVar[bool] = True
    output_name: ClassVar[str] = "levels"
    prediction_class: ClassVar = Level
    image_score: ClassVar = ImageScore("absolute_error", "absolute error", lower_is_better=True, is_fraction=False)

    def targets(self, dataset: Dataset, indices: ndarray) -> Tensor:
        values = [float(dataset.target(int(index))) for index in indices]
        return torch.tensor(values, dtype=torch.float32) / self.config.scale

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return F.mse_loss(model(batch.images)[:, 0].float(), batch.targets), {}

    def metrics(self, outputs: Tensor, targets: Any) -> dict[str, float]:
        return {"mae": (outputs[:, 0] - targets).abs().mean().item()}

    def image_scores(self, outputs: Tensor, targets: Any) -> Tensor:
        return self.config.scale * (outputs[:, 0] - targets).abs()

    def predictions(self, outputs: Tensor, top_k: int) -> list[Level]:
        return [Level(level=self.config.scale * value) for value in outputs[:, 0].tolist()]


rng = np.random.default_rng(0)
LEVELS = rng.uniform(50, 200, 60).tolist()
IMAGES = [rng.normal(level, 20, (16, 24, 3)).clip(0, 255).astype(np.uint8) for level in LEVELS]
PAIRS = list(zip(IMAGES, LEVELS, strict=True))
SHORT = {"steps": 30, "schedule.warmup_steps": 0, "eval_every": 10, "checkpoint_every": 10, "optim.lr": 3e-3}


def train(out: Path, **options: Any) -> TrainedRun:
    common: dict[str, Any] = {"model": "mu/8", "image_size": (16, 24), "augment": "none", "batch_size": 8, "workers": 0}
    return vitrail.train(PAIRS, task=Brightness(), settings=SHORT, out=out, **common, **options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return train(tmp_path_factory.mktemp("runs") / "run")


def test_it_learns_and_its_report_has_its_metric(trained: TrainedRun) -> None:
    assert trained.metrics["mae"] < 0.8 * np.abs(np.array(LEVELS) - np.mean(LEVELS)).mean() / 255
    assert "mae on test" in trained.report.read_text()
    assert trained.run.recipe().task == Brightness()


def test_it_resumes_bit_for_bit(trained: TrainedRun, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        train(tmp_path / "run", callbacks=[RaisesAt(17, RuntimeError("stop"))])
    assert same(train(tmp_path / "run").folder, trained.folder)


def test_it_is_evaluated_by_its_own_metric(
    trained: TrainedRun, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = vitrail.evaluate(trained.folder, PAIRS, "test")
    assert evaluation.metrics == pytest.approx(trained.metrics)
    assert vitrail.evaluate(trained.model, PAIRS).metrics == pytest.approx(trained.metrics)
    with pytest.raises(VitrailError, match=r"test-time augmentation needs a classifier, and .* is a model for test-brightness"):
        vitrail.evaluate(trained.model, PAIRS, tta="flip")
    for data, problem in (
        (str(write_images(tmp_path / "images")), "has no targets, which test-brightness needs; give pairs"),
        ([(image, index % 2) for index, image in enumerate(IMAGES)], "are classes, which test-brightness cannot learn"),
    ):
        with pytest.raises(VitrailError, match=problem):
            vitrail.evaluate(trained.folder, data)
        with pytest.raises(VitrailError, match=problem):
            vitrail.train(data, task=Brightness(), out=tmp_path / "none", settings=SHORT)
    named = {"pairs": PAIRS}  # no file holds numbers as targets yet
    monkeypatch.setattr(
        "vitrail.evaluation.leakage.open_dataset",
        lambda data, **options: vitrail.open_dataset(named[data] if isinstance(data, str) else data, **options),
    )
    mae = np.abs(np.array([row.level for row in vitrail.predict(trained.folder, IMAGES)]) - LEVELS).mean() / 255
    for options in (["--json"], []):
        assert run_command(["evaluate", str(trained.folder), "pairs", *options]) == 0
        printed = capsys.readouterr().out
        assert json.loads(printed)["mae"] == pytest.approx(mae) if options else f"{mae:.4g}" in printed


def test_its_error_under_corruptions_is_measured(trained: TrainedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    result = vitrail.evaluate_robustness(trained.model, PAIRS, "test")
    assert result.clean == pytest.approx(255 * trained.metrics["mae"])
    assert result.mean > result.clean  # black cells change the brightness
    assert result.retained > 1
    assert result.scores["clean"].interval[1] > 1  # not a fraction
    page = robustness_page({"one": result, "two": replace(result, scores=result.scores)})
    assert f">{result.mean:.4g}<" in page
    assert "mean corrupted absolute error" in page
    assert "%" not in page.split("<h2>Table</h2>")[1].split("<td>")[3]
    monkeypatch.setattr(BrightnessTask, "image_score", None)
    with pytest.raises(VitrailError, match="a model for test-brightness has no score of an image"):
        vitrail.evaluate_robustness(trained.model, PAIRS)


def write_images(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for index, image in enumerate(IMAGES[:3]):
        Image.fromarray(image).save(folder / f"{index}.png")
    return folder


def test_its_predictions_are_its_own(trained: TrainedRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = trained.model
    with torch.no_grad():
        expected = 255 * model(vitrail.preprocess(model, IMAGES[:3]))[:, 0]
    rows = vitrail.predict(model, IMAGES[:3])
    assert_close(torch.tensor([row.level for row in rows]), expected)
    assert vitrail.predict(model, [b"no image"])[0].level is None
    names = [str(path) for path in sorted(write_images(tmp_path / "images").iterdir())]
    for options in ([], ["--json"], ["--csv"], ["--jsonl"]):
        capfd.readouterr()
        assert run_command(["predict", str(trained.folder), *names, *options]) == 0
        printed = capfd.readouterr().out
        if options == ["--json"]:
            found = [row["level"] for row in json.loads(printed)["predictions"]]
        elif options == ["--csv"]:
            found = [float(row["level"]) for row in csv.DictReader(printed.splitlines())]
        elif options == ["--jsonl"]:
            found = [json.loads(line)["level"] for line in printed.splitlines()]
        else:
            assert printed.splitlines()[0].split() == ["file", "level"]
            found = [float(line.split()[-1]) for line in printed.splitlines()[1:]]
        assert found == pytest.approx([row.level for row in rows], rel=1e-4)


def test_its_features_are_those_of_any_model(trained: TrainedRun) -> None:
    with torch.no_grad():
        expected = trained.model.features(vitrail.preprocess(trained.model, IMAGES[:3]))
    assert_close(vitrail.embed(trained.folder, IMAGES[:3]).values, expected.numpy())


@pytest.mark.compile
@pytest.mark.parametrize("to", ["onnx", "int8", "program"])
def test_an_exported_file_predicts_the_same(to: Any, trained: TrainedRun, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / ("x.pt2" if to == "program" else "x.onnx")
    result = vitrail.export(trained.folder, path, to, images=16, max_drop=0.05)
    assert result.parity.agreement > 0.95
    expected, found = (vitrail.predict(each, IMAGES[:5]) for each in (trained.model, path))
    tolerance = 0.05 if to == "int8" else 1e-4
    assert [row.level for row in found] == pytest.approx([row.level for row in expected], rel=tolerance)
    if to == "onnx":
        import onnx

        assert [output.name for output in onnx.load(path).graph.output] == ["levels"]


def test_it_is_served_with_its_own_fields(trained: TrainedRun) -> None:
    engine, images = TorchPredictor(trained.model), [encode_image(Image.fromarray(image)) for image in IMAGES[:3]]
    with TestClient(create_serve_app(lambda: engine)) as client:
        while client.get("/readyz").status_code != 200:
            pass
        form = multipart_form(*((str(index), image) for index, image in enumerate(images)), ("bad", b"no image"))
        answer = client.post("/predict", content=form, headers={"Content-Type": "multipart/form-data; boundary=xXx"})
        explained = client.post("/explain?method=relevance", content=images[0], headers={"Content-Type": "image/png"})
    *rows, bad = answer.json()["predictions"]
    expected = [asdict(row)["level"] for row in vitrail.predict(trained.model, images)]
    assert [row["level"] for row in rows] == pytest.approx(expected)
    assert set(rows[0]) == {"file", "level"}
    assert bad["status"] == 422
    assert np.array(explained.json()["explanations"][0]["map"]).shape == (2, 3)


def test_a_loss_that_the_task_does_not_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="test-brightness has a loss of its own"):
        train(tmp_path / "run", loss=F.mse_loss)
