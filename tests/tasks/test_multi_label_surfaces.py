"""A model that predicts several labels per image says the same everywhere: predictions, the server, exported and converted
files, explanations, features and the model card, with its thresholds."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

import vitrail
from tests.data.images import write_class_folders, write_image, write_label_table
from tests.small_models import multi_label_vit
from vitrail.cli.main import run
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError
from vitrail.exporters.output_scores import labelled_scores
from vitrail.exporters.parity import ParityReport, require_accuracy
from vitrail.exporters.quantise import quantise
from vitrail.exporters.sample_images import SampleImages, load_sample_images
from vitrail.inference.load import load_predictor
from vitrail.inference.predictor import TorchPredictor
from vitrail.inference.tta import TTAPredictor
from vitrail.models.vit import ViT
from vitrail.serve.app import create_serve_app
from vitrail.tasks.label_metrics import average_precision
from vitrail.weights.save import save

Capture = pytest.CaptureFixture[str]
NAMES = ("ant", "bee", "cat", "dog", "elk")
SETS = ["elk;bee", "ant", "", "bee;cat", "dog", "ant;elk;bee", "cat", "elk", "bee;dog"]


@pytest.fixture(autouse=True)
def _a_model_and_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(multi_label_vit(), "tags")
    write_label_table(Path("data"), SETS)


def probabilities(model: ViT, number: int) -> np.ndarray:
    """Compute the probabilities of an image alone, without the package's own prediction."""
    images = vitrail.preprocess(model, [f"data/{number}.png"])
    with torch.inference_mode():
        return model(images)[0].double().sigmoid().numpy()


def expected_labels(model: ViT, number: int) -> list[str]:
    values, thresholds = probabilities(model, number), model.metadata["task_state"]["thresholds"]
    return [NAMES[label] for label in np.argsort(-values) if values[label] >= thresholds[label]]


def test_labels_are_those_that_reach_their_threshold_in_every_format(capsys: Capture) -> None:
    model, files = multi_label_vit(), [f"data/{number}.png" for number in range(len(SETS))]
    wanted = [expected_labels(model, number) for number in range(len(SETS))]
    assert len({len(labels) for labels in wanted}) > 1
    predictions = vitrail.predict("tags", files, top_k=2)
    assert [list(each.labels) for each in predictions] == wanted
    for number, each in enumerate(predictions):
        by_name = dict(zip(NAMES, probabilities(model, number), strict=True))
        assert each.probabilities == pytest.approx([by_name[label] for label in each.labels])
        assert [entry.label for entry in each.top] == sorted(NAMES, key=lambda name: -by_name[name])[:2]
    assert run(["predict", "tags", *files, "--jsonl"]) == 0
    assert [json.loads(line)["labels"] for line in capsys.readouterr().out.splitlines()] == wanted
    assert run(["predict", "tags", *files, "--csv", "--top", "2"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["labels"] for row in rows] == [";".join(labels) for labels in wanted]
    assert list(rows[0]) == ["file", "labels", "label_1", "probability_1", "label_2", "probability_2", "error"]
    assert run(["predict", "tags", *files, "--out", "parts", "--rows-per-file", "4"]) == 0
    parts = [json.loads(line) for path in sorted(Path("parts").glob("*.jsonl")) for line in path.read_text().splitlines()]
    assert [row["labels"] for row in parts] == wanted


def test_a_table_lists_labels_with_their_probabilities_and_others_in_brackets(capsys: Capture) -> None:
    assert run(["predict", "tags", "data/0.png"]) == 0
    line, model = capsys.readouterr().out.splitlines()[1], multi_label_vit()
    by_name, labels = dict(zip(NAMES, probabilities(model, 0), strict=True)), expected_labels(model, 0)
    others = sorted(set(NAMES) - set(labels), key=lambda name: -by_name[name])
    cells = [f"{name} {by_name[name]:.1%}" for name in labels] + [f"({name} {by_name[name]:.1%})" for name in others]
    assert line == "  ".join(["data/0.png", *cells])


def test_the_server_answers_with_the_same_labels_and_explains_a_chosen_one() -> None:
    model = multi_label_vit()
    with TestClient(create_serve_app(lambda: load_predictor("tags"), source="tags")) as client:
        while client.get("/readyz").status_code != 200:
            pass
        content = Path("data/3.png").read_bytes()
        (row,) = client.post("/predict?top=2", content=content, headers={"Content-Type": "image/png"}).json()["predictions"]
        assert row["labels"] == expected_labels(model, 3)
        assert [entry["label"] for entry in row["top"]] == [NAMES[label] for label in np.argsort(-probabilities(model, 3))[:2]]
        answer = client.post(
            "/explain?method=relevance&class=dog", content=content, headers={"Content-Type": "image/png"}
        ).json()
        (map_,) = answer["explanations"]
        assert (map_["explained"], map_["labels"]) == ("dog", row["labels"])
        images = vitrail.preprocess(model, ["data/3.png"])
        expected = vitrail.explain.saliency(model, images, "relevance", torch.tensor([NAMES.index("dog")]))[0]
        torch.testing.assert_close(torch.tensor(map_["map"]), expected, rtol=1e-4, atol=1e-6)
        assert "any of 5 labels per image" in client.get("/").text
        schema = client.get("/openapi.json").json()["components"]["schemas"]["ImagePrediction"]["properties"]
        assert {"labels", "probabilities", "top"} <= set(schema)
        assert "those that reach their threshold" in client.get("/docs").text


@pytest.mark.compile
def test_an_exported_file_has_the_thresholds_and_decides_the_same(tmp_path: Path) -> None:
    model, files = multi_label_vit(), [f"data/{number}.png" for number in range(len(SETS))]
    result = vitrail.export(model, "tags.onnx", data="data/labels.csv")
    assert (result.parity.agreement, result.parity.num_images) == (1.0, len(SETS))
    assert result.parity.torch_map == result.parity.file_map
    assert result.parity.torch_top1 is None
    predictor = load_predictor("tags.onnx")
    assert predictor.task.state() == model.metadata["task_state"]
    assert [each.labels for each in vitrail.predict(predictor, files)] == [
        each.labels for each in vitrail.predict(model, files)
    ]
    report = vitrail.export(model, "tags8.onnx", "int8", data="data/labels.csv", max_drop=0.9, calibration=3).parity
    assert report.torch_map is not None
    assert report.file_map is not None
    assert report.accuracy_drop == report.torch_map - report.file_map
    assert load_predictor("tags8.onnx").task.state() == model.metadata["task_state"]


def test_sample_images_have_the_labels_of_the_model_by_name() -> None:
    model = multi_label_vit(names=NAMES[::-1])
    samples = load_sample_images(model, "data/labels.csv")
    assert samples.label_sets is not None
    assert [[NAMES[::-1][label] for label in np.flatnonzero(row)] for row in samples.label_sets] == [
        sorted(labels.split(";") if labels else [], reverse=True) for labels in SETS
    ]
    outputs = TorchPredictor(model).outputs(samples.images)
    scores = labelled_scores(TorchPredictor(model).task, outputs, -outputs, samples)
    columns = zip(torch.from_numpy(outputs).T, torch.from_numpy(samples.label_sets).bool().T, strict=True)
    assert scores is not None
    assert scores[0] == pytest.approx(torch.cat([average_precision(*column) for column in columns]).mean().item())
    assert scores[0] != scores[1]
    stranger = load_sample_images(multi_label_vit(names=("p", "q", "r", "s", "t")), "data/labels.csv")
    assert stranger.label_sets is None
    assert (stranger.labels == -1).all()


@pytest.mark.compile
def test_layers_stay_in_float_until_little_map_is_lost(tmp_path: Path) -> None:
    model, random = multi_label_vit(), np.random.default_rng(0)
    images = random.integers(0, 256, (30, 12, 15, 3), np.uint8)
    truth = (TorchPredictor(model).outputs(images) > 0).astype(np.uint8)  # by which the model itself is perfect
    samples = SampleImages(images, np.full(30, -1), "noise", label_sets=truth)
    report = quantise(model, tmp_path / "a.onnx", images[:8], samples, max_drop=0.0)
    assert report.accuracy_drop <= 0
    assert report.float_layers
    bad = ParityReport(30, "noise", True, 0.1, 3.0, 0.9, torch_map=0.8, file_map=0.75)
    with pytest.raises(vitrail.VitrailError, match=r"loses 5\.00 points of mAP on noise"):
        require_accuracy(bad, "a.onnx", 0.005)


def test_views_are_averaged_as_sigmoids_whatever_the_loss() -> None:
    model = multi_label_vit()
    model.metadata["recipe"] = {"task": {"kind": "multi-label", "loss": "asymmetric"}}
    images = np.random.default_rng(0).integers(0, 256, (4, 12, 15, 3), np.uint8)
    predictor = TorchPredictor(model)
    views = [torch.from_numpy(predictor.outputs(each)).double().sigmoid() for each in (images, images[:, :, ::-1].copy())]
    averaged = torch.from_numpy(TTAPredictor(predictor, "flip").outputs(images)).double().sigmoid()
    torch.testing.assert_close(averaged, (views[0] + views[1]) / 2, rtol=1e-5, atol=1e-6)


def test_several_classes_of_an_image_are_explained(capsys: Capture) -> None:
    methods = ["--method", "rollout", "--method", "relevance"]
    assert run(["explain", "tags", "data/5.png", "data/1.png", "--class", "dog", "--class", "ant", *methods, "--json"]) == 0
    answer, model = json.loads(capsys.readouterr().out), multi_label_vit()
    assert [(row["file"], row["explained"]) for row in answer["images"]] == [
        (f"data/{number}.png", name) for number in (5, 1) for name in ("dog", "ant")
    ]
    for row in answer["images"]:
        number = int(Path(row["file"]).stem)
        assert row["labels"] == expected_labels(model, number)
        target = torch.tensor([NAMES.index(row["explained"])])
        expected = vitrail.explain.saliency(model, vitrail.preprocess(model, [row["file"]]), "relevance", target)[0]
        torch.testing.assert_close(torch.tensor(row["maps"]["relevance"]), expected, rtol=1e-4, atol=1e-6)
    page = Path("explained/index.html").read_text()
    assert page.count("<h2>data/") == 2
    assert "Labels that reach their threshold: " in page
    assert "The class-specific maps of <b>ant</b>" in page
    assert sum(name.endswith("relevance.png") for name in answer["files"]) == 4
    assert sum(name.endswith("rollout.png") for name in answer["files"]) == 2  # the same for every class
    assert run(["explain", "tags", "data/5.png", "--method", "none"]) == 0
    assert "predicted labels" in capsys.readouterr().out


def test_faithfulness_is_measured_on_the_sigmoid_of_the_chosen_class(capsys: Capture) -> None:
    command = ["explain", "tags", "--faithfulness", "data/labels.csv", "--method", "relevance", "--class", "dog"]
    assert run([*command, "--json"]) == 0
    model, rows = multi_label_vit(), json.loads(capsys.readouterr().out)["faithfulness"]
    full = np.mean([probabilities(model, number)[NAMES.index("dog")] for number in range(len(SETS))])
    assert [row["method"] for row in rows] == ["random", "edges", "relevance"]
    for row in rows:  # before the first patch is removed
        assert row["deletion_curve"][0] == pytest.approx(full, rel=1e-4)
    assert run([*command, "--class", "ant"]) == 2
    assert "--faithfulness measures the maps of one class, got 2" in capsys.readouterr().err


def test_converted_files_keep_what_their_format_can(capsys: Capture) -> None:
    square = multi_label_vit(image=(12, 12), patch=(6, 6), gelu="exact")

    square.preprocess = Preprocess((12, 12))
    save(square, "square")
    capsys.readouterr()
    for out, format, keeps in (("a.safetensors", "timm", True), ("hf", "huggingface", False)):
        assert run(["weights", "convert", "square", out, "--to", format]) == 0
        printed = capsys.readouterr().out
        assert ("thresholds of the model are left behind" in printed) is not keeps
        task = load_predictor(out).task
        assert task.config.kind == "multi-label"
        assert (task.state() == square.metadata["task_state"]) is keeps
    assert json.loads(Path("hf/config.json").read_text())["problem_type"] == "multi_label_classification"


def test_features_are_written_with_the_names_of_the_labels() -> None:
    assert run(["embed", "tags", "data/labels.csv", "--out", "features.npz", "--split", "test"]) == 0
    with np.load("features.npz") as arrays:
        by_file = dict(zip(arrays["files"], arrays["label_names"], strict=True))
    pytest.importorskip("pyarrow")
    import pyarrow.parquet  # type: ignore[import-untyped]

    assert run(["embed", "tags", "data/labels.csv", "--out", "features.parquet", "--split", "test"]) == 0
    table: Any = pyarrow.parquet.read_table("features.parquet").to_pydict()
    data = open_dataset("data/labels.csv").test
    for index, labels in enumerate(SETS):
        ordered = ";".join(sorted(labels.split(";"))) if labels else ""
        assert by_file[data.describe(index)] == ordered
        assert table["label"][table["file"].index(data.describe(index))] == (ordered or None)


def test_an_image_without_any_label_is_predicted_too(capsys: Capture) -> None:
    model = multi_label_vit()
    model.metadata["task_state"]["thresholds"] = [1.0] * 5
    save(model, "strict", metadata=model.metadata)
    Image.open(write_image(Path("one.png"), 7)).close()
    assert run(["predict", "strict", "one.png"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("one.png  none  (")
    assert run(["predict", "strict", "one.png", "--csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("one.png,,")


def test_data_without_columns_is_evaluated_by_a_model_that_was_trained_on_a_table(capsys: Capture) -> None:
    model = multi_label_vit()
    columns = {"labels": "labels", "separator": ";", "several": True}
    save(model, "trained", metadata={**model.metadata, "recipe": {**model.metadata["recipe"], "columns": columns}})
    folders = write_class_folders(Path("folders"), {NAMES[0]: 3, NAMES[2]: 4})
    pairs = [(path, [path.parent.name]) for path in sorted(folders.rglob("*.jpg"))]
    found = vitrail.evaluate("trained", folders).metrics
    assert found["map_micro"] == pytest.approx(vitrail.evaluate("trained", pairs).metrics["map_micro"])
    assert run(["evaluate", "trained", str(folders), "--separator", "|"]) == 2
    assert "folders has no columns" in capsys.readouterr().err


def test_numbers_are_no_labels() -> None:
    with pytest.raises(VitrailError, match=r"list-\w+ has numbers \(target\) in place of labels; name a dataset with labels"):
        vitrail.evaluate("tags", [(f"data/{number}.png", number / 4) for number in range(len(SETS))])
