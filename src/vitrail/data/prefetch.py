"""Items of an endless or finite sequence, computed ahead of their use by threads."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def prefetch(item: Callable[[int], T], start: int, stop: int | None, workers: int) -> Iterator[T]:
    """Yield ``item(start)``, ``item(start + 1)`` and so on in order, computed by threads; with no workers, by the caller."""
    if workers == 0:
        step = start
        while stop is None or step < stop:
            yield item(step)
            step += 1
        return
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, "vitrail-loader", initializer=torch.set_num_threads, initargs=(1,))
    pending: deque[Future[T]] = deque()
    try:
        step = start
        while pending or stop is None or step < stop:
            while len(pending) <= workers and (stop is None or step < stop):
                pending.append(pool.submit(item, step))
                step += 1
            yield pending.popleft().result()
            torch.set_num_threads(threads)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)  # what workers set would hold for threads started later
