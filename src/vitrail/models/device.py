"""Where a model is computed, and by which of several processes."""

import os

import torch

from vitrail.errors import VitrailError


def place() -> tuple[int, int]:
    """Rank and number of the processes, from what ``torchrun`` says or whoever else starts them."""
    rank, ranks = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (rank.isdecimal() and ranks.isdecimal() and int(rank) < int(ranks)):
        raise VitrailError(
            f"RANK must be a number from 0 to below WORLD_SIZE, got {rank[:20]!r} of {ranks[:20]!r}; use torchrun"
        )
    return int(rank), int(ranks)


def device(name: str) -> torch.device:
    """The best there is, or the one that is named; of the processes that ``torchrun`` starts on a host each has its own GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cuda" and os.environ.get("WORLD_SIZE", "1") != "1":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"  # before it is tried: to try another's takes some of its memory
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise VitrailError(f"the device {name!r} cannot be used ({str(error).splitlines()[0]}); try cpu") from None
