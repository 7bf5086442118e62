"""Stop signals, also of a terminal that is closed: finish the step, save, exit. A second signal exits at once.

One of several processes may get the same signal from the terminal and from its launcher: there, repeats are ignored.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopFlag:
    """The stop signal that was received, if any."""

    signal: int | None = None


class TrainingStopped(Exception):  # not an error
    """The run received a stop signal and has saved its state."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code  # exit code that a shell expects: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP


@contextmanager
def handle_stop_signals(ignore_repeats: bool = False) -> Iterator[StopFlag]:
    stop = StopFlag()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.signal is not None and not ignore_repeats:
            os._exit(128 + number)
        stop.signal = stop.signal or number

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup sets it
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
