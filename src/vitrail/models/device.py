"""Device selection, and rank and world size from the environment."""

import os

import torch

from vitrail.errors import VitrailError


def rank_and_world_size() -> tuple[int, int]:
    """Return rank and world size from the environment that ``torchrun`` or another launcher sets."""
    rank, world_size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size)):
        raise VitrailError(
            f"RANK must be a number from 0 to WORLD_SIZE - 1, got {rank[:20]!r} of {world_size[:20]!r}; use torchrun"
        )
    return int(rank), int(world_size)


def select_device(name: str) -> torch.device:
    """Return the named device, or the best available for "auto"; under ``torchrun`` each process of a node uses its own GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cuda" and os.environ.get("WORLD_SIZE", "1") != "1":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"  # first: touching another process's GPU allocates memory there
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise VitrailError(f"the device {name!r} cannot be used ({str(error).splitlines()[0]}); try cpu") from None
