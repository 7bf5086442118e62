"""``vitrail evaluate`` of a segmentation model: one object for programs, tables for people, one sentence for a mistake."""

import json
from pathlib import Path
from typing import Any

import pytest

import vitrail
from tests.evaluation.segmenters import random_segmenter
from vitrail.cli.main import run
from vitrail.data.preprocess import Preprocess
from vitrail.evaluation.evaluate import evaluate

Capture = pytest.CaptureFixture[str]
PANES = "panes:train_size=40,size=24x32"
KEYS = {
    "miou",
    "dice",
    "pixel_accuracy",
    "boundary_iou",
    "iou",
    "classes",
    "confusion",
    "confused",
    "worst",
    "interval",
    "test",
}
CLASS_KEYS = {"name", "iou", "dice", "boundary_iou", "precision", "recall", "interval", "pixels"}


@pytest.fixture(autouse=True)
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, name in ((0, "one"), (1, "two")):
        model = random_segmenter(seed, ("figure", "background"))
        model.encoder.preprocess = Preprocess((12, 15), 1.0, "stretch")
        vitrail.save(model, name, metadata=model.encoder.metadata)


def evaluate_json(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert run(["evaluate", *arguments, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_json_has_the_values_of_the_function_and_of_a_result(capsys: Capture) -> None:
    answer, found = evaluate_json(capsys, "one", PANES), evaluate("one", PANES)
    assert answer.keys() >= KEYS
    assert all(row.keys() >= CLASS_KEYS for row in answer["classes"])
    for name in ("miou", "dice", "pixel_accuracy", "boundary_iou"):
        assert answer[name] == answer["test"][name] == found.metrics[name]
    assert answer["test"]["iou"] == answer["iou"] == {row["name"]: row["iou"] for row in answer["classes"]}
    assert list(answer["iou"]) == ["figure", "background"]
    assert answer["interval"]["miou"] == list(found.intervals["miou"])
    assert {"pq", "sq", "rq"} <= answer.keys()
    assert (answer["images"], answer["tta"]) == (found.num_images, None)


def test_options_reach_the_function(capsys: Capture) -> None:
    for tta in ("flip", "scales"):
        answer = evaluate_json(capsys, "one", PANES, "--tta", tta, "--batch-size", "3", "--workers", "0")
        assert (answer["tta"], answer["nll"]) == (tta, pytest.approx(evaluate("one", PANES, tta=tta).metrics["nll"]))
    assert evaluate_json(capsys, "one", PANES, "--split", "validation").keys() >= {"validation"}


def test_two_models_are_compared_in_pairs(capsys: Capture) -> None:
    answer = evaluate_json(capsys, "one", "two", PANES)
    (pair,) = answer["paired"]
    assert pair["miou"]["difference"] == answer["runs"][1]["miou"] - answer["runs"][0]["miou"]
    assert run(["evaluate", "one", "two", PANES]) == 0
    assert "two minus one" in capsys.readouterr().out


def test_tables_for_people(capsys: Capture) -> None:
    assert run(["evaluate", "one", PANES]) == 0
    printed, found = capsys.readouterr().out, evaluate("one", PANES)
    low, high = found.intervals["miou"]
    row = next(line.split() for line in printed.splitlines() if line.strip().startswith("mean IoU"))
    assert row == ["mean", "IoU", f"{found.metrics['miou']:.2%}", f"{low:.2%}", "to", f"{high:.2%}"]
    for words in ("boundary IoU", "panoptic quality", "Classes", "Most confused classes", "Images of lowest mean IoU"):
        assert words in printed


def test_mistakes_are_one_sentence(capsys: Capture) -> None:
    strange = random_segmenter(0, ("figure", "ground"))
    vitrail.save(strange, "strange", metadata=strange.encoder.metadata)
    for arguments, sentence in (
        (["strange", PANES], "1 of the 2 classes of panes:train_size=40,size=24x32 is unknown to the model: 'background'"),
        (["one", "fashion"], "fashion has no masks"),
        (["one", PANES, "--tta", "crops"], "segmentation needs all of it; try tta=flip or tta=scales"),
    ):
        assert run(["evaluate", *arguments]) == 2
        assert sentence in capsys.readouterr().err
