"""Memory use of a process, for tests that start one and measure it."""

import threading
import time
from collections.abc import Callable
from pathlib import Path


def peak_bytes() -> int:
    """Return the peak memory of this process in bytes. ``getrusage`` would start from the peak of its parent."""
    return _read_status("VmHWM")


def peak_growth(work: Callable[[], object]) -> int:
    """Return the peak growth of anonymous memory in bytes during the work; pages of a mapped file can be evicted."""
    before = highest = _read_status("RssAnon")
    worker = threading.Thread(target=work)
    worker.start()
    while worker.is_alive():
        highest = max(highest, _read_status("RssAnon"))
        time.sleep(0.0005)
    return highest - before


def _read_status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
