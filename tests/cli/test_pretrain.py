"""``vitrail pretrain`` from the command line, and the use of its weights."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.data.images import write_image
from vitrail.cli.main import run

Capture = pytest.CaptureFixture[str]
SETTINGS = (
    "model.width=12", "model.mlp=24", "model.depth=1", "model.patch=4", "steps=6", "batch_size=8", "eval_every=3",
    "checkpoint_every=2", "schedule.warmup_steps=1",
)  # fmt: skip
TINY = [*(part for setting in SETTINGS for part in ("--set", setting)), "--workers", "0"]
DECODER = [part for setting in ("task.masking.decoder_width=12", "task.masking.decoder_heads=1") for part in ("--set", setting)]
PANES = "panes:train_size=100,size=16"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "method", ["mae", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("simmim", "masked-patch"))]
)
def test_a_summary_a_table_a_report_and_weights_for_finetune_and_probe(method: str, tmp_path: Path, capsys: Capture) -> None:
    assert run(["pretrain", PANES, "--method", method, *TINY, *(DECODER if method == "mae" else [])]) == 0
    printed = capsys.readouterr()
    assert f"recipe    {method}: 6 steps of 8 images" in printed.err
    assert "without labels" in printed.err
    with safe_open(tmp_path / "runs" / method / "best" / "decoder.safetensors", framework="pt") as file:
        more = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118 - not a dict
    assert f"{more:,} more parameters predict the masked patches" in printed.err
    assert "knn" in printed.err
    assert "test loss" in printed.out
    page = (tmp_path / "runs" / method / "report.html").read_text()
    assert "<script" not in page
    assert "k-NN accuracy" in page
    assert page.count('type="radio"') == page.count('src="data:image/webp') == 2  # a sheet for each evaluation
    assert f"vitrail finetune runs/{method} DATA" in page
    few = ["--set", "steps=4", "--set", "schedule.warmup_steps=1", "--batch-size", "8"]
    assert run(["finetune", f"runs/{method}", PANES, *few, "--out", "tuned"]) == 0
    assert "new head for 10 classes" in capsys.readouterr().err
    assert run(["probe", f"runs/{method}", PANES, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) >= {"fewshot", "knn", "linear"}


def test_json_is_one_object(capsys: Capture) -> None:
    assert run(["pretrain", PANES, "--method", "masked-patch", "--target", "downsampled", *TINY, "--json", "--out", "one"]) == 0
    message = json.loads(capsys.readouterr().out)
    assert message["run"] == "one"
    assert message["test"]["loss"] > 0
    assert 0 <= message["test"]["accuracy"] <= 1
    recipe = json.loads(Path("one/recipe.json").read_text())
    assert recipe["task"]["masking"]["target"] == "downsampled"


def test_a_folder_may_have_images_at_any_depth(tmp_path: Path, capsys: Capture) -> None:
    for number in range(30):
        write_image(tmp_path / "mine" / ("deep/er" if number % 2 else ".") / f"{number}.jpg", number)
    options = ["--method", "simmim", *TINY, "--set", "batch_size=3", "--image-size", "16", "--out", "one"]
    assert run(["pretrain", "mine", *options]) == 0
    assert "22 train, 4 validation, 4 test" in capsys.readouterr().err


def test_unlabelled_images_can_be_packed_first(tmp_path: Path, capsys: Capture) -> None:
    for number in range(30):
        write_image(tmp_path / "mine" / f"{number}.jpg", number)
    assert run(["data", "pack", "mine", "mine.pack", "--size", "16x16"]) == 2
    assert "no class folders" in capsys.readouterr().err
    assert run(["data", "pack", "mine", "mine.pack", "--size", "16x16", "--unlabelled"]) == 0
    assert run(["pretrain", "mine.pack", "--method", "simmim", *TINY, "--set", "batch_size=3", "--out", "one"]) == 0
    assert "24 train, 3 validation, 3 test" in capsys.readouterr().err
    assert run(["train", "mine.pack", "--out", "two"]) == 2  # there are no classes
    assert "Traceback" not in capsys.readouterr().err


def test_the_whole_recipe_is_printed(capsys: Capture) -> None:
    assert run(["pretrain", PANES, "--method", "mae", "--model", "B/16", "--print-recipe"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["task"]["masking"]["decoder_width"] == 512
    assert printed["optim"]["betas"] == [0.9, 0.95]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pretrain", PANES, "--method", "ame"], "--method must be masked-patch, mae, simmim, got 'ame'"),
        (["pretrain", PANES, "--target", "mean-colour"], "mae predicts pixels"),
        (["pretrain", PANES, "--method", "masked-patch", "--target", "color"], "masking.target"),
        (["pretrain", PANES, "--model", "R50x1"], "a ResNet has none"),
        (["pretrain", "nowhere"], "there is no 'nowhere'"),
        (["train", PANES, "--recipe", "mae"], "try vitrail pretrain"),
        (["pretrain", PANES, "--set", "task.masking.mask_rati=0.5"], "mask_ratio"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], message: str, capsys: Capture) -> None:
    assert run(words) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed


def test_a_pretrained_model_without_classes_is_refused_by_evaluate_and_predict(capsys: Capture) -> None:
    assert run(["pretrain", PANES, "--method", "simmim", *TINY, "--out", "one", "--json"]) == 0
    capsys.readouterr()
    for words in (["evaluate", "one", PANES], ["predict", "one", "nothing.jpg"], ["robustness", "one", PANES]):
        assert run(words) == 2
        printed = capsys.readouterr().err
        assert "vitrail finetune" in printed, words
        assert "Traceback" not in printed
