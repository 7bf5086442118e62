"""The processes of one run, started by ``torchrun``: who they are, how they meet, and what they agree upon.

Small numbers and decisions are agreed upon over gloo, so that all ranks take the same way through the loop. The first rank
alone writes and talks. A process on its own is a team of one, for which nothing here does anything.
"""

import atexit
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.models.device import place
from vitrail.train.memory import free_memory

TIMEOUT = "VITRAIL_TIMEOUT"  # seconds that a rank waits for the others
WAITS = 600
PAUSE = 0.02  # seconds between two looks
PATIENT = timedelta(days=7)  # for a rank that reads a million pictures while the others wait
PARENT_DEATH = 1  # Linux's PR_SET_PDEATHSIG
SILENCE = ("gloo", "Gloo", "Connection closed by peer", "Timed out waiting", "TCPStore")


class Lost(OSError):
    """Another process of the run has gone, or does not answer."""


@dataclass(frozen=True)
class Team:
    """The processes of a run, as one of them sees it."""

    rank: int = 0
    ranks: int = 1
    local: int = 0  # its number among those of its host
    beside: int = 1  # processes of its host, itself among them
    patient: Any = None  # a group whose members wait for each other as long as it takes
    aside: Any = None  # a group for what is written while the training goes on

    @property
    def first(self) -> bool:
        """The one that writes and talks."""
        return self.rank == 0

    def everyone(self, *values: float) -> list[list[float]]:
        """These numbers of every rank, the first rank's first."""
        if self.ranks == 1:
            return [list(values)]
        return self.rows(torch.tensor([values], dtype=torch.float64)).tolist()

    def sums(self, *values: float) -> list[float]:
        return [sum(column) for column in zip(*self.everyone(*values), strict=True)]

    def most(self, value: float) -> float:
        return max(row[0] for row in self.everyone(value))

    def least(self, value: float) -> float:
        return min(row[0] for row in self.everyone(value))

    def any(self, fact: bool) -> bool:
        return bool(self.most(float(fact)))

    def rows(self, rows: Tensor) -> Tensor:
        """Those of all ranks, one behind the other; a rank may have none."""
        if self.ranks == 1:
            return rows
        rows = rows.cpu().contiguous()
        counts = torch.zeros(self.ranks, dtype=torch.int64)
        counts[self.rank] = len(rows)
        dist.all_reduce(counts)
        longest = int(counts.max())
        padded = torch.cat([rows, rows.new_zeros(longest - len(rows), *rows.shape[1:])])
        found = [torch.empty_like(padded) for _ in range(self.ranks)]
        dist.all_gather(found, padded)
        return torch.cat([each[:count] for each, count in zip(found, counts.tolist(), strict=True)])

    def told(self, words: Callable[[], str]) -> str:
        """What the first rank says, which alone is asked."""
        return self.texts(words() if self.first else "")[0]

    def texts(self, words: str) -> list[str]:
        """What every rank says."""
        said = words.encode()
        lengths = [int(row[0]) for row in self.everyone(len(said))]
        together = bytes(self.rows(torch.tensor(list(said), dtype=torch.uint8)).tolist())
        ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
        return [together[end - length : end].decode() for end, length in zip(ends, lengths, strict=True)]

    def wait(self) -> None:
        """Until all are here, however long that takes."""
        if self.ranks > 1:
            dist.barrier(self.patient)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first rank of each host goes ahead; what it has downloaded or remembered is there for those behind it."""
        if self.local:
            self.wait()
        yield
        if not self.local:
            self.wait()

    def free(self, where: torch.device) -> int | None:
        """Bytes that this rank may ask for; those of a host share its memory."""
        if where.type == "cuda":
            return int(torch.cuda.mem_get_info(where)[0])
        free = free_memory() if where.type == "cpu" else None
        return None if free is None else free // self.beside


ALONE = Team()
_teams: list[Team] = []  # at most one: a process is in one team, however often it joins


@contextmanager
def joined() -> Iterator[Team]:
    """The team that ``torchrun`` says this process is of, which it stays in to its end."""
    rank, ranks = place()
    if ranks == 1:
        yield ALONE
        return
    try:
        if not _teams:
            _teams.append(_met(rank, ranks))
            atexit.register(_parted)
        yield _teams[0]
    except RuntimeError as error:
        if not silent(error):
            raise
        raise Lost(f"another process of the run has gone or does not answer ({reason(error)})") from None


def _met(rank: int, ranks: int) -> Team:
    wait = timedelta(seconds=_timeout())
    _end_with_parent()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        here = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        dist.init_process_group(backend, timeout=wait, **_meeting(rank, ranks, wait))
    except (ValueError, KeyError) as error:  # of the variables that torchrun sets
        raise VitrailError(f"WORLD_SIZE is {ranks}, and the processes cannot meet: {reason(error)}; use torchrun") from None
    groups = (dist.new_group(backend="gloo", timeout=each) for each in (PATIENT, wait))
    return Team(rank, ranks, *here, *groups)


def _parted() -> None:
    _teams.clear()
    with suppress(RuntimeError):
        dist.destroy_process_group()


def silent(error: BaseException) -> bool:
    """Whether it tells of another process that does not answer."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in SILENCE)
    )


def _meeting(rank: int, ranks: int, wait: timedelta) -> dict[str, Any]:
    """Where ranks find each other: nothing to say, or a part of the launcher's store that only this start uses.

    The launcher keeps its store when it starts processes again (as of torch 2.13), and there a rank's old address could be
    taken for its new one.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    store: Any = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=wait)  # type: ignore[attr-defined]
    word = _answered(store, rank, wait) if rank else _called(store, ranks, wait)
    return {"store": dist.PrefixStore(word, store), "rank": rank, "world_size": ranks}  # type: ignore[attr-defined]


def _called(store: Any, ranks: int, wait: timedelta) -> str:
    """The first rank calls out a word that nobody has heard before, and waits until each of the others has answered to it."""
    word, missing, end = uuid4().hex, set(range(1, ranks)), time.monotonic() + wait.total_seconds()
    store.set("vitrail/call", word)
    while missing:
        if time.monotonic() > end:
            raise Lost(f"rank {min(missing)} did not come within {wait.total_seconds():g} seconds ({TIMEOUT})")
        for other in tuple(missing):
            answer = store.get(f"vitrail/answer/{other}").decode() if store.check([f"vitrail/answer/{other}"]) else ""
            heard, _, theirs = answer.partition(" ")
            if heard == word:
                store.set(f"vitrail/{word}/{theirs}", "go")
                missing.discard(other)
        time.sleep(PAUSE)
    return word


def _answered(store: Any, rank: int, wait: timedelta) -> str:
    """The others answer with a word of their own, which only one who is there now can have heard and let in."""
    own, end = uuid4().hex, time.monotonic() + wait.total_seconds()
    while time.monotonic() < end:
        word = store.get("vitrail/call").decode()
        store.set(f"vitrail/answer/{rank}", f"{word} {own}")
        if store.check([f"vitrail/{word}/{own}"]):
            return word
        time.sleep(PAUSE)
    raise Lost(f"the first rank did not come within {wait.total_seconds():g} seconds ({TIMEOUT})")


def _timeout() -> float:
    text = os.environ.get(TIMEOUT, str(WAITS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise VitrailError(f"{TIMEOUT} must be seconds above 0, got {text!r}; try {TIMEOUT}={WAITS}")
    return seconds


def _end_with_parent() -> None:
    """Where the launcher is killed, its processes are asked to stop instead of running on unseen. Linux alone offers it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGTERM)


def reason(error: BaseException) -> str:
    """Its first line, which is the one that people read."""
    return str(error).strip().splitlines()[0][:200].rstrip(".")
