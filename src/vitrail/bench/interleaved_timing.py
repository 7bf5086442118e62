"""Interleaved timing: the contestants take turns in one process, so that other load on the machine affects all equally."""

import time
from collections.abc import Callable

import torch

GEMM_SIZE = 2048  # side of the matrices whose product gives the machine's peak


def best_of_interleaved(
    contestants: dict[str, Callable[[], int]], rounds: int, progress: Callable[[str, int, int | None], None] | None = None
) -> dict[str, float]:
    """Return items per second, the best of several rounds; a contestant does its work and returns the number of items."""
    best = dict.fromkeys(contestants, 0.0)
    names = list(contestants)
    for round_ in range(rounds):
        first = round_ % len(names)  # so that none always follows the same one, whose threads may still be active
        for name in (*names[first:], *names[:first]):
            work = contestants[name]
            start = time.perf_counter()
            done = work()
            best[name] = max(best[name], done / (time.perf_counter() - start))
        if progress:
            progress("measuring", round_ + 1, rounds)
    return best


def repeat_for(seconds: float, work: Callable[[], int]) -> Callable[[], int]:
    """Return a turn of as many calls as fill so many seconds, counted once after a warm-up."""
    work()
    start = time.perf_counter()
    work()
    count = max(round(seconds / (time.perf_counter() - start)), 1)
    return lambda: sum(work() for _ in range(count))


def matrix_product() -> int:
    """Multiply two large matrices, as a contestant: the peak that a model's speed is a fraction of."""
    ones = torch.ones(GEMM_SIZE, GEMM_SIZE)
    torch.mm(ones, ones, out=torch.empty(GEMM_SIZE, GEMM_SIZE))
    return 1
