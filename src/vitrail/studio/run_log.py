"""A run for the page: its log, complete or as a stream while it trains, and whether a process is training it."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np

from vitrail.config import to_dict
from vitrail.training.load_checkpoint import checkpoint_steps
from vitrail.training.run import Run
from vitrail.training.run_log import LogTail, is_evaluation, parse_rows, parse_step

MAX_LOG_ROWS = 2000  # log rows in one response
POLL_SECONDS, KEEP_ALIVE_SECONDS = 0.5, 10.0  # seconds between two polls, and until a keep-alive event
ACTIVE_LOG_SECONDS = 20.0  # seconds after a write during which a log counts as growing
NON_FINITE = ("nan", "inf", "-inf")  # how the log writes NaN and Inf, which JSON does not have


def run_summary(run: Run) -> dict[str, Any]:
    """Return a run without its images as plain JSON; ``total_steps`` is the length of its schedule."""
    recipe, result = run.recipe(), run.result()
    return {
        "name": recipe.name,
        "folder_name": run.folder.name,
        "recipe": to_dict(recipe),
        "dataset": recipe.data,
        "total_steps": recipe.steps,
        "result": None if result is None else _public_result(run, result),
        "training": is_training(run),
        "checkpoint_steps": checkpoint_steps(run),
        "log_rows": read_log_rows(run),
    }


def read_log_rows(run: Run, after: int = -1) -> list[dict[str, Any]]:
    """Return the log rows after a step, thinned if there are many; the first, the last and all evaluations stay."""
    return _to_json_rows(thin_log(_lines_after(LogTail(run.log_path), after)))


def last_logged_step(run: Run) -> int:
    """Return the last step in the log."""
    return max((step for text in LogTail(run.log_path).read_new_lines() if (step := parse_step(text)) is not None), default=0)


async def stream_events(
    run: Run, after: int, stop: Callable[[], bool], interval: float = POLL_SECONDS
) -> AsyncIterator[tuple[str, dict[str, Any] | list[int] | bool | None]]:
    """Yield events: ``log_row`` for each row after that step, also future ones; ``checkpoint_steps`` and ``training`` (whether
    a process trains the run) at first and on every change; in the end ``finished`` with the result. ``""`` is a keep-alive.

    The evaluation of a step follows the step's own row, so that of step ``after`` is included: it may have been missed.
    If a run resumes from a checkpoint, rows are repeated, identical for a step.
    """
    tail, checkpoints, last_event = LogTail(run.log_path), list[int](), time.monotonic()
    was_training: bool | None = None
    while not stop():
        result = await asyncio.to_thread(run.result)  # read before the log, so that no row comes after the end
        events: list[tuple[str, Any]] = [
            ("log_row", row) for row in _to_json_rows(await asyncio.to_thread(_lines_after, tail, after))
        ]
        if (current := checkpoint_steps(run)) != checkpoints:
            checkpoints = current
            events.append(("checkpoint_steps", current))
        if result is None and (active := await asyncio.to_thread(is_training, run)) != was_training:
            was_training = active
            events.append(("training", active))
        if result is not None:
            events.append(("finished", _public_result(run, result)))
        if not events and time.monotonic() - last_event >= KEEP_ALIVE_SECONDS:
            events.append(("", None))
        for event in events:
            last_event = time.monotonic()
            yield event
        if result is not None:
            return
        await asyncio.sleep(interval)


def is_training(run: Run) -> bool:
    """Return whether a process is training the run.

    Its lock is looked up in the system's list of locks: trying it would hold it for a moment, in which a starting trainer
    would be refused. The list misses locks of other machines and containers, and not every system has one, so a log that has
    just grown counts too.
    """
    if run.result() is not None:
        return False
    return _is_locked(run) or _log_has_grown(run)


def thin_log(lines: list[bytes], max_lines: int = MAX_LOG_ROWS) -> list[bytes]:
    """Thin evenly, but keep the first, the last and the evaluations, unless those alone are too many."""
    if len(lines) <= max_lines:
        return lines
    indices = sorted({0, len(lines) - 1} | {index for index, text in enumerate(lines) if is_evaluation(text)})
    if len(indices) >= max_lines:
        return [lines[index] for index in _evenly_spaced(indices, max_lines)]
    others = sorted(set(range(len(lines))) - set(indices))
    return [lines[index] for index in sorted({*indices, *_evenly_spaced(others, max_lines - len(indices))})]


def to_json_value(value: Any) -> Any:
    """Convert to JSON that a browser reads: NaN and Inf become null."""
    if isinstance(value, dict):
        return {name: to_json_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [to_json_value(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return None if value in NON_FINITE else value


def _lines_after(tail: LogTail, after: int) -> list[bytes]:
    return [text for text in tail.read_new_lines() if (step := parse_step(text)) is not None and _is_after(text, step, after)]


def _is_after(text: bytes, step: int, after: int) -> bool:
    return step > after or (step == after and is_evaluation(text))


def _to_json_rows(lines: list[bytes]) -> list[dict[str, Any]]:
    return [to_json_value(row) for row in parse_rows(lines)]


def _public_result(run: Run, result: dict[str, Any]) -> dict[str, Any]:
    """Return the result without the path on this machine."""
    public: dict[str, Any] = to_json_value({**result, "run": run.folder.name})
    return public


def _evenly_spaced(numbers: list[int], count: int) -> list[int]:
    return [numbers[index] for index in np.linspace(0, len(numbers) - 1, count).astype(np.int64)]


def _is_locked(run: Run) -> bool:
    """Return whether the lock file is locked, by inode only: on some file systems the device numbers differ."""
    try:
        inode = str((run.folder / ".lock").stat().st_ino)
        with open("/proc/locks") as file:
            locks = [line.split() for line in file]
    except OSError:
        return False
    return any(len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode for fields in locks)


def _log_has_grown(run: Run) -> bool:
    try:
        return time.time() - run.log_path.stat().st_mtime < ACTIVE_LOG_SECONDS
    except OSError:
        return False
