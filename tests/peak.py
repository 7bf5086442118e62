"""How much memory a process takes, for tests that start one and look."""

import threading
import time
from collections.abc import Callable
from pathlib import Path


def peak() -> int:
    """The most so far, in bytes, of this process alone: what ``getrusage`` tells begins with the peak of whoever started it."""
    return _told("VmHWM")


def taken(work: Callable[[], object]) -> int:
    """The most bytes of its own that the process has more while it works; those of a mapped file can be taken back."""
    before = most = _told("RssAnon")
    worker = threading.Thread(target=work)
    worker.start()
    while worker.is_alive():
        most = max(most, _told("RssAnon"))
        time.sleep(0.0005)
    return most - before


def _told(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
