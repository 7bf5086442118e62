"""The process group of a run that ``torchrun`` has started: ranks, rendezvous, and collectives of small values.

Numbers and decisions are exchanged over gloo, so that all ranks take the same branches. Rank 0 alone writes and prints. A
single process is a group of world size 1, for which nothing here does anything.
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

TIMEOUT = "VITRAIL_TIMEOUT"  # environment variable: seconds that a rank waits for the others
WAITS = 600
PAUSE = 0.02  # seconds between two polls of the store
PATIENT = timedelta(days=7)  # for a rank that reads a million images while the others wait
PARENT_DEATH = 1  # Linux's PR_SET_PDEATHSIG
SILENCE = ("gloo", "Gloo", "Connection closed by peer", "Timed out waiting", "TCPStore")


class Lost(OSError):
    """Another process of the run has exited or does not respond."""


@dataclass(frozen=True)
class Team:
    """The processes of a run, as seen from one of them."""

    rank: int = 0
    ranks: int = 1
    local: int = 0  # rank among the processes of its node
    beside: int = 1  # processes of its node
    patient: Any = None  # a process group without a practical timeout
    aside: Any = None  # a process group for checkpoints that are written during training

    @property
    def first(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def everyone(self, *values: float) -> list[list[float]]:
        """Gather these numbers of every rank, in the order of ranks."""
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
        """Concatenate the rows of all ranks; a rank may have none."""
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
        """Broadcast a string of rank 0, the only one that computes it."""
        return self.texts(words() if self.first else "")[0]

    def texts(self, words: str) -> list[str]:
        """Gather a string of every rank."""
        said = words.encode()
        lengths = [int(row[0]) for row in self.everyone(len(said))]
        together = bytes(self.rows(torch.tensor(list(said), dtype=torch.uint8)).tolist())
        ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
        return [together[end - length : end].decode() for end, length in zip(ends, lengths, strict=True)]

    def wait(self) -> None:
        """Wait for all ranks, however long that takes."""
        if self.ranks > 1:
            dist.barrier(self.patient)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Run the block first on the first rank of each node, so that the others find what it has downloaded or cached."""
        if self.local:
            self.wait()
        yield
        if not self.local:
            self.wait()

    def free(self, where: torch.device) -> int | None:
        """Bytes that this rank may allocate; the ranks of a node share its memory."""
        if where.type == "cuda":
            return int(torch.cuda.mem_get_info(where)[0])
        free = free_memory() if where.type == "cpu" else None
        return None if free is None else free // self.beside


ALONE = Team()
_teams: list[Team] = []  # at most one: a process joins once


@contextmanager
def joined() -> Iterator[Team]:
    """Join the process group that ``torchrun`` describes; the process stays in it until it exits."""
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
        raise Lost(f"another process of the run has exited or does not respond ({reason(error)})") from None


def _met(rank: int, ranks: int) -> Team:
    wait = timedelta(seconds=_timeout())
    _end_with_parent()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        here = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        dist.init_process_group(backend, timeout=wait, **_meeting(rank, ranks, wait))
    except (ValueError, KeyError) as error:  # of the variables that torchrun sets
        raise VitrailError(f"WORLD_SIZE is {ranks}, but the rendezvous failed: {reason(error)}; use torchrun") from None
    groups = (dist.new_group(backend="gloo", timeout=each) for each in (PATIENT, wait))
    return Team(rank, ranks, *here, *groups)


def _parted() -> None:
    _teams.clear()
    with suppress(RuntimeError):
        dist.destroy_process_group()


def silent(error: BaseException) -> bool:
    """Whether the error means that another process does not respond."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in SILENCE)
    )


def _meeting(rank: int, ranks: int, wait: timedelta) -> dict[str, Any]:
    """Return the store of the rendezvous: nothing, or a prefix of the launcher's store that only this start uses.

    The launcher keeps its store when it restarts processes (as of torch 2.13), so a rank's old address could be mistaken for
    its new one.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    store: Any = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=wait)  # type: ignore[attr-defined]
    word = _answered(store, rank, wait) if rank else _called(store, ranks, wait)
    return {"store": dist.PrefixStore(word, store), "rank": rank, "world_size": ranks}  # type: ignore[attr-defined]


def _called(store: Any, ranks: int, wait: timedelta) -> str:
    """Publish a fresh token as rank 0, and wait until every other rank has acknowledged it."""
    word, missing, end = uuid4().hex, set(range(1, ranks)), time.monotonic() + wait.total_seconds()
    store.set("vitrail/call", word)
    while missing:
        if time.monotonic() > end:
            raise Lost(f"rank {min(missing)} did not join within {wait.total_seconds():g} seconds ({TIMEOUT})")
        for other in tuple(missing):
            answer = store.get(f"vitrail/answer/{other}").decode() if store.check([f"vitrail/answer/{other}"]) else ""
            heard, _, theirs = answer.partition(" ")
            if heard == word:
                store.set(f"vitrail/{word}/{theirs}", "go")
                missing.discard(other)
        time.sleep(PAUSE)
    return word


def _answered(store: Any, rank: int, wait: timedelta) -> str:
    """Acknowledge the token with one of this rank's own, which only a rank 0 that is alive now can confirm."""
    own, end = uuid4().hex, time.monotonic() + wait.total_seconds()
    while time.monotonic() < end:
        word = store.get("vitrail/call").decode()
        store.set(f"vitrail/answer/{rank}", f"{word} {own}")
        if store.check([f"vitrail/{word}/{own}"]):
            return word
        time.sleep(PAUSE)
    raise Lost(f"rank 0 did not join within {wait.total_seconds():g} seconds ({TIMEOUT})")


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
    """Receive SIGTERM when the launcher is killed, instead of running on unseen. Linux only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGTERM)


def reason(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().splitlines()[0][:200].rstrip(".")
