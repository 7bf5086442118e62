"""The log of a run, complete or as a stream while it trains, and whether a process is training it."""

import asyncio
import json
import math
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.config import to_plain
from vitrail.train.past import steps
from vitrail.train.run import Run

LINES = 2000  # log rows in one response
POLL, QUIET = 0.5, 10.0  # seconds between two polls, and until a keep-alive event
FRESH = 20.0  # seconds after a write during which a log counts as growing
ENDLESS = ("nan", "inf", "-inf")  # how the log writes NaN and Inf, which JSON does not have


def told(run: Run) -> dict[str, Any]:
    """Return a run without its images as plain JSON; ``total_steps`` is the length of its schedule."""
    recipe, result = run.recipe(), run.result()
    return {
        "name": recipe.name,
        "folder_name": run.folder.name,
        "recipe": to_plain(recipe),
        "dataset": recipe.data,
        "total_steps": recipe.steps,
        "result": None if result is None else _result(run, result),
        "training": training(run),
        "checkpoint_steps": steps(run),
        "log_rows": lines(run),
    }


def lines(run: Run, after: int = -1) -> list[dict[str, Any]]:
    """Return the log rows after a step, thinned if there are many; the first, the last and all evaluations stay."""
    return _read(thinned(_after(Tail(run), after)))


def steps_done(run: Run) -> int:
    """Return the last step in the log."""
    return max((at for text in Tail(run).new() if (at := _step(text)) is not None), default=0)


async def follow(
    run: Run, after: int, stop: Callable[[], bool], every: float = POLL
) -> AsyncIterator[tuple[str, dict[str, Any] | list[int] | bool | None]]:
    """Yield events: ``log_row`` for each row after that step, also future ones; ``checkpoint_steps`` and ``training`` (whether
    a process trains the run) at first and on every change; in the end ``finished`` with the result. ``""`` is a keep-alive.

    The evaluation of a step follows the step's own row, so that of step ``after`` is included: it may have been missed.
    If a run resumes from a checkpoint, rows are repeated, identical for a step.
    """
    tail, known, said = Tail(run), list[int](), time.monotonic()
    learning: bool | None = None
    while not stop():
        result = await asyncio.to_thread(run.result)  # read before the log, so that no row comes after the end
        news: list[tuple[str, Any]] = [("log_row", line) for line in _read(await asyncio.to_thread(_after, tail, after))]
        if (now := steps(run)) != known:
            known = now
            news.append(("checkpoint_steps", now))
        if result is None and (at_work := await asyncio.to_thread(training, run)) != learning:
            learning = at_work
            news.append(("training", at_work))
        if result is not None:
            news.append(("finished", _result(run, result)))
        if not news and time.monotonic() - said >= QUIET:
            news.append(("", None))
        for each in news:
            said = time.monotonic()
            yield each
        if result is not None:
            return
        await asyncio.sleep(every)


def training(run: Run) -> bool:
    """Return whether a process is training the run.

    Its lock is looked up in the system's list of locks: trying it would hold it for a moment, in which a starting trainer
    would be refused. The list misses locks of other machines and containers, and not every system has one, so a log that has
    just grown counts too.
    """
    if run.result() is not None:
        return False
    return _locked(run) or _grown(run)


@dataclass
class Tail:
    """Tail of a log: complete lines added since the last read."""

    run: Run
    offset: int = 0
    inode: int | None = None

    def new(self) -> list[bytes]:
        """Return the new lines; all again if the log was replaced or truncated. An incomplete line waits for its end."""
        try:
            with open(self.run.folder / "log.jsonl", "rb") as file:
                now = os.fstat(file.fileno())
                if now.st_ino != self.inode or now.st_size < self.offset:
                    self.offset, self.inode = 0, now.st_ino
                if now.st_size == self.offset:
                    return []
                file.seek(self.offset)
                whole, end, _ = file.read(now.st_size - self.offset).rpartition(b"\n")
        except FileNotFoundError:  # not started yet
            return []
        self.offset += len(whole) + len(end)
        return whole.split(b"\n") if end else []


def thinned(found: list[bytes], most: int = LINES) -> list[bytes]:
    """Thin evenly, but keep the first, the last and the evaluations, unless those alone are too many."""
    if len(found) <= most:
        return found
    kept = sorted({0, len(found) - 1} | {number for number, text in enumerate(found) if _evaluation(text)})
    if len(kept) >= most:
        return [found[number] for number in _spread(kept, most)]
    others = sorted(set(range(len(found))) - set(kept))
    return [found[number] for number in sorted({*kept, *_spread(others, most - len(kept))})]


def plain(value: Any) -> Any:
    """Convert to JSON that a browser reads: NaN and Inf become null."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return None if value in ENDLESS else value


def _after(tail: Tail, after: int) -> list[bytes]:
    return [text for text in tail.new() if (at := _step(text)) is not None and _comes(text, at, after)]


def _comes(text: bytes, step: int, after: int) -> bool:
    return step > after or (step == after and _evaluation(text))


def _evaluation(text: bytes) -> bool:
    return b'"validation"' in text


def _step(text: bytes) -> int | None:
    """Return the step of a line without parsing all of it, since there may be very many."""
    head, _, rest = text.partition(b'"step": ')
    number = rest[:20].partition(b",")[0].rstrip(b"} ")
    return int(number) if head.strip() == b"{" and number.isdigit() else None


def _read(found: list[bytes]) -> list[dict[str, Any]]:
    """Parse lines, skipping one that was cut off by the end of a process."""
    rows = []
    for text in found:
        try:
            rows.append(plain(json.loads(text)))
        except ValueError:
            continue
    return [row for row in rows if isinstance(row, dict)]


def _result(run: Run, result: dict[str, Any]) -> dict[str, Any]:
    """Return the result without the path on this machine."""
    found: dict[str, Any] = plain({**result, "run": run.folder.name})
    return found


def _spread(numbers: list[int], most: int) -> list[int]:
    return [numbers[at] for at in np.linspace(0, len(numbers) - 1, most).astype(np.int64)]


def _locked(run: Run) -> bool:
    """Return whether the lock file is locked, by inode only: on some file systems the device numbers differ."""
    try:
        inode = str((run.folder / ".lock").stat().st_ino)
        with open("/proc/locks") as file:
            held = [line.split() for line in file]
    except OSError:
        return False
    return any(len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode for words in held)


def _grown(run: Run) -> bool:
    try:
        return time.time() - (run.folder / "log.jsonl").stat().st_mtime < FRESH
    except OSError:
        return False
