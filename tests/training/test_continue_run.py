"""A run that is extended is the longer run; one that is altered says what it came from; the run it continues stays as it is."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import quick_first
from tests.training.small_run import recipe, write_noise_images
from tests.training.test_loop import RaisesAt, same
from tests.training.test_pretrain import MASKING, ssl_recipe
from vitrail.cli.main import run
from vitrail.errors import VitrailError
from vitrail.recipes.recipe import Recipe, Schedule
from vitrail.runs import run_prepared
from vitrail.training.callbacks import Callback
from vitrail.training.continue_run import prepare_resumption
from vitrail.training.prepare import RecipeOptions
from vitrail.training.run import Run
from vitrail.training.trained_run import TrainedRun
from vitrail.training.trainer import Hardware, fit

CONSTANT = Schedule("constant", warmup_steps=3)  # the rate of a step does not depend on how many follow


def constant(**changes: object) -> Recipe:
    return recipe(schedule=CONSTANT, **changes)


def train(folder: Path, settings: Recipe, *callbacks: Callback) -> TrainedRun:
    return fit(settings, folder, hardware=Hardware(workers=0), callbacks=callbacks)


def resume(source: Path, *overrides: str, out: Path | None = None, callbacks: tuple[Callback, ...] = ()) -> TrainedRun:
    prepared = prepare_resumption(Run(source), RecipeOptions(overrides), out)
    return run_prepared(prepared, hardware=Hardware(workers=0), callbacks=callbacks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``short`` with 12 steps and ``long`` with 16 of the same recipe."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "short", constant())
    train(folder / "long", constant(steps=16))
    return folder


@pytest.fixture
def short(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder / "short", tmp_path / "short"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_extended_run_is_the_longer_run_bit_for_bit(short: Path, folder: Path) -> None:
    before = contents(short)
    extended = resume(short, "steps=16")
    assert extended.folder == short.with_name("short-2")
    assert same(extended.folder, folder / "long")
    assert extended.metrics == (Run(folder / "long").result() or {})["test"]
    assert contents(short) == before


def test_an_interrupted_run_can_be_extended_too(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broke"):
        train(tmp_path / "run", constant(), RaisesAt(8, OSError("broke")))
    extended = resume(tmp_path / "run", "steps=16", out=tmp_path / "extended")
    assert same(extended.folder, folder / "long")
    assert extended.result["continued_from"]["step"] == 6


def test_an_extension_that_is_interrupted_is_resumed_in_its_own_folder(short: Path, folder: Path) -> None:
    with pytest.raises(OSError, match="broke"):
        resume(short, "steps=16", callbacks=(RaisesAt(14, OSError("broke")),))
    resumed = resume(short.with_name("short-2"))
    assert resumed.folder == short.with_name("short-2")
    assert same(resumed.folder, folder / "long")
    assert resumed.result["continued_from"]["run"] == str(short)


def test_an_altered_run_records_what_it_came_from_and_what_was_changed(short: Path, folder: Path) -> None:
    altered = resume(short, "steps=16", "optim.lr=0.0004", "model.dropout=0.3")
    changes = ["model.dropout was 0.1, is 0.3", "steps was 12, is 16", "optim.lr was 0.001, is 0.0004"]
    assert altered.result["continued_from"] == {"run": str(short), "step": 12, "changes": changes}
    assert "continued from step 12 of" in altered.report.read_text()
    assert altered.history[:15] == Run(short).log_rows()
    assert altered.history[15]["lr"] == 0.0004
    assert altered.history[15]["loss"] != Run(folder / "long").log_rows()[15]["loss"]


@pytest.mark.parametrize("method", quick_first(MASKING))
def test_a_self_supervised_run_is_extended_with_its_decoder(method: str, tmp_path: Path) -> None:
    short, long = (ssl_recipe(method, schedule=CONSTANT, steps=steps, eval_every=2) for steps in (4, 6))
    train(tmp_path / "short", short)
    train(tmp_path / "long", long)
    extended = resume(tmp_path / "short", "steps=6")
    assert same(extended.folder, tmp_path / "long")
    assert list(extended.run.load_reconstructions()) == list(Run(tmp_path / "long").load_reconstructions())


def test_the_same_images_may_have_moved(tmp_path: Path) -> None:
    write_noise_images(tmp_path / "images", classes=10, each=6)
    settings: dict[str, Any] = {"steps": 3, "batch_size": 8, "eval_every": 3}
    train(tmp_path / "run", constant(data=str(tmp_path / "images"), **settings))
    (tmp_path / "images").rename(tmp_path / "moved")
    moved = resume(tmp_path / "run", f"data={tmp_path / 'moved'}", "steps=5")
    assert [row["step"] for row in moved.history if "loss" in row] == [1, 2, 3, 4, 5]
    with pytest.raises(VitrailError, match="was started on other images or labels"):  # images of test would be trained on
        resume(tmp_path / "run", f"data={tmp_path / 'moved'}", "steps=5", "test_fraction=0.3")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["steps=5"], "short is at step 12, so steps must be above, got 5; try steps=24"),
        (["optim.lr=0.1"], "short is at step 12, so steps must be above, got 12; try steps=24"),
        (["steps=16", "model.depth=3"], "the checkpoint is of another model: ema.blocks.2.attention.out.bias is missing"),
        (["steps=16", "model.mlp=40"], "the checkpoint is of another model: ema.blocks.0.mlp.down.weight is missing, or has"),
        (["steps=16", "ema_decay=none"], "cannot be continued with steps was 12, is 16; ema_decay was 0.9, is None: the"),
        (["steps=16", "optim.name=sgd"], "which this recipe does not use; start a new run with recipe_from="),
        (["steps=16", "data=panes:train_size=100,size=16"], "was started on other images or labels"),
        (["steps=16", "model.classes=9"], "model.classes must be 10"),
        (["stepps=16"], "no field is named 'stepps'; did you mean 'steps'?"),
    ],
)
def test_what_cannot_be_continued_is_one_sentence_and_leaves_nothing(overrides: list[str], sentence: str, short: Path) -> None:
    with pytest.raises(VitrailError) as caught:
        resume(short, *overrides)
    assert sentence in str(caught.value)
    assert list(short.parent.iterdir()) == [short]


def test_a_run_is_never_overwritten_and_needs_a_checkpoint(short: Path, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="short exists; name another folder, or continue that one with resume="):
        resume(short, "steps=16", out=short)
    shutil.rmtree(short / "checkpoints")
    with pytest.raises(VitrailError, match="has no checkpoint to continue from; start a new run with recipe_from="):
        resume(short, "steps=16")
    assert list(tmp_path.iterdir()) == [short]


def test_a_run_with_a_loss_of_the_users_own_is_not_continued_without_it(tmp_path: Path) -> None:
    def half(outputs: Any, targets: Any) -> Any:
        return outputs.square().mean() / 2

    fit(constant(steps=3), tmp_path / "run", hardware=Hardware(workers=0), loss=half)
    with pytest.raises(VitrailError, match=r"was started with loss=test_a_run.*half, got none; resume it from Python"):
        resume(tmp_path / "run", "steps=6")


def test_the_command_extends_a_run(short: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--resume", str(short), "--set", "steps=16", "--out", str(short.with_name("new")), "--workers", "0"]
    assert run([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["continued_from"] == {"run": str(short), "step": 12, "changes": ["steps was 12, is 16"]}
    assert same(short.with_name("new"), folder / "long")
    assert run(command) == 2
    assert "new exists; name another folder, or continue that one with --resume" in capsys.readouterr().err
