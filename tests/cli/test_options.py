"""Speedup options on the command line: they reach the model, and a mistake is one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.test_classification import image_folder, random_model
from vitrail.cli.main import run
from vitrail.evaluation.evaluate import evaluate
from vitrail.inference.predict import predict
from vitrail.models.speedups import speed_up
from vitrail.weights.load import load
from vitrail.weights.save import save

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _a_model_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(random_model(1), "one", metadata={"recipe": {"task": {"kind": "classification", "loss": "sigmoid"}}})
    image_folder(Path("data"), "bee", "elk", "ant", each=4)


def run_json(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_evaluate_applies_the_speedups(capsys: Capture) -> None:
    plain = load("one")
    assert (
        run_json(capsys, "evaluate", "one", "data", "--merge-tokens", "2")["nll"]
        == evaluate(speed_up(plain, merge_tokens=2), "data").nll
    )
    every = evaluate(speed_up(plain, merge_tokens=2, merge_every=2), "data").nll
    assert run_json(capsys, "evaluate", "one", "data", "--merge-tokens", "2/2")["nll"] == every
    assert (
        run_json(capsys, "evaluate", "one", "data", "--drop-patches", "0.5")["nll"]
        == evaluate(speed_up(plain, drop_patches=0.5), "data").nll
    )
    assert (
        run_json(capsys, "evaluate", "one", "data", "--merge-tokens", "1.1x")["nll"]
        == evaluate(speed_up(plain, merge_tokens="1.1x"), "data").nll
    )


def test_predict_resizes_images_to_the_given_size(capsys: Capture) -> None:
    """A model with a sigmoid loss keeps it."""
    name = str(sorted(Path("data").rglob("*.jpg"))[0])
    larger = load("one", image=(24, 30))
    assert larger.metadata == {"recipe": {"task": {"kind": "classification", "loss": "sigmoid"}}}
    (expected,) = predict(larger, [name])
    (found,) = run_json(capsys, "predict", "one", name, "--image-size", "24x30")["predictions"]
    assert found["probability"] == expected.probability
    (plain,) = run_json(capsys, "predict", "one", name)["predictions"]
    assert plain["probability"] != expected.probability


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--merge-tokens", "lots"],
            "merge_tokens must be tokens per layer or a speed-up such as 1.5x, got 'lots'; try 8 or 1.5x",
        ),
        (["--merge-tokens", "4/0"], "merge_every must be at least 1 layer, got 0; try merge_every=3"),
        (
            ["--merge-tokens", "4/x"],
            "--merge-tokens must be N, N/LAYERS or a speedup such as 1.5x, got '4/x'; try 8, 30/3 or 1.5x",
        ),
        (["--merge-tokens", "90x"], "times as fast, got merge_tokens=90x; try a lower speed"),
        (["--merge-tokens", "-1"], "merge_tokens must be tokens per layer or a speed-up such as 1.5x, got '-1'"),
        (["--drop-patches", "1"], "drop_patches must be a fraction from 0 to below 1, got 1; try drop_patches=0.25"),
        (["--image-size", "7"], "image must be a multiple of patch"),
        (["--image-size", "big"], "--image-size must be a number or HEIGHTxWIDTH"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], sentence: str, capsys: Capture) -> None:
    assert run(["evaluate", "one", "data", *words]) == 2
    assert sentence in capsys.readouterr().err
