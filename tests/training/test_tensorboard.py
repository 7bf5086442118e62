"""TensorBoard events equal the log: every step once, however often the run was interrupted."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.small_run import recipe
from vitrail.cli.main import run
from vitrail.config import to_json
from vitrail.training.callbacks import Callback, CallbackList
from vitrail.training.run import Run
from vitrail.training.tensorboard import TensorBoardCallback
from vitrail.training.trainer import Hardware, fit

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def events(folder: Path) -> Any:
    """All events, as read by TensorBoard itself."""
    read = accumulator.EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    return read.Reload()


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    read = events(folder)
    return {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def logged(folder: Path) -> dict[str, list[tuple[int, Any]]]:
    by_tag: dict[str, list[tuple[int, Any]]] = {}
    for line in Run(folder).log_rows():
        group, metrics = ("validation", line["validation"]) if "validation" in line else ("train", line)
        for name in metrics.keys() - {"step"}:
            value = pytest.approx(metrics[name])  # TensorBoard stores float32
            by_tag.setdefault(f"{group}/{name}", []).append((line["step"], value))
    return by_tag


class RaisesAt(Callback):
    """Raises after the TensorBoard callback has handled the step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        if step == self.at:
            raise OSError("broke")


def train_until(folder: Path, fail_at: int) -> None:
    with TensorBoardCallback(folder) as board:
        fit(recipe(), folder, hardware=Hardware(workers=0), callbacks=[board, RaisesAt(fail_at)])


def test_events_are_the_log_and_the_recipe(tmp_path: Path) -> None:
    train_until(tmp_path, fail_at=99)
    events_by_tag = scalars(tmp_path)
    assert {"train/loss", "train/accuracy", "train/lr", "validation/top1"} <= events_by_tag.keys()
    assert events_by_tag == logged(tmp_path)
    (text,) = events(tmp_path).Tensors("recipe/text_summary")
    assert to_json(recipe()) in text.tensor_proto.string_val[0].decode()


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(2, id="before a checkpoint", marks=pytest.mark.thorough),
        pytest.param(3, id="in one"),
        pytest.param(4, id="after an evaluation", marks=pytest.mark.thorough),
        pytest.param(8, id="later", marks=pytest.mark.thorough),
    ],
)
def test_an_interrupted_run_has_every_step_once(at: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broke"):
        train_until(tmp_path, at)
    train_until(tmp_path, fail_at=99)
    assert scalars(tmp_path) == logged(tmp_path)
    assert [step for step, _ in scalars(tmp_path)["train/loss"]] == list(range(1, 13))
    assert len(events(tmp_path).Tensors("recipe/text_summary")) == 1


TRAIN = """
import os, signal, sys
from pathlib import Path
from vitrail.config import from_json
from vitrail.training.tensorboard import TensorBoardCallback
from vitrail.training.trainer import Hardware, fit
from vitrail.recipes.recipe import Recipe
from vitrail.training.callbacks import CallbackList, Callback
class Kills(Callback):
    def on_step(self, step, metrics):
        if step == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
with TensorBoardCallback(sys.argv[2]) as board:
    fit(from_json(Recipe, Path(sys.argv[1]).read_text()), sys.argv[2], hardware=Hardware(workers=0), callbacks=[board, Kills()])
"""


@pytest.mark.thorough
def test_a_run_that_was_killed_twice_has_every_step_once(tmp_path: Path) -> None:
    settings, folder = tmp_path / "settings.json", tmp_path / "run"
    settings.write_text(to_json(recipe()))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for at, code in ((5, -9), (11, -9), (99, 0)):
        command = [sys.executable, "-c", TRAIN, str(settings), str(folder), str(at)]
        assert subprocess.run(command, env=environment, check=False).returncode == code
    assert len(list((folder / "tensorboard").iterdir())) == 3
    assert scalars(folder) == logged(folder)
    assert [step for step, _ in scalars(folder)["train/loss"]] == list(range(1, 13))


def test_a_loss_that_is_nan_is_written_as_such(tmp_path: Path) -> None:
    with TensorBoardCallback(tmp_path) as board:
        board.on_start(recipe(), None, InitialState(), None)  # type: ignore[arg-type]
        board.on_step(1, {"loss": float("nan")})
    ((step, value),) = scalars(tmp_path)["train/loss"]
    assert step == 1
    assert value != value


class InitialState:
    step = 0


def test_a_callback_list_passes_every_event_to_all() -> None:
    received: list[tuple[str, object]] = []

    class Recorder(Callback):
        def __init__(self, name: str) -> None:
            self.name = name
            self.progress = (lambda *_: received.append((name, "progress"))) if name == "two" else None

        def on_step(self, step: int, metrics: dict[str, float]) -> None:
            received.append((self.name, step))

        def on_message(self, message: str) -> None:
            received.append((self.name, message))

    both = CallbackList([Recorder("one"), Recorder("two")])
    both.on_step(3, {})
    both.on_message("done")
    assert both.progress is not None
    both.progress("reading", 1, None)
    assert received == [("one", 3), ("two", 3), ("one", "done"), ("two", "done"), ("two", "progress")]


def test_the_option_writes_events_and_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ("steps=2", "schedule.warmup_steps=0", "model.width=24", "model.depth=1")
    changes = [word for each in settings for word in ("--set", each)]
    command = ["train", "panes:train_size=100,size=16", "--tensorboard", *changes]
    assert run([*command, "--out", "run"]) == 0
    assert scalars(tmp_path / "run") == logged(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert run([*command, "--out", "other"]) == 2
    assert "TensorBoard is not installed; try pip install 'vitrail[tensorboard]'" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
