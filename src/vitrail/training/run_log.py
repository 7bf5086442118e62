"""The log of a run, ``log.jsonl``: one JSON object per line, its step first. Torch-free.

A process that is writing, or was killed, leaves the last line incomplete: it is not read before its end is there. NaN and Inf,
which JSON does not have, are written as text.
"""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOG_FILE = "log.jsonl"


@dataclass
class LogTail:
    """Tail of a log: complete lines added since the last read, at first all of them."""

    path: Path
    offset: int = 0
    inode: int | None = None

    def read_new_lines(self) -> list[bytes]:
        """Return the new lines; all again if the log was replaced or truncated."""
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self.inode or status.st_size < self.offset:
                    self.offset, self.inode = 0, status.st_ino
                if status.st_size == self.offset:
                    return []
                file.seek(self.offset)
                complete, end, _ = file.read(status.st_size - self.offset).rpartition(b"\n")
        except FileNotFoundError:  # not started yet
            return []
        self.offset += len(complete) + len(end)
        return complete.split(b"\n") if end else []


def parse_rows(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """Parse lines, skipping what a killed process has damaged."""
    return [row for line in lines if (row := _parse_row(line)) is not None]


def _parse_row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def finite_or_text(value: Any) -> Any:
    """Replace NaN and Inf by text, at any depth."""
    if isinstance(value, dict):
        return {name: finite_or_text(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_text(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def parse_step(line: bytes) -> int | None:
    """Return the step of a line without parsing all of it, since there may be very many."""
    head, _, rest = line.partition(b'"step": ')
    number = rest[:20].partition(b",")[0].rstrip(b"} ")
    return int(number) if head.strip() == b"{" and number.isdigit() else None


def is_evaluation(line: bytes) -> bool:
    return b'"validation"' in line
