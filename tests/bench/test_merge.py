"""Accuracy against speed: accuracy is that of the evaluation, speed is relative to the plain model, the curve is plotted."""

import json
from pathlib import Path

import pytest
from PIL import Image

from tests.evaluate.test_evaluate import folder, model
from tests.small import config
from vitrail.bench.merge import curve_drawing, merge_curve, smaller
from vitrail.cli.main import run
from vitrail.evaluate.evaluate import measure
from vitrail.models.faster import faster
from vitrail.weights.checkpoint import save
from vitrail.weights.load import load


@pytest.fixture(autouse=True)
def _a_model_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(model(1), "one")
    folder(Path("data"), "bee", "elk", "ant", each=8)


def test_every_speedup_has_the_accuracy_of_the_evaluation() -> None:
    found = merge_curve("one", "data", (0, 1, 2), (0.5,), None, batch=3, rounds=1)
    plain = load("one")
    assert [(row.way, row.value) for row in found.rows[:4]] == [("merge", 0), ("merge", 1), ("merge", 2), ("drop", 0.5)]
    assert found.rows[0].speed == found.rows[0].same == found.rows[0].macs == 1
    assert found.rows[2].top1 == measure(faster(plain, merge=2), "data").top1
    assert found.rows[3].top1 == measure(faster(plain, drop=0.5), "data").top1
    assert found.rows[2].macs > found.rows[1].macs > 1
    assert found.rows[4].top1 == measure(load("one", image=(6, 10)), "data").top1
    for row in found.rows:
        assert row.top1 == pytest.approx(row.right / found.pictures)
        assert row.images_per_second > 0


def test_smaller_sizes_are_whole_patches_and_each_comes_once() -> None:
    assert smaller(config(patch=16, image=224)) == [(192, 192), (160, 160), (128, 128)]
    assert smaller(config(patch=16, image=(32, 64))) == [(32, 48), (16, 48), (16, 32)]
    assert smaller(config(patch=16, image=16)) == []


def test_the_curve_has_a_line_per_method_and_a_dot_per_row() -> None:
    found = merge_curve("one", "data", (0, 1, 2), (0.5,), (), batch=3, rounds=1)
    drawn = curve_drawing(found).svg()
    assert "merged tokens" in drawn
    assert "smaller images" not in drawn
    assert drawn.count("<circle") == len(found.rows)
    assert all(f">{words}</text>" in drawn for words in ("plain", "1", "2", "50%"))


def test_the_command_prints_draws_and_writes_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "bench",
        "token-merging",
        "one",
        "data",
        "--r",
        "0,1",
        "--drop-patches",
        "none",
        "--image",
        "none",
        "--rounds",
        "1",
    ]
    assert run([*words, "--out", "curve.png"]) == 0
    output = capsys.readouterr().out
    assert "merged tokens" in output
    assert "curve: curve.png" in output
    with Image.open("curve.png") as image:
        assert image.size[0] > 500
    assert run([*words, "--out", "curve.svg", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["value"] for row in answer["rows"]] == [0, 1]
    assert answer["out"] == "curve.svg"
    assert Path("curve.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--r", "a"], "--r must be comma-separated numbers, got 'a'; try --r 4,8"),
        (["--r", "1.5"], "--r must be whole numbers"),
        (["--drop-patches", "2"], "drop must be a fraction"),
        (["--image", "13"], "image must be a multiple of patch"),
        (["--out", "curve.jpg"], "--out must end in .svg or .png"),
    ],
)
def test_errors_are_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "token-merging", "one", "data", *words]) == 2
    assert sentence in capsys.readouterr().err
