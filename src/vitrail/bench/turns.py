"""Speed as a ratio: the rivals take turns in one process, so that what else the machine does hits all of them alike."""

import time
from collections.abc import Callable


def in_turns(
    rivals: dict[str, Callable[[], int]], rounds: int, tell: Callable[[str, int, int | None], None] | None = None
) -> dict[str, float]:
    """Items a second, the best of several rounds; a rival does its work and tells how many items it did."""
    best = dict.fromkeys(rivals, 0.0)
    names = list(rivals)
    for round_ in range(rounds):
        first = round_ % len(names)  # so that none always comes behind the same one, whose threads may still be awake
        for name in (*names[first:], *names[:first]):
            work = rivals[name]
            start = time.perf_counter()
            done = work()
            best[name] = max(best[name], done / (time.perf_counter() - start))
        if tell:
            tell("measuring", round_ + 1, rounds)
    return best
