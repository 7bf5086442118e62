"""What a run tells while it trains and afterwards: its log, whole or as it grows, and whether somebody is at work in it."""

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

LINES = 2000  # of a log that are told at once
POLL, QUIET = 0.5, 10.0  # seconds between two looks, and after which silence is told
FRESH = 20.0  # seconds for which a log that has grown counts as growing
ENDLESS = ("nan", "inf", "-inf")  # how a log writes what JSON has no number for


def told(run: Run) -> dict[str, Any]:
    """All of a run but its pictures, as plain JSON; ``total`` is the steps that it is to have."""
    recipe, result = run.recipe(), run.result()
    return {
        "name": recipe.name,
        "folder_name": run.folder.name,
        "recipe": to_plain(recipe),
        "data": recipe.data,
        "total": recipe.steps,
        "result": None if result is None else _result(run, result),
        "training": training(run),
        "steps": steps(run),
        "lines": lines(run),
    }


def lines(run: Run, after: int = -1) -> list[dict[str, Any]]:
    """Of the log what comes after a step, thinned where it is long; the first, the last and all evaluations stay."""
    return _read(thinned(_after(Tail(run), after)))


def steps_done(run: Run) -> int:
    """As far as the log has come."""
    return max((at for text in Tail(run).new() if (at := _step(text)) is not None), default=0)


async def follow(
    run: Run, after: int, stop: Callable[[], bool], every: float = POLL
) -> AsyncIterator[tuple[str, dict[str, Any] | list[int] | bool | None]]:
    """``line`` with each line of the log after that step, also those to come, ``steps`` with the checkpoints' and ``training``
    with whether somebody is at work, at first and whenever they change, and in the end ``done`` with the result. ``""`` and
    nothing where there was silence for a while.

    The evaluation of a step comes after the step's own line, so that of the very step is told too: it may have been missed.
    Where a run goes on from a checkpoint, lines come again, for a step the same ones.
    """
    tail, known, said = Tail(run), list[int](), time.monotonic()
    learning: bool | None = None
    while not stop():
        result = await asyncio.to_thread(run.result)  # before the log is looked at, so that nothing comes behind the end
        news: list[tuple[str, Any]] = [("line", line) for line in _read(await asyncio.to_thread(_after, tail, after))]
        if (now := steps(run)) != known:
            known = now
            news.append(("steps", now))
        if result is None and (at_work := await asyncio.to_thread(training, run)) != learning:
            learning = at_work
            news.append(("training", at_work))
        if result is not None:
            news.append(("done", _result(run, result)))
        if not news and time.monotonic() - said >= QUIET:
            news.append(("", None))
        for each in news:
            said = time.monotonic()
            yield each
        if result is not None:
            return
        await asyncio.sleep(every)


def training(run: Run) -> bool:
    """Whether somebody is at work in it.

    Its lock is looked up where the system lists all locks: to try it would take it for a moment, in which a trainer that
    begins would be turned away. The list has none that another machine or container holds, nor does every system have one,
    so a log that has just grown is a sign of life too.
    """
    if run.result() is not None:
        return False
    return _locked(run) or _grown(run)


@dataclass
class Tail:
    """The end of a log: what has been added since the last look, in whole lines."""

    run: Run
    offset: int = 0
    inode: int | None = None

    def new(self) -> list[bytes]:
        """All of it again where the log was replaced or has become shorter; a line without its end waits for it."""
        try:
            with open(self.run.folder / "log.jsonl", "rb") as file:
                now = os.fstat(file.fileno())
                if now.st_ino != self.inode or now.st_size < self.offset:
                    self.offset, self.inode = 0, now.st_ino
                if now.st_size == self.offset:
                    return []
                file.seek(self.offset)
                whole, end, _ = file.read(now.st_size - self.offset).rpartition(b"\n")
        except FileNotFoundError:  # not begun yet
            return []
        self.offset += len(whole) + len(end)
        return whole.split(b"\n") if end else []


def thinned(found: list[bytes], most: int = LINES) -> list[bytes]:
    """Evenly, but for the first, the last and the evaluations; where those alone are too many, they too."""
    if len(found) <= most:
        return found
    kept = sorted({0, len(found) - 1} | {number for number, text in enumerate(found) if _evaluation(text)})
    if len(kept) >= most:
        return [found[number] for number in _spread(kept, most)]
    others = sorted(set(range(len(found))) - set(kept))
    return [found[number] for number in sorted({*kept, *_spread(others, most - len(kept))})]


def plain(value: Any) -> Any:
    """As JSON that a browser reads: what is no number is null."""
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
    """Without reading all of a line, of which there may be very many."""
    head, _, rest = text.partition(b'"step": ')
    number = rest[:20].partition(b",")[0].rstrip(b"} ")
    return int(number) if head.strip() == b"{" and number.isdigit() else None


def _read(found: list[bytes]) -> list[dict[str, Any]]:
    """But for a line that was cut off by the end of a process."""
    rows = []
    for text in found:
        try:
            rows.append(plain(json.loads(text)))
        except ValueError:
            continue
    return [row for row in rows if isinstance(row, dict)]


def _result(run: Run, result: dict[str, Any]) -> dict[str, Any]:
    """Without the path on this machine."""
    found: dict[str, Any] = plain({**result, "run": run.folder.name})
    return found


def _spread(numbers: list[int], most: int) -> list[int]:
    return [numbers[at] for at in np.linspace(0, len(numbers) - 1, most).astype(np.int64)]


def _locked(run: Run) -> bool:
    """By inode alone: of some file systems the list names another device than a file does."""
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
