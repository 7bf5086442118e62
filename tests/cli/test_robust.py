"""``vitrail robust`` from the command line: one object for programs, a table for people, a page, one sentence for a mistake."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.evaluate.test_evaluate import folder, model
from tests.small import vit
from vitrail.cli.main import run
from vitrail.cli.robust import _names
from vitrail.evaluate.beside import differences
from vitrail.evaluate.evaluate import measure
from vitrail.evaluate.robust import stress
from vitrail.weights.checkpoint import save

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _a_model_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(model(1), "one")
    save(model(2), "two")
    folder(Path("data"), "bee", "elk", "ant", each=5)


def told(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert run(["robust", *arguments, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_json_tells_what_the_function_tells(capsys: Capture) -> None:
    answer, found = told(capsys, "one", "two", "data"), [stress(name, "data") for name in ("one", "two")]
    assert (answer["pictures"], answer["left_out"], answer["grid"], answer["split"]) == (15, 0, [2, 3], "test")
    for each, expected in zip(answer["models"], found, strict=True):
        assert (
            (each["clean"], each["mean"])
            == (expected.clean, expected.mean)
            == (measure(each["model"], "data").top1, expected.mean)
        )
        assert list(each["disturbances"]) == ["noise", "blur", "contrast", "jpeg", "drop", "occlude", "shuffle"]
        for name, part in each["disturbances"].items():
            score = expected.scores[name]
            assert part["top1"] == list(score.top1)
            assert (part["mean"], part["retained"]) == (score.mean, score.retained)
            assert part["severities"] == list(range(1, len(part["top1"]) + 1))
            assert len(part["strengths"]) == len(part["top1"])
    gaps = differences(*found)
    assert answer["paired"][0]["noise"] == {"difference": gaps["noise"].difference, "interval": list(gaps["noise"].interval)}
    assert answer["page"] is None


def test_options_reach_the_function(capsys: Capture) -> None:
    plain = told(capsys, "one", "data", "--batch", "4", "--workers", "0", "--device", "cpu")
    assert told(capsys, "one", "data", "--split", "all")["pictures"] == 31
    assert told(capsys, "one", "data", "--limit", "7")["pictures"] == 7
    assert told(capsys, "one", "data", "--grid", "4x5")["models"][0]["disturbances"]["shuffle"]["strengths"] == [20]
    seeds = [told(capsys, "one", "data", "--seed", seed, "--split", "all")["models"] for seed in ("1", "2")]
    assert seeds[0] != seeds[1]
    assert plain["models"] == told(capsys, "one", "data")["models"]


def test_a_table_and_a_page_for_people(capsys: Capture) -> None:
    assert run(["robust", "one", "two", "one", "data", "--out", "page.html"]) == 0
    shown, found = capsys.readouterr().out, stress("one", "data")
    assert shown.startswith("data, test: 15 pictures, cells of 2x3\n")
    row = next(line.split() for line in shown.splitlines() if line.strip().startswith("Noise"))
    assert row[1:8] == ["one", *(f"{right:.1%}" for right in found.scores["noise"].top1), f"{found.scores['noise'].mean:.1%}"]
    assert "one (3)" in shown
    assert "page: page.html" in shown
    assert "one (3)" in Path("page.html").read_text()
    assert run(["robust", "one", "data"]) == 0
    assert "points more" not in capsys.readouterr().out


def test_models_are_called_by_what_tells_them_apart(capsys: Capture) -> None:
    assert _names(["runs/a", "runs/b/", "runs/a"]) == ["a", "b", "a (3)"]
    assert _names(["runs/a"]) == ["runs/a"]
    assert _names(["hf:us/a", "/x/y"]) == ["hf:us/a", "/x/y"]
    assert _names(["/x/runs/a/best", "/x/runs/b/best"]) == ["a/best", "b/best"]
    assert _names(["one", "one"]) == ["one", "one (2)"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["one"], "to test robustness takes a model and data, got 'one' alone"),
        ([], "Missing argument"),
        (["one", "nowhere"], "there is no 'nowhere'"),
        (["one", "nowhere", "data"], "nowhere does not exist"),
        (["one", "strange"], "2 of the 3 classes of strange are unknown to the model: 'beee', 'zebra'; it knows 'ant', 'bee'"),
        (["one", "headless", "data"], "the model has no classifier"),
        (
            ["one", "other", "data"],
            "3 of the 3 classes of data are unknown to the model: 'ant', 'bee', 'elk'; it knows 'a', 'b'",
        ),
        (["one", "data", "--split", "dev"], "--split"),
        (["one", "data", "--batch", "0"], "--batch"),
        (["one", "data", "--limit", "0"], "--limit"),
        (["one", "data", "--grid", "many"], "--grid must be a number or HEIGHTxWIDTH"),
        (["one", "data", "--grid", "40"], "got 40x40 for pictures of 12x15; try 12x15"),
        (["one", "data", "--out", "page.pdf"], "--out must end in .html"),
        (["one", "data", "--out", "gone/page.html"], "--out must be a file in a folder that exists"),
        (["one", "data", "--device", "warp"], "the device 'warp' cannot be used"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, capsys: Capture) -> None:
    folder(Path("strange"), "ant", "beee", "zebra")
    save(vit(classes=0), "headless")
    other = model()
    other.labels = ("a", "b", "c", "d", "e")
    save(other, "other")
    capsys.readouterr()
    assert run(["robust", *arguments]) == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
