"""One number per image, or several: from pairs, tables and panes to predictions in the units of the targets."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from tests.serve.fake_predictor import encode_image
from tests.training.test_loop import RaisesAt, same
from vitrail.cli.main import run as run_command
from vitrail.data.loader import Batch
from vitrail.data.preprocess import vit_preprocess
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.dataset import Dataset
from vitrail.errors import VitrailError
from vitrail.evaluation.explanations import explain_images
from vitrail.evaluation.probe import probe
from vitrail.evaluation.regression import bootstrap_targets
from vitrail.evaluation.ridge_probe import RidgeProbeResult, fit_ridge
from vitrail.exporters.sample_images import load_sample_images
from vitrail.inference.load import load_predictor
from vitrail.inference.predictor import TorchPredictor
from vitrail.models.variants import variant
from vitrail.recipes.task_config import Regression
from vitrail.report.model_card import model_card
from vitrail.serve.app import create_serve_app
from vitrail.studio.forward_trace import trace_image
from vitrail.tasks.regression import RegressionTask, target_scores
from vitrail.training.prepare import RecipeOptions, prepare_training
from vitrail.training.trained_run import TrainedRun

rng = np.random.default_rng(0)
GREYS = rng.uniform(50, 200, 90)
PRICES = 1e5 * GREYS + 3e6  # in other units, far from 0
COLUMNS_OF_SQUARE = rng.uniform(0, 8, 90)
SETTINGS = {"schedule.warmup_steps": 0, "eval_every": 20, "checkpoint_every": 20, "optim.lr": 3e-3}


def draw(grey: float, column: float) -> np.ndarray:
    """Return a noisy grey image, dark below a column, which may be fractional."""
    pixels = np.full((8, 16, 3), grey)
    pixels[:, : int(column) + 4] *= 0.3
    return (pixels + rng.normal(0, 3, pixels.shape)).clip(0, 255).astype(np.uint8)


IMAGES = [draw(grey, column) for grey, column in zip(GREYS, COLUMNS_OF_SQUARE, strict=True)]


def train(data: Any, out: Path, steps: int = 60, **options: Any) -> TrainedRun:
    settings = {"steps": steps, **SETTINGS, **options.pop("settings", {})}
    common: dict[str, Any] = {"model": "mu/4", "image_size": (8, 16), "batch_size": 16, "workers": 0}
    return vitrail.train(data, settings=settings, out=out, **common, **options)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    rows = [("file", "price", "edge", "note")]
    for number, image in enumerate(IMAGES):
        Image.fromarray(image).save(folder / f"{number}.png")
        rows.append((f"{number}.png", f"{PRICES[number]:.2f}", f"{COLUMNS_OF_SQUARE[number]:.3f}", "red"))
    (folder / "data.csv").write_text("\n".join(",".join(row) for row in rows) + "\n")
    return folder / "data.csv"


@pytest.fixture(scope="module")
def trained(table: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return train(table, tmp_path_factory.mktemp("runs") / "run", steps=150, target=["price", "edge"])


class Returns(nn.Module):
    """A model of constant outputs."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, images: Tensor) -> Tensor:
        return self.outputs


def true_numbers(data: Dataset) -> np.ndarray:
    return np.asarray(data.targets)


def test_two_targets_of_a_table_are_learned_in_their_units(trained: TrainedRun, table: Path) -> None:
    task = trained.run.recipe().task
    assert task == Regression(targets=("price", "edge"))
    assert [row["name"] for row in trained.result["targets"]] == ["price", "edge"]
    assert all(row["r2"] > 0.9 for row in trained.result["targets"])
    assert trained.result["best"].keys() == {"step", "standardised_mae"}
    assert trained.metrics["standardised_mae"] < 0.4 * trained.result["mean_prediction"]
    test = vitrail.open_dataset(table, target=["price", "edge"]).test
    rows = vitrail.predict(trained.folder, test)
    found = np.array([[row.values["price"], row.values["edge"]] for row in rows])
    assert np.abs(found - true_numbers(test)).mean(0) == pytest.approx([row["mae"] for row in trained.result["targets"]])


def test_metrics_are_those_of_scikit_learn_and_of_a_loaded_model(trained: TrainedRun, table: Path) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    result = vitrail.evaluate(trained.folder, table)
    values, targets = result.outputs.numpy(), result.targets.numpy()
    assert result.metrics == pytest.approx(trained.metrics)
    assert result.details["test"] == result.metrics  # as in result.json
    for number, row in enumerate(result.details["targets"]):
        pair = targets[:, number], values[:, number]
        assert row["mae"] == pytest.approx(metrics.mean_absolute_error(*pair), rel=1e-9)
        assert row["rmse"] == pytest.approx(metrics.root_mean_squared_error(*pair), rel=1e-9)
        assert row["r2"] == pytest.approx(metrics.r2_score(*pair), abs=1e-9)
        assert all(low <= row[name] <= high for name, (low, high) in row["interval"].items())
    assert result.metrics["mae"] == pytest.approx(metrics.mean_absolute_error(targets, values))
    assert result.metrics["r2"] == pytest.approx(metrics.r2_score(targets, values))


def test_resampled_scores_are_those_of_the_resampled_images() -> None:
    values, targets = torch.randn(13, 2).double() + 1e6, torch.randn(13, 2).double() + 1e6
    samples = bootstrap_targets(values, targets)
    picked = np.random.default_rng(0).integers(0, 13, (1000, 13))[7]
    for name, scores in target_scores(values[picked], targets[picked]).items():
        assert samples[name][7] == pytest.approx(scores.tolist(), rel=1e-6)


def test_saved_predictions_and_the_report_are_in_units(trained: TrainedRun) -> None:
    with np.load(trained.folder / "predictions.npz") as file:
        assert np.abs(file["values"] - file["targets"]).mean(0) == pytest.approx(
            [row["mae"] for row in trained.result["targets"]]
        )
    page = trained.report.read_text()
    for text in ("price: predicted against true", "edge: errors", "Largest errors", "error on test in standard deviations"):
        assert text in page


def test_the_state_is_the_mean_and_deviation_of_the_training_targets(trained: TrainedRun, table: Path) -> None:
    state = json.loads((trained.folder / "best" / "vitrail.json").read_text())["task_state"]
    numbers = true_numbers(vitrail.open_dataset(table, target=["price", "edge"]).train)
    assert list(state["mean"].values()) == pytest.approx(numbers.mean(0))
    assert list(state["std"].values()) == pytest.approx(numbers.std(0))
    task = trained.model
    with torch.no_grad():
        outputs = task(vitrail.preprocess(task, IMAGES[:3]))
    expected = outputs.double() * torch.tensor(list(state["std"].values())) + torch.tensor(list(state["mean"].values()))
    rows = vitrail.predict(trained.model, IMAGES[:3])
    assert_close(torch.tensor([list(row.values.values()) for row in rows]), expected.float(), rtol=1e-6, atol=0)


def test_it_resumes_bit_for_bit(trained: TrainedRun, table: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        train(table, tmp_path / "run", 150, target=["price", "edge"], callbacks=[RaisesAt(37, RuntimeError("stop"))])
    assert same(train(table, tmp_path / "run", 150, target=["price", "edge"]).folder, trained.folder)


def test_pairs_with_floats_are_numbers(tmp_path: Path) -> None:
    pairs = list(zip(IMAGES, GREYS.tolist(), strict=True))
    run = train(pairs, tmp_path / "one", settings={"task.loss": "huber"})
    assert run.run.recipe().task == Regression(targets=("target",), loss="huber")
    assert run.metrics["r2"] > 0.9
    assert run.result["best"].keys() == {"step", "mae"}
    assert run.data is not None
    train_targets = true_numbers(run.data.train)
    test_targets = true_numbers(run.data.test)
    assert run.result["mean_prediction"] == pytest.approx(np.abs(test_targets - train_targets.mean()).mean())
    evaluated = vitrail.evaluate(run.folder, pairs)
    assert evaluated.metrics == pytest.approx(run.metrics)
    vectors = [(image, np.array([grey, column])) for image, grey, column in zip(IMAGES, GREYS, COLUMNS_OF_SQUARE, strict=True)]
    assert vitrail.open_dataset(vectors).target_names == ("target_0", "target_1")
    with pytest.raises(VitrailError, match=r"has no target 'target', which the model predicts; it has target_0, target_1"):
        vitrail.evaluate(run.folder, vectors)
    own_loss = train(pairs, tmp_path / "own", 20, loss=lambda values, targets: F.l1_loss(values, targets) / 50)
    assert own_loss.metrics["loss"] == pytest.approx(own_loss.metrics["mae"] / 50)


def test_data_with_other_targets_are_refused_in_one_sentence(trained: TrainedRun) -> None:
    with pytest.raises(VitrailError, match=r"has no target 'price', which the model predicts, nor other numbers$"):
        load_predictor(trained.folder).task.require_targets(
            vitrail.open_dataset([(image, ["red"]) for image in IMAGES]).train, "x"
        )
    with pytest.raises(VitrailError, match=r"has 1 number per image without names, where 2 are needed: price, edge$"):
        vitrail.evaluate(trained.folder, list(zip(IMAGES, GREYS.tolist(), strict=True)))


def test_panes_know_the_numbers_of_their_figure() -> None:
    data = vitrail.open_dataset("panes:train_size=40,size=96", target=["x", "y", "size", "angle"])
    masks = [np.argwhere(mask) + 0.5 for index in range(40) if (mask := data.train.object_mask(index)) is not None]
    x, y, size, angle = true_numbers(data.train).T
    middle = np.array([(mask.max(0) + mask.min(0)) / 2 / 96 for mask in masks])
    assert np.abs(middle[:, 1] - x).mean() < 0.04
    assert np.abs(middle[:, 0] - y).mean() < 0.04
    reach = np.array([np.ptp(mask, axis=0).max() / 96 for mask in masks])
    slant = np.deg2rad(np.abs(angle))
    assert np.abs(reach - size * (np.cos(slant) + np.sin(slant))).mean() < 0.08
    with pytest.raises(VitrailError, match=r"has no target 'angel'; it has angle, size, x, y; did you mean 'angle'\?"):
        vitrail.open_dataset("panes:train_size=40", target="angel")


@pytest.mark.thorough
def test_the_position_of_a_figure_is_learned(tmp_path: Path) -> None:
    settings = {"eval_every": 120, "checkpoint_every": 120, "schedule.warmup_steps": 20, "ema_decay": "none"}
    run = vitrail.train(
        "panes:train_size=1500,size=16", target="x", model="mu/4", batch_size=64, workers=0, out=tmp_path / "run",
        settings={"steps": 120, "optim.name": "adamw", "optim.lr": 3e-3, "model.width": 64, "model.depth": 2, **settings},
    )  # fmt: skip
    assert run.metrics["r2"] > 0.1


@pytest.mark.parametrize(
    ("loss", "expected"),
    [("l2", lambda error: (error**2).mean()), ("l1", lambda error: error.abs().mean()),
     ("huber", lambda error: torch.where(error.abs() <= 0.5, error**2 / 2, 0.5 * (error.abs() - 0.25)).mean())],
)  # fmt: skip
def test_the_loss_is_of_standardised_numbers(loss: Any, expected: Any) -> None:
    config = variant("mu/4", image=(8, 8), classes=2)
    task = RegressionTask(Regression(targets=("a", "b"), loss=loss, huber_delta=0.5), config, vit_preprocess((8, 8)))
    task = task.with_state({"mean": {"a": 10, "b": -300}, "std": {"a": 2, "b": 50}})
    outputs, targets = torch.randn(5, 2), torch.tensor([10.0, -300.0]) + torch.randn(5, 2) * torch.tensor([2.0, 50.0])
    error = outputs - (targets - torch.tensor([10.0, -300.0])) / torch.tensor([2.0, 50.0])
    batch = Batch(torch.zeros(5, 3, 8, 8), targets.double(), torch.arange(5))
    assert_close(task.loss(Returns(outputs), batch)[0], expected(error))
    assert task.metrics(outputs, targets)["loss"] == pytest.approx(float(expected(error)), rel=1e-5)


def test_what_cannot_be_learned_is_refused(table: Path, tmp_path: Path) -> None:
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (table, {"target": "prise"}, r"has no column 'prise' for the target; it has .*; did you mean 'price'\?"),
        (table, {"target": "note"}, r"data.csv, line 2: the target note must be a number, got 'red'; correct it or remove"),
        ([(image, 3.5) for image in IMAGES], {}, r"the target target is 3.5 for every training image .*nothing to learn"),
        (list(zip(IMAGES, [1.5, math.nan, *GREYS[2:]], strict=True)), {}, r"image \d+: the target target must be a finite"),
        ([(image, [grey, math.inf]) for image, grey in zip(IMAGES, GREYS, strict=True)], {}, "target_1 must be a finite"),
        ([(image, index % 2) for index, image in enumerate(IMAGES)], {"task": Regression()}, "are not numbers; name their"),
        ("panes:train_size=40", {"task": Regression()}, "are not numbers, though it can tell angle, size"),
        (table, {"target": "price", "task": Regression(targets=("cost",))}, r"the task predicts cost, .* are price"),
    ]  # fmt: skip
    for data, options, problem in refused:
        with pytest.raises(VitrailError, match=problem):
            train(data, tmp_path / "none", **options)
    assert not (tmp_path / "none").exists()
    for settings, problem in (
        ({"huber_delta": 0.0}, "huber_delta must be above 0"),
        ({"targets": ("file",)}, "a target must not be named 'file'"),
        ({"targets": ("a", "a")}, "a target is named twice"),
    ):
        with pytest.raises(VitrailError, match=problem):
            Regression(**settings)


def test_images_are_neither_flipped_nor_cropped_unless_named(table: Path) -> None:
    columns = Columns(targets=("edge",))
    prepared = prepare_training(str(table), options=RecipeOptions(columns=columns))
    assert (prepared.recipe.augment.crop, prepared.recipe.augment.hflip, prepared.recipe.augment.mixup) == ("none", 0, 0)
    assert any("not flipped or cropped" in note for note in prepared.notes)
    named = prepare_training(str(table), options=RecipeOptions(columns=columns, augment="none"))
    assert named.recipe.augment.hflip == 0.5
    assert not any("not flipped or cropped" in note for note in named.notes)


def test_the_commands_say_names_and_units(
    trained: TrainedRun, table: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = [str(table.parent / f"{number}.png") for number in range(3)]
    expected = [list(row.values.values()) for row in vitrail.predict(trained.folder, names)]
    for options in ([], ["--json"], ["--csv"], ["--jsonl"]):
        capfd.readouterr()
        assert run_command(["predict", str(trained.folder), *names, *options]) == 0
        printed = capfd.readouterr().out
        if options == ["--json"]:
            found = [list(row["values"].values()) for row in json.loads(printed)["predictions"]]
        elif options == ["--csv"]:
            found = [[float(row["price"]), float(row["edge"])] for row in csv.DictReader(printed.splitlines())]
        elif options == ["--jsonl"]:
            found = [list(json.loads(line)["values"].values()) for line in printed.splitlines()]
        else:
            assert printed.splitlines()[0].split() == ["file", "price", "edge"]
            found = [[float(cell) for cell in line.split()[1:]] for line in printed.splitlines()[1:]]
        assert np.array(found) == pytest.approx(np.array(expected), rel=1e-4)


def test_models_are_compared_on_the_same_images(
    trained: TrainedRun, table: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = train(table, tmp_path / "other", 20, target=["price", "edge"])
    capfd.readouterr()
    assert run_command(["evaluate", str(trained.folder), str(other.folder), str(table), "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    difference = answer["paired"][0]["standardised_mae"]
    assert difference["difference"] == pytest.approx(other.metrics["standardised_mae"] - trained.metrics["standardised_mae"])
    assert difference["interval"][0] > 0
    assert [row["name"] for row in answer["runs"][0]["targets"]] == ["price", "edge"]
    assert run_command(["evaluate", str(trained.folder), str(table)]) == 0
    printed = capfd.readouterr().out
    assert "MAE in standard deviations" in printed
    assert "edge" in printed


def test_robustness_is_the_error_under_corruptions(trained: TrainedRun, table: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = vitrail.evaluate_robustness(trained.folder, table)
    assert result.clean == pytest.approx(vitrail.evaluate(trained.folder, table).metrics["standardised_mae"])
    assert result.mean > result.clean
    assert run_command(["robustness", str(trained.folder), str(table)]) == 0
    legend = "mean absolute error in standard deviations as a fraction of the absolute error in standard deviations on clean"
    printed = capfd.readouterr().out.replace("\n", " ")
    assert legend in printed
    assert "mean mean" not in printed


def test_a_ridge_probe_is_that_of_scikit_learn(trained: TrainedRun, table: Path, capfd: pytest.CaptureFixture[str]) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    data = vitrail.open_dataset(table, target=["price", "edge"])
    result = probe(trained.folder, data, ["linear"]).linear
    assert isinstance(result, RidgeProbeResult)
    parts = [vitrail.embed(trained.folder, part).values.astype(np.float64) for part in data.splits.values()]
    deviation = (parts[0] - parts[0].mean(0)).std()
    x, y = np.concatenate(parts[:2]) / deviation, np.concatenate([true_numbers(part) for part in (data.train, data.validation)])
    for number, row in enumerate(result.targets):
        ridge = linear_model.Ridge(alpha=len(x) * row.penalty).fit(x, y[:, number])
        assert row.r2 == pytest.approx(ridge.score(parts[2] / deviation, true_numbers(data.test)[:, number]), abs=1e-4)
    assert result.r2 > 0.9
    assert run_command(["probe", str(trained.folder), str(table), "--target", "price", "--target", "edge", "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert answer["metric"] == "r2"
    assert answer["linear"]["r2"] == pytest.approx(result.r2)
    assert run_command(["probe", str(trained.folder), str(table), "--target", "edge", "--protocol", "linear"]) == 0
    assert "edge" in capfd.readouterr().out
    with pytest.raises(VitrailError, match="numbers as targets, which only a linear probe predicts"):
        probe(trained.folder, data, ["knn"])


@pytest.mark.parametrize("size", [(9, 4), (5, 8)])
def test_ridge_is_the_least_loss(size: tuple[int, int]) -> None:
    x, y = torch.randn(size).double(), torch.randn(size[0], 3).double() + 7
    (fitted,) = fit_ridge(x, y, [0.3])
    weight, intercept = fitted.weight.requires_grad_(), fitted.intercept.requires_grad_()
    loss = (x @ weight + intercept - y).square().mean(0).sum() + 0.3 * weight.square().sum()
    for gradient in torch.autograd.grad(loss, (weight, intercept)):
        assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)


def test_an_exported_file_is_compared_on_test_images_and_calibrated_on_training_images(
    trained: TrainedRun, table: Path
) -> None:
    roles: tuple[tuple[Any, str], ...] = ((None, "test"), ("evaluate", "test"), ("calibrate", "train"))
    for role, split in roles:
        assert load_sample_images(trained.model, str(table), role=role).description == f"{split} of {table}"


@pytest.mark.compile
@pytest.mark.parametrize("to", ["onnx", "int8", "program"])
def test_an_exported_file_has_the_restored_values(to: Any, trained: TrainedRun, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    path = tmp_path / ("x.pt2" if to == "program" else "x.onnx")
    vitrail.export(trained.folder, path, to, images=16, max_drop=0.2)
    expected, found = (
        np.array([list(row.values.values()) for row in vitrail.predict(each, IMAGES[:5])]) for each in (trained.model, path)
    )
    assert found == pytest.approx(expected, rel=0.1 if to == "int8" else 1e-4)
    if to != "program":
        session = runtime.InferenceSession(path)
        assert [output.name for output in session.get_outputs()] == ["standardised", "values"]
        standardised, values = session.run(None, {"images": np.stack(IMAGES[:1])})
        state = trained.model.metadata["task_state"]
        mean, std = (np.array(list(state[part].values())) for part in ("mean", "std"))
        assert values == pytest.approx(standardised * std + mean, rel=1e-6)


def test_it_is_served_by_names(trained: TrainedRun) -> None:
    engine, image = TorchPredictor(trained.model), encode_image(Image.fromarray(IMAGES[0]))
    with TestClient(create_serve_app(lambda: engine)) as client:
        while client.get("/readyz").status_code != 200:
            pass
        page = client.get("/").text
        answer = client.post("/predict", content=image, headers={"Content-Type": "image/png"}).json()
        explained = client.post(
            "/explain?method=relevance&class=edge", content=image, headers={"Content-Type": "image/png"}
        ).json()
    assert "a model that predicts price and edge" in page
    assert answer["predictions"][0]["values"] == pytest.approx(vitrail.predict(trained.model, [image])[0].values)
    assert explained["explanations"][0]["explained"] == "edge"


def test_the_studio_and_the_model_card_name_the_numbers(trained: TrainedRun) -> None:
    metadata, arrays = trace_image(trained.model, IMAGES[0])
    expected = vitrail.predict(trained.model, [IMAGES[0]])[0].values
    assert {each["name"]: each["value"] for each in metadata["numbers"]} == pytest.approx(expected)
    assert metadata["top"] == []
    assert arrays["logits"].size == 0
    card = model_card(json.loads((trained.folder / "best" / "vitrail.json").read_text()), "me/prices")
    assert "It predicts 2 numbers per image: `price`, `edge`." in card
    assert "## Targets" in card
    assert "## Classes" not in card


def test_an_explanation_is_in_units(trained: TrainedRun) -> None:
    (explanation,) = explain_images(trained.model, [IMAGES[0]], methods=())
    expected = vitrail.predict(trained.model, [IMAGES[0]])[0].values
    assert explanation.outputs.tolist() == pytest.approx(list(expected.values()), rel=1e-5)
    assert explanation.logit_lens[-1].tolist() == pytest.approx(list(expected.values()), rel=1e-5)
    assert explanation.target == 0
