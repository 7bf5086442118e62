"""``vitrail train`` from the command line: output, files, errors and resuming."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.tiers import quick_first
from vitrail.cli.main import run
from vitrail.weights.load import load

Capture = pytest.CaptureFixture[str]
TINY = [
    "panes:train_size=100,size=16",
    *(
        part
        for setting in (
            "model.width=12", "model.mlp=24", "model.depth=1", "model.patch=8", "steps=6", "batch_size=8", "eval_every=3",
            "checkpoint_every=2", "schedule.warmup_steps=1",
        )
        for part in ("--set", setting)
    ),
    "--workers",
    "0",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_a_summary_then_a_table_a_model_and_a_report(tmp_path: Path, capsys: Capture) -> None:
    assert run(["train", *TINY]) == 0
    printed = capsys.readouterr()
    assert "recipe    small: 6 steps of 8 images" in printed.err
    assert "step 3: validation" in printed.err
    assert "test top1" in printed.out
    model = load(tmp_path / "runs" / "small" / "best")
    assert model.class_names is not None
    assert len(model.class_names) == 10
    page = (tmp_path / "runs" / "small" / "report.html").read_text()
    assert "<script" not in page
    assert "Confusion matrix" in page
    assert page.count("<svg") == 7
    shots = page.count('class="shots"')  # a misclassified image, with two saliency maps
    assert 0 < shots <= 6
    assert page.count('src="data:image/webp') == 1 + 3 * shots
    assert run(["train", *TINY, "--json"]) == 0
    assert (tmp_path / "runs" / "small-2").is_dir()  # a new run never overwrites the first


def test_json_is_one_object_and_recipe_from_reproduces_the_run(tmp_path: Path, capsys: Capture) -> None:
    assert run(["train", *TINY, "--json", "--out", "one"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert {"run", "test", "seconds", "images_per_second", "report"} <= set(first)
    assert run(["train", "--recipe-from", "one", "--json", "--out", "two", "--workers", "1"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert second["test"] == first["test"]
    assert (tmp_path / "one" / "log.jsonl").read_text() == (tmp_path / "two" / "log.jsonl").read_text()
    modified = (tmp_path / "one" / "report.html").stat().st_mtime_ns
    assert run(["train", *TINY, "--out", "one"]) == 0
    assert "is finished: nothing to do" in capsys.readouterr().err
    assert (tmp_path / "one" / "report.html").stat().st_mtime_ns == modified


@pytest.mark.parametrize("name", quick_first(["demo", "plain", "paper-imagenet", "resnet"], 2))
def test_print_recipe_prints_the_full_recipe_and_does_nothing(name: str, tmp_path: Path, capsys: Capture) -> None:
    assert run(["train", "--recipe", name, "--print-recipe", "--set", "optim.lr=0.5"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["name"], printed["optim"]["lr"]) == (name, 0.5)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--recipe", "dmeo"], "; did you mean 'demo'?"),
        (["--set", "optim.lrr=1"], "no field is named 'optim.lrr'; did you mean 'optim.lr'"),
        (["nowhere"], "there is no 'nowhere'"),
        (["--device", "warp", *TINY], "--device must be auto, cpu, cuda, cuda:N or mps, got 'warp'; try auto"),
        (["--recipe-from", "nothing.json"], "--recipe-from must be a run or its recipe.json"),
        (["--recipe-from", "."], "--recipe-from must be a run or its recipe.json"),
        (["--recipe-from", "bytes.json"], "bytes.json cannot be read"),
        (["--recipe-from", "other.json"], "other.json is not a recipe: no field is named 'stesp'"),
        (["--recipe-from", "other.json", "photos"], "--recipe-from sets the dataset, task, recipe, model and size"),
        (["--recipe-from", "other.json", "--recipe", "plain"], "--recipe-from sets the dataset, task, recipe, model and size"),
        (
            ["--recipe", "demo", "--model", "B/16"],
            "demo has its own model and takes no other, got --model B/16; try --recipe plain",
        ),
        (
            ["--recipe", "demo", "--image-size", "56"],
            "demo takes images at their native size, got --image-size 56x56; try --recipe small",
        ),
        (["--minutes", "2", "--print-recipe"], "--print-recipe runs nothing, and --minutes and --find-lr need measurements"),
        ([*TINY, "--minutes", "inf"], "--minutes must be above 0 and finite, got inf; try --minutes 5"),
        ([*TINY, "--set", "model.classes=7"], "model.classes must be 10"),
        (["--set", "steps=0"], "steps must be at least 1"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "bytes.json").write_bytes(b"\x89PNG")
    (tmp_path / "other.json").write_text('{"stesp": 3}')
    assert run(["train", *arguments]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert "Traceback" not in printed
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "code", "out"),
    [
        (signal.SIGTERM, 143, "runs/small"),
        (signal.SIGINT, 130, "run"),
        (signal.SIGHUP, 129, "run"),
    ],
)
def test_a_stopped_run_says_how_to_resume(number: int, code: int, out: str, tmp_path: Path) -> None:
    named = ["--out", out] if out == "run" else []
    command = [sys.executable, "-m", "vitrail", "train", *TINY, "--set", "steps=100000", *named]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def listening() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also if the tests run under nohup

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=listening) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "step 3: validation" in line:
                process.send_signal(number)
                break
        rest = process.stderr.read()
    assert process.returncode == code
    assert f"{'the same command' if named else f'vitrail train --resume {out}'} resumes from there" in rest
    assert "Traceback" not in rest
    assert any((tmp_path / out / "checkpoints").iterdir())


@pytest.mark.thorough
def test_a_run_continues_when_its_output_pipe_is_closed(tmp_path: Path) -> None:
    """The pipe of its messages is closed after the first one."""
    command = [sys.executable, "-m", "vitrail", "train", *TINY, "--out", "run"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.stderr.close()
    assert process.returncode == 0
    assert (tmp_path / "run" / "report.html").is_file()


def test_the_native_size_of_a_pack_is_used_only_if_all_images_have_it(tmp_path: Path, capsys: Capture) -> None:
    for number, side in enumerate((24, 24, 100, 120)):
        (tmp_path / "images" / f"{number % 2}").mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number % 2}" / f"{number}.png")
    assert run(["data", "pack", "images", "mixed.pack"]) == 0
    capsys.readouterr()
    assert run(["train", "mixed.pack", "--print-recipe"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["image"] == [96, 96]
