"""A studio without a model trains a default one, once."""

import os
import signal
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

import vitrail
from vitrail.data.sources.source import Progress
from vitrail.errors import VitrailError
from vitrail.studio.first import SETTINGS, beginning
from vitrail.train.past import steps
from vitrail.train.run import Run

QUICK = (
    *SETTINGS,
    "model.depth=1",
    "model.width=8",
    "model.heads=2",
    "model.mlp=8",
    "batch=8",
    "schedule.warmup=0",
    "keep=100000",
)


def quietly() -> AbstractContextManager[Progress]:
    return nullcontext(lambda what, done, total: None)


def test_named_models_are_shown_and_nothing_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    with beginning(["runs/mine"], lambda words: None, quietly) as sources:
        assert sources == ["runs/mine"]
    assert not list(tmp_path.iterdir())


def test_the_default_model_is_shown_while_it_trains_and_resumed_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said: list[str] = []
    with beginning([], said.append, quietly, (*QUICK, "steps=100000", "checkpoint=5", "evaluate=50000")) as (source,):
        run = Run(Path(source))
        assert run.folder.is_relative_to(tmp_path)
        assert steps(run)
        assert vitrail.model_at(source, steps(run)[-1]).config.classes == 10
    assert run.result() is None  # it was stopped, and with it its process
    last = steps(run)[-1]
    with beginning([], said.append, quietly, (*QUICK, "steps=100000", "checkpoint=5", "evaluate=50000")):
        assert steps(run)[-1] >= last
    assert len(said) == 2
    run.finish({"steps": 1})
    with beginning([], said.append, quietly) as sources:  # it is finished, so nothing is started
        assert sources == [str(run.folder)]
    assert len(said) == 2


def test_a_failed_training_reports_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    with (
        pytest.raises(VitrailError, match="could not be trained: vitrail: no field is named"),
        beginning([], lambda words: None, quietly, ("model.colour=red",)),
    ):
        raise AssertionError


def test_a_killed_training_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    import subprocess

    start = subprocess.Popen

    def killed(*arguments: object, **options: object) -> "subprocess.Popen[bytes]":
        child: subprocess.Popen[bytes] = start(*arguments, **options)  # type: ignore[call-overload]
        os.kill(child.pid, signal.SIGKILL)
        return child

    monkeypatch.setattr("vitrail.studio.first.subprocess.Popen", killed)
    with pytest.raises(VitrailError, match="ended with -9"), beginning([], lambda words: None, quietly):
        raise AssertionError
