"""The process group of a run that ``torchrun`` has started: ranks, rendezvous, and collectives of small values.

Numbers and decisions are exchanged over gloo, so that all ranks take the same branches. Rank 0 alone writes and prints. A
single process is a group of world size 1, for which nothing here does anything.
"""

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

from vitrail.errors import VitrailError, first_line
from vitrail.system import free_memory, local_rank_and_world_size, rank_and_world_size

TIMEOUT_VARIABLE = "VITRAIL_TIMEOUT"  # environment variable: seconds that a rank waits for the others
DEFAULT_TIMEOUT = 600
POLL_SECONDS = 0.02  # seconds between two polls of the store
SLOW_TIMEOUT = timedelta(days=7)  # for a rank that reads a million images while the others wait
PR_SET_PDEATHSIG = 1  # of Linux: the signal that a process receives when its parent exits
COMM_FAILURE_MESSAGES = ("gloo", "Gloo", "Connection closed by peer", "Timed out waiting", "TCPStore")


class PeerLost(OSError):
    """Another process of the run has exited or does not respond."""


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run, from the view of one of them."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # rank among the processes of its node
    local_world_size: int = 1  # processes of its node
    slow_group: Any = None  # a process group without a practical timeout
    checkpoint_group: Any = None  # a process group for checkpoints that are written during training

    @property
    def is_main(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def gather(self, *values: float) -> list[list[float]]:
        """Gather these numbers of every rank, in the order of ranks."""
        if self.world_size == 1:
            return [list(values)]
        return self.all_gather_rows(torch.tensor([values], dtype=torch.float64)).tolist()

    def all_sum(self, *values: float) -> list[float]:
        return [sum(column) for column in zip(*self.gather(*values), strict=True)]

    def all_max(self, value: float) -> float:
        return max(row[0] for row in self.gather(value))

    def all_min(self, value: float) -> float:
        return min(row[0] for row in self.gather(value))

    def any_rank(self, condition: bool) -> bool:
        return bool(self.all_max(float(condition)))

    def all_gather_rows(self, rows: Tensor) -> Tensor:
        """Concatenate the rows of all ranks; a rank may have none."""
        if self.world_size == 1:
            return rows
        rows = rows.cpu().contiguous()
        counts = torch.zeros(self.world_size, dtype=torch.int64)
        counts[self.rank] = len(rows)
        dist.all_reduce(counts)
        longest = int(counts.max())
        padded = torch.cat([rows, rows.new_zeros(longest - len(rows), *rows.shape[1:])])
        gathered = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(gathered, padded)
        return torch.cat([each[:count] for each, count in zip(gathered, counts.tolist(), strict=True)])

    def broadcast_str(self, get_text: Callable[[], str]) -> str:
        """Broadcast a string of rank 0, the only one that computes it."""
        return self.gather_str(get_text() if self.is_main else "")[0]

    def gather_str(self, text: str) -> list[str]:
        """Gather a string of every rank."""
        encoded = text.encode()
        lengths = [int(row[0]) for row in self.gather(len(encoded))]
        joined_bytes = bytes(self.all_gather_rows(torch.tensor(list(encoded), dtype=torch.uint8)).tolist())
        ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
        return [joined_bytes[end - length : end].decode() for end, length in zip(ends, lengths, strict=True)]

    def barrier(self) -> None:
        """Wait for all ranks, however long that takes."""
        if self.world_size > 1:
            dist.barrier(self.slow_group)

    @contextmanager
    def local_main_first(self) -> Iterator[None]:
        """Run the block first on the first rank of each node, so that the others find what it has downloaded or cached."""
        if self.local_rank:
            self.barrier()
        yield
        if not self.local_rank:
            self.barrier()

    def free_memory(self, device: torch.device) -> int | None:
        """Bytes that this rank may allocate; the ranks of a node share its memory."""
        if device.type == "cuda":
            cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch gives that out again
            return int(torch.cuda.mem_get_info(device)[0]) + cached
        free = free_memory() if device.type == "cpu" else None
        return None if free is None else free // self.local_world_size


SINGLE_PROCESS = ProcessGroup()


@contextmanager
def process_group() -> Iterator[ProcessGroup]:
    """Join the process group that ``torchrun`` describes, for the time of the block."""
    rank, world_size = rank_and_world_size()
    if world_size == 1:
        yield SINGLE_PROCESS
        return
    try:
        yield _init(rank, world_size)
    except RuntimeError as error:
        if not is_comm_failure(error):
            raise
        raise PeerLost(f"another process of the run has exited or does not respond ({first_line(error)})") from None
    finally:
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()


def _init(rank: int, world_size: int) -> ProcessGroup:
    if dist.is_initialized():
        raise VitrailError("this process has joined a process group before; pass it on as group=...")
    timeout = timedelta(seconds=_timeout_seconds())
    _terminate_with_parent()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        local = local_rank_and_world_size()
        dist.init_process_group(backend, timeout=timeout, **_rendezvous(rank, world_size, timeout))
    except (ValueError, KeyError) as error:  # of the variables that torchrun sets
        raise VitrailError(
            f"WORLD_SIZE is {world_size}, but the rendezvous failed: {first_line(error)}; use torchrun"
        ) from None
    groups = (dist.new_group(backend="gloo", timeout=each) for each in (SLOW_TIMEOUT, timeout))
    return ProcessGroup(rank, world_size, *local, *groups)


def is_comm_failure(error: BaseException) -> bool:
    """Whether the error means that another process does not respond."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(message in str(error) for message in COMM_FAILURE_MESSAGES)
    )


def _rendezvous(rank: int, world_size: int, timeout: timedelta) -> dict[str, Any]:
    """Return the store of the rendezvous: nothing, or a prefix of the launcher's store that only this start uses.

    The launcher keeps its store when it restarts processes (as of torch 2.13), so a rank's old address could be mistaken for
    its new one.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    store: Any = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timeout)  # type: ignore[attr-defined]
    token = _rendezvous_worker(store, rank, timeout) if rank else _rendezvous_main(store, world_size, timeout)
    return {"store": dist.PrefixStore(token, store), "rank": rank, "world_size": world_size}  # type: ignore[attr-defined]


def _rendezvous_main(store: Any, world_size: int, timeout: timedelta) -> str:
    """Publish a fresh token as rank 0, and wait until every other rank has acknowledged it."""
    token, missing, deadline = uuid4().hex, set(range(1, world_size)), time.monotonic() + timeout.total_seconds()
    store.set("vitrail/call", token)
    while missing:
        if time.monotonic() > deadline:
            raise PeerLost(f"rank {min(missing)} did not join within {timeout.total_seconds():g} seconds ({TIMEOUT_VARIABLE})")
        for other in tuple(missing):
            answer = store.get(f"vitrail/answer/{other}").decode() if store.check([f"vitrail/answer/{other}"]) else ""
            echoed, _, their_token = answer.partition(" ")
            if echoed == token:
                store.set(f"vitrail/{token}/{their_token}", "go")
                missing.discard(other)
        time.sleep(POLL_SECONDS)
    return token


def _rendezvous_worker(store: Any, rank: int, timeout: timedelta) -> str:
    """Acknowledge the token with one of this rank's own, which only a rank 0 that is alive now can confirm."""
    own_token, deadline = uuid4().hex, time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        token = store.get("vitrail/call").decode()
        store.set(f"vitrail/answer/{rank}", f"{token} {own_token}")
        if store.check([f"vitrail/{token}/{own_token}"]):
            return token
        time.sleep(POLL_SECONDS)
    raise PeerLost(f"rank 0 did not join within {timeout.total_seconds():g} seconds ({TIMEOUT_VARIABLE})")


def _timeout_seconds() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE, str(DEFAULT_TIMEOUT))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise VitrailError(
            f"{TIMEOUT_VARIABLE} must be seconds above 0, got {text!r}; try {TIMEOUT_VARIABLE}={DEFAULT_TIMEOUT}"
        )
    return seconds


def _terminate_with_parent() -> None:
    """Receive SIGTERM when the launcher is killed, instead of running on unnoticed. Linux only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
