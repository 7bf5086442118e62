"""``vitrail evaluate`` of a detection model: one object for programs, tables for people, one sentence for a mistake."""

import json
from pathlib import Path
from typing import Any

import pytest

import vitrail
from tests.small_detector import random_detector
from vitrail.cli.main import run
from vitrail.evaluation.evaluate import evaluate
from vitrail.tasks.detection_metrics import METRIC_TITLES

Capture = pytest.CaptureFixture[str]
PANES = "panes:train_size=40,size=24x32"
KEYS = {*METRIC_TITLES, "classes", "confusion", "confused", "worst", "interval", "test"}
CLASS_KEYS = {"name", "ap", "ap50", "ar100", "interval", "objects", "images", "threshold", "precision", "recall", "f1"}


@pytest.fixture(autouse=True)
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, name in ((0, "one"), (1, "two")):
        model = random_detector(seed, ("figure", "ground"))
        vitrail.save(model, name, metadata=model.encoder.metadata)


def evaluate_json(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert run(["evaluate", *arguments, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_json_has_the_values_of_the_function_and_of_a_result(capsys: Capture) -> None:
    answer, found = evaluate_json(capsys, "one", PANES, "--batch-size", "7", "--workers", "0"), evaluate("one", PANES)
    assert answer.keys() >= KEYS
    assert all(row.keys() >= CLASS_KEYS for row in answer["classes"])
    for name in ("ap", "ap50", "ap75", "ar100"):
        assert answer[name] == answer["test"][name] == pytest.approx(found.metrics[name], abs=1e-6)
    assert [row["name"] for row in answer["classes"]] == ["figure", "ground"]
    assert answer["interval"]["ap50"] == pytest.approx(list(found.intervals["ap50"]), abs=1e-6)
    assert len(answer["confusion"]) == len(answer["confusion"][0]) == 3  # with the background
    assert answer["images"] == found.num_images


def test_two_models_are_compared_in_pairs(capsys: Capture) -> None:
    answer = evaluate_json(capsys, "one", "two", PANES)
    (pair,) = answer["paired"]
    assert pair["ap50"]["difference"] == answer["runs"][1]["ap50"] - answer["runs"][0]["ap50"]
    assert run(["evaluate", "one", "two", PANES]) == 0
    assert "two minus one" in capsys.readouterr().out


def test_tables_for_people(capsys: Capture) -> None:
    assert run(["evaluate", "one", PANES]) == 0
    printed, found = capsys.readouterr().out, evaluate("one", PANES)
    low, high = found.intervals["ap50"]
    row = next(line.split() for line in printed.splitlines() if line.strip().startswith("AP50 "))
    assert row == ["AP50", f"{found.metrics['ap50']:.2%}", f"{low:.2%}", "to", f"{high:.2%}"]
    for words in ("AP of small objects", "Classes", "Most frequent errors", "background", "Images of lowest AP50"):
        assert words in printed


def test_mistakes_are_one_sentence(capsys: Capture) -> None:
    strange = random_detector(0, ("sky", "ground"))
    vitrail.save(strange, "strange", metadata=strange.encoder.metadata)
    for arguments, sentence in (
        (["strange", PANES], "1 of the 1 classes of panes:train_size=40,size=24x32 is unknown to the model: 'figure'"),
        (["one", "fashion"], "fashion has no boxes"),
        (["one", PANES, "--tta", "crops"], "is not for boxes, whose maps must have the same cells in all views"),
    ):
        assert run(["evaluate", *arguments]) == 2
        assert sentence in capsys.readouterr().err
