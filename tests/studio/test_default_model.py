"""A studio without a model trains a default one, once."""

import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

import vitrail
from vitrail.data.sources.dataset import Progress
from vitrail.errors import VitrailError
from vitrail.studio.default_model import DEFAULT_OVERRIDES, default_model
from vitrail.training.load_checkpoint import checkpoint_steps
from vitrail.training.run import Run, RunLocked, lock_run

QUICK_OVERRIDES = (
    *DEFAULT_OVERRIDES,
    "model.depth=1",
    "model.width=8",
    "model.heads=2",
    "model.mlp=8",
    "batch_size=8",
    "schedule.warmup_steps=0",
    "keep_checkpoints=100000",
)


def no_progress() -> AbstractContextManager[Progress]:
    return nullcontext(lambda what, done, total: None)


def test_named_models_are_shown_and_nothing_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    with default_model(["runs/mine"], lambda message: None, no_progress) as sources:
        assert sources == ["runs/mine"]
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_the_default_model_is_shown_while_it_trains_and_resumed_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    messages: list[str] = []
    with default_model(
        [], messages.append, no_progress, (*QUICK_OVERRIDES, "steps=100000", "checkpoint_every=5", "eval_every=50000")
    ) as (source,):
        run = Run(Path(source))
        assert run.folder.is_relative_to(tmp_path)
        assert checkpoint_steps(run)
        assert vitrail.load_checkpoint(source, checkpoint_steps(run)[-1]).config.classes == 10
    assert run.result() is None  # it was stopped, and with it its process
    last = checkpoint_steps(run)[-1]
    with default_model(
        [], messages.append, no_progress, (*QUICK_OVERRIDES, "steps=100000", "checkpoint_every=5", "eval_every=50000")
    ):
        assert checkpoint_steps(run)[-1] >= last
    assert len(messages) == 2
    run.save_result({"steps": 1})
    with default_model([], messages.append, no_progress) as sources:  # it is finished, so nothing is started
        assert sources == [str(run.folder)]
    assert len(messages) == 2


@pytest.mark.thorough
def test_a_failed_training_reports_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    with (
        pytest.raises(VitrailError, match="could not be trained: vitrail: no field is named"),
        default_model([], lambda message: None, no_progress, ("model.colour=red",)),
    ):
        raise AssertionError


def test_a_default_model_that_another_studio_trains_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    run = Run(tmp_path / "run")
    with lock_run(run), pytest.raises(RunLocked) as refusal, lock_run(run):
        raise AssertionError
    start, command = subprocess.Popen, [sys.executable, "-c", f"import sys; sys.exit({str(refusal.value)!r})"]
    monkeypatch.setattr("vitrail.studio.default_model.subprocess.Popen", lambda _, **options: start(command, **options))
    monkeypatch.setattr("vitrail.studio.default_model.FIRST_CHECKPOINT_TIMEOUT", 0.3)
    with pytest.raises(VitrailError, match="has no checkpoint yet"), default_model([], lambda message: None, no_progress):
        raise AssertionError


def test_a_killed_training_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    start = subprocess.Popen

    def killed(*arguments: object, **options: object) -> "subprocess.Popen[bytes]":
        child: subprocess.Popen[bytes] = start(*arguments, **options)  # type: ignore[call-overload]
        os.kill(child.pid, signal.SIGKILL)
        return child

    monkeypatch.setattr("vitrail.studio.default_model.subprocess.Popen", killed)
    with pytest.raises(VitrailError, match="ended with -9"), default_model([], lambda message: None, no_progress):
        raise AssertionError
