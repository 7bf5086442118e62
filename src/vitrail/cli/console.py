"""Console output of the commands: tables for people, one JSON object for programs."""

import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import TaskID


def make_console() -> Console:
    """Return a console of the terminal's width, at least 90 columns so that no number is cut; markup is off."""
    width = max(90, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 120
    return Console(highlight=False, markup=False, width=width)


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int | None], None]]:
    """Yield a callback (task, done, total) that draws progress bars on stderr; silent if stderr is not a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        tasks: dict[str, TaskID] = {}

        def update(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield update


def make_table(*columns: str, title: str | None = None) -> Table:
    """Return a table; columns whose name starts with ``#`` hold numbers: right-aligned and never wrapped."""
    heading = None if title is None else Text(title, style="bold")
    result = Table(title=heading, title_justify="left", title_style="", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        number = column.startswith("#")
        result.add_column(column.lstrip("#"), justify="right" if number else "left", overflow="fold", no_wrap=number)
    return result


def add_row(sheet: Table, *cells: str | Text) -> None:
    """Add a row of cells, without interpreting markup."""
    sheet.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def print_json(answer: Any) -> None:
    """Print one JSON object; values that are not finite become text: "nan", "inf"."""
    sys.stdout.write(json.dumps(_replace_nonfinite(answer), indent=2, allow_nan=False) + "\n")


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _replace_nonfinite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def format_count(number: int) -> str:
    return f"{number:,}" if number else ""


def format_si(number: float, unit: str) -> str:
    """Format a number with an SI prefix: 17_563_828_224 with unit MACs is 17.564 GMACs."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:,.3f} {prefix}{unit}"
    return f"{number:,.0f} {unit}" if number else ""


def format_bytes(number: float) -> str:
    """Format bytes in powers of 1024: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}" if number >= 100 or unit == "B" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"


def format_duration(seconds: float) -> str:
    """Format seconds in at most two units: 2 min 10 s, 3 h 5 min."""
    total = max(round(seconds), 1)
    for unit, length, smaller in (("d", 86400, "h"), ("h", 3600, "min"), ("min", 60, "s")):
        if total >= length:
            rest = (total % length) // {"h": 3600, "min": 60, "s": 1}[smaller]
            return f"{total // length} {unit} {rest} {smaller}" if rest else f"{total // length} {unit}"
    return f"{total} s"
