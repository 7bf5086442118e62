"""``vitrail pretrain`` from the command line, and what can be done with its result."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.data.pictures import put
from vitrail.cli.main import run

Capture = pytest.CaptureFixture[str]
SETTINGS = (
    "model.width=12", "model.mlp=24", "model.depth=1", "model.patch=4", "steps=6", "batch=8", "evaluate=3", "checkpoint=2",
    "schedule.warmup=1",
)  # fmt: skip
TINY = [*(part for setting in SETTINGS for part in ("--set", setting)), "--workers", "0"]
DECODER = [part for setting in ("masking.decoder_width=12", "masking.decoder_heads=1") for part in ("--set", setting)]
PANES = "panes:count=100,size=16"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("method", ["mae", "simmim", "masked-patch"])
def test_a_plan_a_table_a_report_and_weights_for_what_comes_next(method: str, tmp_path: Path, capsys: Capture) -> None:
    assert run(["pretrain", PANES, "--method", method, *TINY, *(DECODER if method == "mae" else [])]) == 0
    shown = capsys.readouterr()
    assert f"recipe    {method}: 6 steps of 8 pictures" in shown.err
    assert "no labels are needed" in shown.err
    with safe_open(tmp_path / "runs" / method / "best" / "decoder.safetensors", framework="pt") as file:
        more = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118  it is no dict
    assert f"{more:,} parameters more predict what is hidden" in shown.err
    assert "knn" in shown.err
    assert "test loss" in shown.out
    page = (tmp_path / "runs" / method / "report.html").read_text()
    assert "<script" not in page
    assert "Nearest neighbours of the same class" in page
    assert page.count('type="radio"') == page.count('src="data:image/webp') == 2  # a sheet for each evaluation
    assert f"vitrail finetune runs/{method} DATA" in page
    assert run(["finetune", f"runs/{method}", PANES, "--set", "steps=4", "--set", "schedule.warmup=1", "--out", "tuned"]) == 0
    assert "new head for 10 classes" in capsys.readouterr().err
    assert run(["probe", f"runs/{method}", PANES, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) >= {"fewshot", "knn", "linear"}


def test_json_is_one_object(capsys: Capture) -> None:
    assert run(["pretrain", PANES, "--method", "masked-patch", "--target", "shrunken", *TINY, "--json", "--out", "one"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["run"] == "one"
    assert said["test"]["loss"] > 0
    assert 0 <= said["test"]["accuracy"] <= 1
    noted = json.loads(Path("one/recipe.json").read_text())
    assert noted["masking"]["target"] == "shrunken"


def test_any_pictures_below_a_folder_will_do(tmp_path: Path, capsys: Capture) -> None:
    for number in range(30):
        put(tmp_path / "mine" / ("deep/er" if number % 2 else ".") / f"{number}.jpg", number)
    assert run(["pretrain", "mine", "--method", "simmim", *TINY, "--set", "batch=3", "--image", "16", "--out", "one"]) == 0
    assert "22 train, 4 validation, 4 test" in capsys.readouterr().err


def test_pictures_without_labels_can_be_packed_first(tmp_path: Path, capsys: Capture) -> None:
    for number in range(30):
        put(tmp_path / "mine" / f"{number}.jpg", number)
    assert run(["data", "pack", "mine", "mine.pack", "--size", "16x16"]) == 2
    assert "no folder a class" in capsys.readouterr().err
    assert run(["data", "pack", "mine", "mine.pack", "--size", "16x16", "--unlabelled"]) == 0
    assert run(["pretrain", "mine.pack", "--method", "simmim", *TINY, "--set", "batch=3", "--out", "one"]) == 0
    assert "24 train, 3 validation, 3 test" in capsys.readouterr().err
    assert run(["train", "mine.pack", "--out", "two"]) == 2  # there is nothing to tell apart
    assert "Traceback" not in capsys.readouterr().err


def test_the_whole_recipe_is_printed(capsys: Capture) -> None:
    assert run(["pretrain", PANES, "--method", "mae", "--model", "B/16", "--print"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["masking"]["decoder_width"] == 512
    assert shown["optim"]["betas"] == [0.9, 0.95]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pretrain", PANES, "--method", "ame"], "no method is named 'ame'"),
        (["pretrain", PANES, "--target", "colour"], "mae predicts pixels"),
        (["pretrain", PANES, "--method", "masked-patch", "--target", "color"], "masking.target"),
        (["pretrain", PANES, "--model", "R50x1"], "a ResNet has none"),
        (["pretrain", "nowhere"], "there is no 'nowhere'"),
        (["train", PANES, "--recipe", "mae"], "try vitrail pretrain"),
        (["pretrain", PANES, "--set", "masking.shar=0.5"], "share"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], said: str, capsys: Capture) -> None:
    assert run(words) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert "Traceback" not in shown


def test_a_pretrained_model_says_that_it_has_no_classes(capsys: Capture) -> None:
    assert run(["pretrain", PANES, "--method", "simmim", *TINY, "--out", "one"]) == 0
    capsys.readouterr()
    for words in (["evaluate", "one", PANES], ["predict", "one", "nothing.jpg"], ["robust", "one", PANES]):
        assert run(words) == 2
        shown = capsys.readouterr().err
        assert "vitrail finetune" in shown, words
        assert "Traceback" not in shown
