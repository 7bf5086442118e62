"""Hardware and launcher of this process: cores, memory, device, rank. Torch is imported only when a device is selected."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.errors import VitrailError, first_line

if TYPE_CHECKING:
    import torch


def available_cores() -> int:
    """Return the number of cores this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int | None:
    """Return the bytes that this process may still allocate, by the machine and its control group; None if unknown."""
    limits = [size for size in (memory_info().get("MemAvailable"), _cgroup_available()) if size is not None]
    return min(limits) if limits else None


def memory_info(path: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """Return Linux's account of the machine's memory in bytes, such as ``MemTotal``; it is empty on other systems."""
    lines = [line.split() for line in _read(path).splitlines()]
    return {fields[0].rstrip(":"): 1024 * int(fields[1]) for fields in lines if fields[2:] == ["kB"]}


def is_distributed() -> bool:
    """Return whether a launcher such as ``torchrun`` has started several processes."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def is_main_process() -> bool:
    """Return whether this process prints: it is the only one, or has rank 0."""
    return rank_text() == "0"


def rank_text() -> str:
    """Return the rank for messages, as the launcher has set it and not checked."""
    return os.environ.get("RANK", "0") if is_distributed() else "0"


def rank_and_world_size() -> tuple[int, int]:
    """Return rank and world size from the environment that ``torchrun`` or another launcher sets."""
    rank, world_size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size)):
        raise VitrailError(
            f"RANK must be a number from 0 to WORLD_SIZE - 1, got {rank[:20]!r} of {world_size[:20]!r}; use torchrun"
        )
    return int(rank), int(world_size)


def local_rank_and_world_size() -> tuple[int, int]:
    """Return rank and world size among the processes of this node; a launcher may set the rank alone."""
    rank, world_size = os.environ.get("LOCAL_RANK", "0"), os.environ.get("LOCAL_WORLD_SIZE", "1")
    if not (rank.isdecimal() and world_size.isdecimal()):
        raise VitrailError(f"LOCAL_RANK must be a number, got {rank[:20]!r} of {world_size[:20]!r}; use torchrun")
    return int(rank), int(world_size)


def select_device(name: str) -> "torch.device":
    """Return the named device, or the best available for "auto"; under ``torchrun`` each process of a node uses its own GPU."""
    import torch

    if name != "auto":
        try:
            torch.device(name)
        except (RuntimeError, TypeError):  # its message lists every kind of device that torch was ever ported to
            raise VitrailError(f"device must be auto, cpu, cuda, cuda:N or mps, got {name!r}; try auto") from None
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cuda" and is_distributed():
        name = f"cuda:{local_rank_and_world_size()[0]}"  # first: touching another process's GPU allocates memory there
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise VitrailError(f"the device {name!r} cannot be used ({first_line(error)}); try cpu") from None


def _cgroup_available(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return what is left of a container's limit, in either version of Linux's control groups."""
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        max_bytes, used_bytes = _read(root / limit).strip(), _read(root / used).strip()
        if max_bytes.isdecimal() and used_bytes.isdecimal():
            return max(int(max_bytes) - int(used_bytes), 0)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
