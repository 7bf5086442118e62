"""The switches for speed on the command line: they reach the model, and what they cannot do is one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.evaluate.test_evaluate import folder, model
from vitrail.cli.main import run
from vitrail.evaluate.evaluate import measure
from vitrail.evaluate.predict import predict
from vitrail.models.faster import faster
from vitrail.weights.checkpoint import save
from vitrail.weights.load import load

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _a_model_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(model(1), "one", facts={"recipe": {"loss": "sigmoid"}})
    folder(Path("data"), "bee", "elk", "ant", each=4)


def told(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_evaluate_measures_what_was_switched_on(capsys: Capture) -> None:
    plain = load("one")
    assert told(capsys, "evaluate", "one", "data", "--merge", "2")["nll"] == measure(faster(plain, merge=2), "data").nll
    every = measure(faster(plain, merge=2, every=2), "data").nll
    assert told(capsys, "evaluate", "one", "data", "--merge", "2/2")["nll"] == every
    assert told(capsys, "evaluate", "one", "data", "--drop", "0.5")["nll"] == measure(faster(plain, drop=0.5), "data").nll
    assert told(capsys, "evaluate", "one", "data", "--merge", "1.1x")["nll"] == measure(faster(plain, merge="1.1x"), "data").nll


def test_predict_shows_pictures_at_the_size_that_is_named(capsys: Capture) -> None:
    """And a model that asks for each class on its own still does."""
    name = str(sorted(Path("data").rglob("*.jpg"))[0])
    larger = load("one", image=(24, 30))
    assert larger.facts == {"recipe": {"loss": "sigmoid"}}
    (expected,) = predict(larger, [name])
    (found,) = told(capsys, "predict", "one", name, "--image", "24x30")["predictions"]
    assert found["probability"] == expected.probability
    (plain,) = told(capsys, "predict", "one", name)["predictions"]
    assert plain["probability"] != expected.probability


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--merge", "lots"], "merge must be tokens a layer or a speed as 1.5x, got 'lots'; try 8 or 1.5x"),
        (["--merge", "4/0"], "every must be at least 1 layer, got 0; try every=3"),
        (["--merge", "4/x"], "--merge must be N, N/LAYERS or a speed as 1.5x, got '4/x'; try 8, 30/3 or 1.5x"),
        (["--merge", "90x"], "times as fast, got merge=90x; try a lower speed"),
        (["--merge", "-1"], "merge must be tokens a layer or a speed as 1.5x, got '-1'"),
        (["--drop", "1"], "drop must be a share from 0 to below 1, got 1; try drop=0.25"),
        (["--image", "7"], "image must be a multiple of patch"),
        (["--image", "big"], "--image must be a number or HEIGHTxWIDTH"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], sentence: str, capsys: Capture) -> None:
    assert run(["evaluate", "one", "data", *words]) == 2
    assert sentence in capsys.readouterr().err
