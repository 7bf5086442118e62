"""The summary and the event stream of a run agree with its log, during training and afterwards."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.train.small_run import recipe
from vitrail.config import to_json, to_plain
from vitrail.errors import VitrailError
from vitrail.studio import history
from vitrail.studio.history import LINES, Tail, follow, lines, thinned, told, training
from vitrail.train.loop import Machine, fit
from vitrail.train.run import Run, locked

LONG = 240  # timeout in seconds, for a busy machine


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("runs") / "mine")
    fit(recipe(), run.folder, Machine(workers=1))
    return run


@pytest.fixture
def begun(tmp_path: Path) -> Run:
    """A run that has written its recipe and nothing else."""
    run = Run(tmp_path / "mine")
    run.folder.mkdir()
    run.begin(recipe())
    return run


def never() -> bool:
    return False


def heard(run: Run, after: int = -1, stop: Callable[[], bool] = never, act: Callable[[int], None] = lambda number: None) -> Any:
    """Return all events except ``training``; ``act`` is called after each."""

    async def listen() -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        async for event in follow(run, after, stop, every=0.01):
            if event[0] != "training":
                found.append(event)
                act(len(found))
        return found

    return asyncio.run(asyncio.wait_for(listen(), LONG))


def stops(run: Run, count: int, after: int = -1, act: Callable[[int], None] = lambda number: None) -> list[tuple[str, Any]]:
    """Return the first events of an unfinished run."""
    seen: list[int] = []

    def noted(number: int) -> None:
        seen.append(number)
        act(number)

    found: list[tuple[str, Any]] = heard(run, after, lambda: len(seen) >= count, noted)
    return found


def test_the_summary_of_a_run_agrees_with_its_files(finished: Run) -> None:
    found = told(finished)
    assert (found["name"], found["folder_name"], found["dataset"], found["total_steps"]) == ("tiny", "mine", recipe().data, 12)
    assert found["recipe"] == to_plain(recipe())
    assert found["log_rows"] == finished.lines()
    assert found["checkpoint_steps"] == [9, 12]
    assert found["result"] == {**(finished.result() or {}), "run": "mine"}
    assert not found["training"]
    assert str(finished.folder) not in json.dumps(found, allow_nan=False)


def test_a_run_without_a_log_has_a_summary(begun: Run) -> None:
    found = told(begun)
    assert (found["log_rows"], found["checkpoint_steps"], found["result"], found["training"]) == ([], [], None, False)
    with pytest.raises(VitrailError, match="is not a run"):
        told(Run(begun.folder / "other"))


def test_rows_after_a_step_include_the_evaluation_of_that_step(finished: Run) -> None:
    assert lines(finished) == finished.lines()
    after = lines(finished, 8)
    assert [line["step"] for line in after] == [8, 9, 10, 11, 12, 12]
    assert "validation" in after[0]
    assert [line["step"] for line in lines(finished, 9)] == [10, 11, 12, 12]


def test_a_long_log_is_thinned_except_its_ends_and_its_evaluations(begun: Run) -> None:
    for step in range(1, 6001):
        begun.log({"step": step, "loss": step / 7})
        if step % 50 == 0:
            begun.log({"step": step, "validation": {"loss": 1.0}})
    found = lines(begun)
    assert len(found) == LINES
    assert found[0] == {"step": 1, "loss": 1 / 7}
    assert found[-1] == {"step": 6000, "validation": {"loss": 1.0}}
    assert [line["step"] for line in found if "validation" in line] == list(range(50, 6001, 50))
    steps = [line["step"] for line in found]
    assert steps == sorted(steps)
    assert max(later - sooner for sooner, later in pairwise(steps)) <= 5  # evenly


def test_too_many_evaluations_are_thinned() -> None:
    texts = [b'{"step": %d, "validation": {}}' % step for step in range(5000)]
    found = thinned(texts)
    assert len(found) == LINES
    assert (found[0], found[-1]) == (texts[0], texts[-1])


def test_nan_and_inf_become_null(begun: Run) -> None:
    begun.log({"step": 1, "loss": "nan", "grad_norm": "inf", "lr": 0.5})  # as the loop writes them
    begun.log(
        {"step": 1, "validation": {"loss": float("nan"), "top1": 0.5}, "attention_stats": {"entropy": [1.0, float("inf")]}}
    )
    first, second = lines(begun)
    assert first == {"step": 1, "loss": None, "grad_norm": None, "lr": 0.5}
    assert second == {"step": 1, "validation": {"loss": None, "top1": 0.5}, "attention_stats": {"entropy": [1.0, None]}}
    json.dumps([first, second], allow_nan=False)


def test_invalid_lines_are_skipped(begun: Run) -> None:
    (begun.folder / "log.jsonl").write_text(
        '{"step": 1, "loss": 2}\n{"step": 2, "lo\n\nwhat\n[3]\n{"step": 3, "loss": 1}\n{"st'
    )
    assert [line["step"] for line in lines(begun)] == [1, 3]


def test_a_finished_run_is_streamed_at_once(finished: Run) -> None:
    events = heard(finished)
    assert [data for event, data in events if event == "log_row"] == finished.lines()
    assert [event for event, _ in events if event != "log_row"] == ["checkpoint_steps", "finished"]
    assert events[-1] == ("finished", told(finished)["result"])
    assert [data["step"] for event, data in heard(finished, after=12) if event == "log_row"] == [12]  # the evaluation


def test_the_events_during_training_are_the_final_log(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.folder.mkdir()
    process = [
        sys.executable,
        "-m",
        "vitrail",
        "train",
        "--recipe-from",
        str(tmp_path / "recipe.json"),
        "--out",
        str(run.folder),
    ]
    (tmp_path / "recipe.json").write_text(to_json(recipe()))
    with subprocess.Popen(process, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as begun:
        events = heard(run)
        assert begun.wait(LONG) == 0
    assert not training(run)
    assert [data for event, data in events if event == "log_row"] == run.lines()
    assert [data for event, data in events if event == "checkpoint_steps"][-1] == [9, 12]
    assert events[-1][0] == "finished"
    assert sum(event == "finished" for event, _ in events) == 1


def test_an_incomplete_line_waits_for_its_end(begun: Run) -> None:
    def act(number: int) -> None:
        with open(begun.folder / "log.jsonl", "a") as file:
            file.write('{"step": 2, "lo' if number == 1 else "")
        if number == 1:
            threading.Timer(0.1, end).start()

    def end() -> None:
        with open(begun.folder / "log.jsonl", "a") as file:
            file.write('ss": 3.5}\n')

    begun.log({"step": 1, "loss": 4.5})
    assert stops(begun, 2, act=act) == [("log_row", {"step": 1, "loss": 4.5}), ("log_row", {"step": 2, "loss": 3.5})]


def test_only_new_bytes_are_read_and_a_truncated_log_is_read_again(begun: Run) -> None:
    for step in range(1, 7):
        begun.log({"step": step, "loss": 1.0})
    tail = Tail(begun)
    assert len(tail.new()) == 6
    assert tail.new() == []
    begun.log({"step": 7, "loss": 1.0})
    assert tail.new() == [b'{"step": 7, "loss": 1.0}']
    begun.rewind(4)  # another file, a shorter one
    assert len(tail.new()) == 4
    begun.log({"step": 5, "loss": 1.0})
    assert len(tail.new()) == 1
    with open(begun.folder / "log.jsonl", "r+") as file:
        file.truncate(25)  # the same file
    assert tail.new() == [b'{"step": 1, "loss": 1.0}']


def test_after_a_truncation_the_rows_after_the_step_are_repeated(begun: Run) -> None:
    for step in range(1, 5):
        begun.log({"step": step, "loss": 1.0})

    def act(number: int) -> None:
        if number == 2:
            begun.rewind(3)
            begun.log({"step": 4, "loss": 2.0})

    found = stops(begun, 4, after=2, act=act)
    assert [(data["step"], data["loss"]) for _, data in found] == [(3, 1.0), (4, 1.0), (3, 1.0), (4, 2.0)]


def test_changed_checkpoints_are_an_event(begun: Run) -> None:
    def act(number: int) -> None:
        if number == 1:
            (begun.checkpoints / "step-6").mkdir(parents=True)
            shutil.rmtree(begun.checkpoints / "step-3")

    (begun.checkpoints / "step-3").mkdir(parents=True)
    assert stops(begun, 2, act=act) == [("checkpoint_steps", [3]), ("checkpoint_steps", [6])]


def test_a_quiet_stream_sends_keep_alives_and_stops_on_request(begun: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "QUIET", 0.02)
    assert stops(begun, 3) == [("", None)] * 3
    assert heard(begun, stop=lambda: True) == []


def test_a_run_is_training_while_a_process_holds_its_lock_and_checking_does_not_take_it(begun: Run) -> None:
    with locked(begun):
        assert training(begun)
    assert not training(begun)
    for _ in range(3):  # checking does not block a trainer
        assert not training(begun)
        with locked(begun):
            pass


def test_the_start_and_end_of_training_are_events(begun: Run) -> None:
    async def listen() -> list[bool]:
        found: list[bool] = []
        with locked(begun):
            async for kind, data in follow(begun, -1, lambda: len(found) >= 1, every=0.01):
                found.extend([bool(data)] if kind == "training" else [])
        async for kind, data in follow(begun, -1, lambda: len(found) >= 2, every=0.01):
            found.extend([bool(data)] if kind == "training" else [])
        return found

    assert asyncio.run(asyncio.wait_for(listen(), 60)) == [True, False]


def test_a_run_whose_log_has_just_grown_is_training_without_a_visible_lock(begun: Run) -> None:
    begun.log({"step": 1, "loss": 1.0})
    assert training(begun)
    long_ago = time.time() - 3600
    os.utime(begun.folder / "log.jsonl", (long_ago, long_ago))
    assert not training(begun)
