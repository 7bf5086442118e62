"""What a command says about a run: one memory estimate, what the targets are, and options as they are typed."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.small_run import recipe
from vitrail.cli.console import format_bytes
from vitrail.cli.main import run
from vitrail.cli.run_recipe import typed_options
from vitrail.cli.training_progress import _targets_text, format_score
from vitrail.recipes.context import RecipeContext
from vitrail.recipes.registry import get_recipe
from vitrail.recipes.task_config import Classification

Capture = pytest.CaptureFixture[str]


def test_the_memory_of_a_run_is_the_one_that_plan_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    small = [f"--set={change}" for change in ("model.depth=1", "model.width=24", "model.mlp=24", "steps=1", "batch_size=8")]
    assert run(["train", "panes:train_size=40,size=16", *small, "--threads", "1", "--workers", "0", "--out", "run"]) == 0
    printed = capsys.readouterr().err
    assert run(["plan", "run", "--gpus-per-node", "1", "--json"]) == 0
    total = json.loads(capsys.readouterr().out)["strategies"]["single"]["total"]
    assert f"about {format_bytes(total)} of memory to train" in printed
    assert "; 10 classes" in printed


def test_only_a_self_supervised_run_is_without_labels() -> None:
    numbers: Any = SimpleNamespace(
        task=SimpleNamespace(labelled=False, has_targets=True, has_masks=False), model=SimpleNamespace(classes=1)
    )
    assert _targets_text(numbers, 0) == "1 output"
    assert _targets_text(replace(recipe(), task=Classification()), 10) == "10 classes"
    assert _targets_text(get_recipe("mae", RecipeContext()), 10) == "without labels"


@pytest.mark.parametrize(
    ("of_python", "of_the_command"),
    [
        ("epochs must be above 0, got 0; try epochs=10", "--epochs must be above 0, got 0; try --epochs 10"),
        ("lr and settings['optim.lr'] set the same field", "--lr and --set optim.lr set the same field"),
        ("compile and settings['compile'] set the same field", "--compile and --set compile set the same field"),
        ("start a new run with recipe_from=runs/x", "start a new run with --recipe-from runs/x"),
        ("optim.lr must be above 0, got 0; try optim.lr=0.001", "optim.lr must be above 0, got 0; try optim.lr=0.001"),
        ("the recipe has a model; try muon_lr=1 and model.depth=2", "the recipe has a model; try muon_lr=1 and model.depth=2"),
        ("compile=true does not work here; use compile=false", "compile=true does not work here; use compile=false"),
    ],
)
def test_an_option_is_named_as_it_is_typed(of_python: str, of_the_command: str) -> None:
    assert typed_options(of_python) == of_the_command


def test_a_score_that_json_has_as_text_is_printed() -> None:
    assert [format_score(value, False) for value in (0.5, "nan", "inf")] == ["0.5000", "nan", "inf"]
    assert [format_score(value, True) for value in (0.5, "nan")] == ["50.00%", "–"]  # such as the IoU of an absent class


@pytest.mark.parametrize("command", ["finetune", "pretrain"])
def test_the_help_says_what_is_required_without_resume(command: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert run([command, "--help"]) == 0
    printed: Any = " ".join(capsys.readouterr().out.split())
    assert printed.count("required unless --resume is given.") == (2 if command == "finetune" else 1)
    assert "with changed options it continues in a new folder." in printed
