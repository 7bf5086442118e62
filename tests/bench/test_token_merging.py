"""Accuracy against speed: accuracy is that of the evaluation, speed is relative to the plain model, the curve is plotted."""

import json
from pathlib import Path

import pytest
from PIL import Image

from tests.evaluation.test_classification import image_folder, random_model
from tests.small_models import small_config
from vitrail.bench.token_merging import benchmark_token_merging, plot_curve, smaller_sizes
from vitrail.cli.main import run
from vitrail.evaluation.evaluate import evaluate
from vitrail.models.speedups import speed_up
from vitrail.weights.load import load
from vitrail.weights.save import save


@pytest.fixture(autouse=True)
def _a_model_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(random_model(1), "one")
    image_folder(Path("data"), "bee", "elk", "ant", each=8)


def test_every_speedup_has_the_accuracy_of_the_evaluation() -> None:
    result = benchmark_token_merging("one", "data", (0, 1, 2), (0.5,), None, batch_size=3, rounds=1)
    plain = load("one")
    assert [(row.speedup, row.value) for row in result.rows[:4]] == [("merge", 0), ("merge", 1), ("merge", 2), ("drop", 0.5)]
    assert result.rows[0].speed == result.rows[0].agreement == result.rows[0].macs_ratio == 1
    assert result.rows[2].top1 == evaluate(speed_up(plain, merge_tokens=2), "data").top1
    assert result.rows[3].top1 == evaluate(speed_up(plain, drop_patches=0.5), "data").top1
    assert result.rows[2].macs_ratio > result.rows[1].macs_ratio > 1
    assert result.rows[4].top1 == evaluate(load("one", image=(6, 10)), "data").top1
    for row in result.rows:
        assert row.top1 == pytest.approx(row.num_correct / result.num_images)
        assert row.images_per_second > 0


def test_smaller_sizes_are_whole_patches_and_each_comes_once() -> None:
    assert smaller_sizes(small_config(patch=16, image=224)) == [(192, 192), (160, 160), (128, 128)]
    assert smaller_sizes(small_config(patch=16, image=(32, 64))) == [(32, 48), (16, 48), (16, 32)]
    assert smaller_sizes(small_config(patch=16, image=16)) == []


def test_the_curve_has_a_line_per_method_and_a_dot_per_row() -> None:
    result = benchmark_token_merging("one", "data", (0, 1, 2), (0.5,), (), batch_size=3, rounds=1)
    samples = plot_curve(result).to_svg()
    assert "merged tokens" in samples
    assert "smaller images" not in samples
    assert samples.count("<circle") == len(result.rows)
    assert all(f">{label}</text>" in samples for label in ("plain", "1", "2", "50%"))


def test_the_command_prints_draws_and_writes_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "bench",
        "token-merging",
        "one",
        "data",
        "--r",
        "0,1",
        "--drop-patches",
        "none",
        "--image-size",
        "none",
        "--rounds",
        "1",
    ]
    assert run([*arguments, "--out", "curve.png"]) == 0
    output = capsys.readouterr().out
    assert "merged tokens" in output
    assert "curve: curve.png" in output
    with Image.open("curve.png") as image:
        assert image.size[0] > 500
    assert run([*arguments, "--out", "curve.svg", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [row["value"] for row in content["rows"]] == [0, 1]
    assert content["out"] == "curve.svg"
    assert Path("curve.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--r", "a"], "--r must be comma-separated numbers, got 'a'; try --r 4,8"),
        (["--r", "1.5"], "--r must be whole numbers"),
        (["--drop-patches", "2"], "drop_patches must be a fraction"),
        (["--image-size", "13"], "image must be a multiple of patch"),
        (["--out", "curve.jpg"], "--out must end in .svg or .png"),
    ],
)
def test_errors_are_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "token-merging", "one", "data", *arguments]) == 2
    assert sentence in capsys.readouterr().err
