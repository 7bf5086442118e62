"""Speed as a ratio: the rivals take turns in one process, so that what else the machine does hits all of them alike."""

import time
from collections.abc import Callable


def in_turns(
    rivals: dict[str, Callable[[], int]], rounds: int, tell: Callable[[str, int, int | None], None] | None = None
) -> dict[str, float]:
    """Items a second, the best of several rounds; a rival does its work and tells how many items it did."""
    best = dict.fromkeys(rivals, 0.0)
    for round_ in range(rounds):
        for name, work in rivals.items():
            start = time.perf_counter()
            done = work()
            best[name] = max(best[name], done / (time.perf_counter() - start))
        if tell:
            tell("measuring", round_ + 1, rounds)
    return best
