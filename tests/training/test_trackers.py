"""Trackers are told what the log says. Neither library is installed: small modules take their place and record the calls."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.training.small_run import recipe
from tests.training.test_loop import RaisesAt
from vitrail.cli.main import run
from vitrail.config import to_dict
from vitrail.training.run import Run
from vitrail.training.trackers import MlflowCallback, WandbCallback, open_trackers
from vitrail.training.trainer import Hardware, fit

Rows = list[tuple[int, dict[str, float]]]


class FakeWandb(ModuleType):
    """``wandb`` with what we call of it: a session per ``init``."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.sessions: list[Any] = []

    def init(self, **options: Any) -> Any:
        session = SimpleNamespace(
            id=options["id"] or f"id-{len(self.sessions)}", options=options, rows=[], summary={}, code=None
        )
        session.log = lambda metrics, step: session.rows.append((step, metrics))
        session.finish = lambda exit_code: setattr(session, "code", exit_code)
        self.sessions.append(session)
        return session


class FakeMlflow(ModuleType):
    """``mlflow`` with what we call of it, and its limits."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.rows: Rows = []
        self.params: dict[str, str] = {}
        self.calls: list[tuple[Any, ...]] = []

    def set_experiment(self, name: str) -> None:
        self.calls.append(("experiment", name))

    def start_run(self, run_id: str | None, run_name: str | None) -> Any:
        self.calls.append(("start", run_id, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "id-0"))

    def log_params(self, params: dict[str, str]) -> None:
        assert 0 < len(params) <= 100
        assert all(len(value) <= 500 for value in params.values())
        assert not params.keys() & self.params.keys()
        self.params |= params

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((step, metrics))

    def end_run(self, status: str) -> None:
        self.calls.append(("end", status))


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return fake


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return fake


def train(name: str, folder: Path, fail_at: int = 99) -> dict[str, Any]:
    with open_trackers([name], folder) as callbacks:
        return fit(
            recipe(), folder, hardware=Hardware(workers=0), callbacks=[*callbacks, RaisesAt(fail_at, OSError("broke"))]
        ).result


def logged(folder: Path) -> Rows:
    """The rows of the log, as a tracker gets them."""
    rows: Rows = []
    for row in Run(folder).log_rows():
        group, metrics = ("validation", row["validation"]) if "validation" in row else ("train", row)
        rows.append((row["step"], {f"{group}/{name}": metrics[name] for name in metrics if name != "step"}))
    return rows


def final(result: dict[str, Any]) -> dict[str, float]:
    return {f"test/{name}": value for name, value in result["test"].items()}


def test_weights_and_biases_gets_the_log_the_recipe_and_the_result(wandb: FakeWandb, tmp_path: Path) -> None:
    result = train("wandb", tmp_path / "run")
    (session,) = wandb.sessions
    assert session.rows == logged(tmp_path / "run")
    assert session.summary == final(result)
    assert session.code == 0
    options = {"project": "vitrail", "name": "run", "dir": str(tmp_path / "run"), "id": None, "resume": "allow"}
    assert session.options == {**options, "config": to_dict(recipe())}


def test_mlflow_gets_the_log_the_recipe_and_the_result(mlflow: FakeMlflow, tmp_path: Path) -> None:
    result = train("mlflow", tmp_path / "run")
    assert mlflow.rows == [*logged(tmp_path / "run"), (result["best"]["step"], final(result))]
    assert mlflow.calls == [("experiment", "vitrail"), ("start", None, "run"), ("end", "FINISHED")]
    assert mlflow.params["model.depth"] == "2"
    assert mlflow.params["task.kind"] == "classification"
    assert len(mlflow.params) > 100  # more than it takes at once


def test_a_resumed_run_goes_on_in_the_same_session(wandb: FakeWandb, mlflow: FakeMlflow, tmp_path: Path) -> None:
    for name in ("wandb", "mlflow"):
        with pytest.raises(OSError, match="broke"):
            train(name, tmp_path / name, fail_at=8)
        train(name, tmp_path / name)
        assert train(name, tmp_path / name) == Run(tmp_path / name).result()  # finished: starts no session
    first, second = wandb.sessions
    assert (first.code, second.code) == (1, 0)
    assert second.options["id"] == first.id
    assert second.rows == [row for row in logged(tmp_path / "wandb") if row[0] > 6]  # from the checkpoint on
    assert dict(first.rows[:6]) == dict(logged(tmp_path / "wandb")[:6])
    starts = [call[1:] for call in mlflow.calls if call[0] == "start"]
    assert starts == [(None, "mlflow"), ("id-0", None)]
    assert [call[1] for call in mlflow.calls if call[0] == "end"] == ["FAILED", "FINISHED"]


def test_the_trackers_environment_variables_name_the_project(
    wandb: FakeWandb, mlflow: FakeMlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "glass")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "glass")
    for tracker in (WandbCallback(tmp_path), MlflowCallback(tmp_path)):
        tracker.on_start(recipe(), None, None, None)  # type: ignore[arg-type]
    assert wandb.sessions[0].options["project"] == "glass"
    assert ("experiment", "glass") in mlflow.calls


@pytest.mark.parametrize(("name", "title"), [("wandb", "Weights & Biases"), ("mlflow", "MLflow")])
def test_a_missing_library_is_one_sentence_that_names_its_extra(
    name: str, title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, name, None)
    assert run(["train", "panes:train_size=100,size=16", f"--{name}", "--set", "steps=1", "--out", "run"]) == 2
    assert f"{title} is not installed; try pip install 'vitrail[{name}]', or read log.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
