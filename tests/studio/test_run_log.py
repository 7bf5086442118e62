"""The summary and the event stream of a run agree with its log, during training and afterwards."""

import asyncio
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.training.small_run import recipe
from vitrail.config import to_dict
from vitrail.errors import VitrailError
from vitrail.studio import run_log
from vitrail.studio.run_log import MAX_LOG_ROWS, is_training, read_log_rows, run_summary, stream_events, thin_log
from vitrail.training.run import Run, lock_run
from vitrail.training.trainer import Hardware, fit

TIMEOUT = 240  # timeout in seconds, for a busy machine


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("runs") / "mine")
    fit(recipe(), run.folder, hardware=Hardware(workers=1))
    return run


@pytest.fixture
def started_run(tmp_path: Path) -> Run:
    """A run that has written its recipe and nothing else."""
    run = Run(tmp_path / "mine")
    run.folder.mkdir()
    run.record_recipe(recipe())
    return run


def never() -> bool:
    return False


def collect_events(
    run: Run, after: int = -1, stop: Callable[[], bool] = never, act: Callable[[int], None] = lambda number: None
) -> Any:
    """Return all events except ``training``; ``act`` is called after each."""

    async def listen() -> list[tuple[str, Any]]:
        events: list[tuple[str, Any]] = []
        async for event in stream_events(run, after, stop, interval=0.01):
            if event[0] != "training":
                events.append(event)
                act(len(events))
        return events

    return asyncio.run(asyncio.wait_for(listen(), TIMEOUT))


def first_events(
    run: Run, count: int, after: int = -1, act: Callable[[int], None] = lambda number: None
) -> list[tuple[str, Any]]:
    """Return the first events of an unfinished run."""
    numbers: list[int] = []

    def noted(number: int) -> None:
        numbers.append(number)
        act(number)

    events: list[tuple[str, Any]] = collect_events(run, after, lambda: len(numbers) >= count, noted)
    return events


def test_the_summary_of_a_run_agrees_with_its_files(finished_run: Run) -> None:
    result = run_summary(finished_run)
    assert (result["name"], result["folder_name"], result["dataset"], result["total_steps"]) == (
        "tiny",
        "mine",
        recipe().data,
        12,
    )
    assert result["recipe"] == to_dict(recipe())
    assert result["log_rows"] == finished_run.log_rows()
    assert result["checkpoint_steps"] == [9, 12]
    assert result["result"] == {**(finished_run.result() or {}), "run": "mine"}
    assert not result["training"]
    assert str(finished_run.folder) not in json.dumps(result, allow_nan=False)


def test_a_run_without_a_log_has_a_summary(started_run: Run) -> None:
    result = run_summary(started_run)
    assert (result["log_rows"], result["checkpoint_steps"], result["result"], result["training"]) == ([], [], None, False)
    with pytest.raises(VitrailError, match="is not a run"):
        run_summary(Run(started_run.folder / "other"))


def test_rows_after_a_step_include_the_evaluation_of_that_step(finished_run: Run) -> None:
    assert read_log_rows(finished_run) == finished_run.log_rows()
    after = read_log_rows(finished_run, 8)
    assert [line["step"] for line in after] == [8, 9, 10, 11, 12, 12]
    assert "validation" in after[0]
    assert [line["step"] for line in read_log_rows(finished_run, 9)] == [10, 11, 12, 12]


def test_a_long_log_is_thinned_except_its_ends_and_its_evaluations(started_run: Run) -> None:
    for step in range(1, 6001):
        started_run.log({"step": step, "loss": step / 7})
        if step % 50 == 0:
            started_run.log({"step": step, "validation": {"loss": 1.0}})
    result = read_log_rows(started_run)
    assert len(result) == MAX_LOG_ROWS
    assert result[0] == {"step": 1, "loss": 1 / 7}
    assert result[-1] == {"step": 6000, "validation": {"loss": 1.0}}
    assert [line["step"] for line in result if "validation" in line] == list(range(50, 6001, 50))
    steps = [line["step"] for line in result]
    assert steps == sorted(steps)
    assert max(later - sooner for sooner, later in pairwise(steps)) <= 5  # evenly


def test_too_many_evaluations_are_thinned() -> None:
    texts = [b'{"step": %d, "validation": {}}' % step for step in range(5000)]
    result = thin_log(texts)
    assert len(result) == MAX_LOG_ROWS
    assert (result[0], result[-1]) == (texts[0], texts[-1])


def test_nan_and_inf_become_null(started_run: Run) -> None:
    started_run.log({"step": 1, "loss": "nan", "grad_norm": "inf", "lr": 0.5})  # as the loop writes them
    started_run.log(
        {"step": 1, "validation": {"loss": float("nan"), "top1": 0.5}, "attention_stats": {"entropy": [1.0, float("inf")]}}
    )
    first, second = read_log_rows(started_run)
    assert first == {"step": 1, "loss": None, "grad_norm": None, "lr": 0.5}
    assert second == {"step": 1, "validation": {"loss": None, "top1": 0.5}, "attention_stats": {"entropy": [1.0, None]}}
    json.dumps([first, second], allow_nan=False)


def test_invalid_lines_are_skipped(started_run: Run) -> None:
    (started_run.folder / "log.jsonl").write_text(
        '{"step": 1, "loss": 2}\n{"step": 2, "lo\n\nwhat\n[3]\n{"step": 3, "loss": 1}\n{"st'
    )
    assert [line["step"] for line in read_log_rows(started_run)] == [1, 3]


def test_a_finished_run_is_streamed_at_once(finished_run: Run) -> None:
    events = collect_events(finished_run)
    assert [data for event, data in events if event == "log_row"] == finished_run.log_rows()
    assert [event for event, _ in events if event != "log_row"] == ["checkpoint_steps", "finished"]
    assert events[-1] == ("finished", run_summary(finished_run)["result"])
    assert [data["step"] for event, data in collect_events(finished_run, after=12) if event == "log_row"] == [
        12
    ]  # the evaluation


def test_the_events_during_training_are_the_final_log(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.folder.mkdir()
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(collect_events, run)
        fit(recipe(), run.folder, hardware=Hardware("cpu", 1, 0))
        events = stream.result(TIMEOUT)
    assert not is_training(run)
    assert [data for event, data in events if event == "log_row"] == run.log_rows()
    assert [data for event, data in events if event == "checkpoint_steps"][-1] == [9, 12]
    assert events[-1][0] == "finished"
    assert sum(event == "finished" for event, _ in events) == 1


def test_an_incomplete_line_waits_for_its_end(started_run: Run) -> None:
    def act(number: int) -> None:
        with open(started_run.folder / "log.jsonl", "a") as file:
            file.write('{"step": 2, "lo' if number == 1 else "")
        if number == 1:
            threading.Timer(0.1, end).start()

    def end() -> None:
        with open(started_run.folder / "log.jsonl", "a") as file:
            file.write('ss": 3.5}\n')

    started_run.log({"step": 1, "loss": 4.5})
    assert first_events(started_run, 2, act=act) == [
        ("log_row", {"step": 1, "loss": 4.5}),
        ("log_row", {"step": 2, "loss": 3.5}),
    ]


def test_after_a_truncation_the_rows_after_the_step_are_repeated(started_run: Run) -> None:
    for step in range(1, 5):
        started_run.log({"step": step, "loss": 1.0})

    def act(number: int) -> None:
        if number == 2:
            started_run.truncate_log(3)
            started_run.log({"step": 4, "loss": 2.0})

    result = first_events(started_run, 4, after=2, act=act)
    assert [(data["step"], data["loss"]) for _, data in result] == [(3, 1.0), (4, 1.0), (3, 1.0), (4, 2.0)]


def test_changed_checkpoints_are_an_event(started_run: Run) -> None:
    def act(number: int) -> None:
        if number == 1:
            (started_run.checkpoints / "step-6").mkdir(parents=True)
            shutil.rmtree(started_run.checkpoints / "step-3")

    (started_run.checkpoints / "step-3").mkdir(parents=True)
    assert first_events(started_run, 2, act=act) == [("checkpoint_steps", [3]), ("checkpoint_steps", [6])]


def test_a_quiet_stream_sends_keep_alives_and_stops_on_request(started_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "KEEP_ALIVE_SECONDS", 0.02)
    assert first_events(started_run, 3) == [("", None)] * 3
    assert collect_events(started_run, stop=lambda: True) == []


def test_a_run_is_training_while_a_process_holds_its_lock_and_checking_does_not_take_it(started_run: Run) -> None:
    with lock_run(started_run):
        assert is_training(started_run)
    assert not is_training(started_run)
    for _ in range(3):  # checking does not block a trainer
        assert not is_training(started_run)
        with lock_run(started_run):
            pass


def test_the_start_and_end_of_training_are_events(started_run: Run) -> None:
    async def listen() -> list[bool]:
        result: list[bool] = []
        with lock_run(started_run):
            async for kind, data in stream_events(started_run, -1, lambda: len(result) >= 1, interval=0.01):
                result.extend([bool(data)] if kind == "training" else [])
        async for kind, data in stream_events(started_run, -1, lambda: len(result) >= 2, interval=0.01):
            result.extend([bool(data)] if kind == "training" else [])
        return result

    assert asyncio.run(asyncio.wait_for(listen(), 60)) == [True, False]


def test_a_run_whose_log_has_just_grown_is_training_without_a_visible_lock(started_run: Run) -> None:
    started_run.log({"step": 1, "loss": 1.0})
    assert is_training(started_run)
    long_ago = time.time() - 3600
    os.utime(started_run.folder / "log.jsonl", (long_ago, long_ago))
    assert not is_training(started_run)
