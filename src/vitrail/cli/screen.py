"""How commands print: tables for people, one JSON object for programs."""

import json
import sys
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def console() -> Console:
    """Colour and width of the terminal; without one, lines long enough for every table."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def table(*columns: str, title: str | None = None) -> Table:
    """Text to the left, numbers (columns that start with ``#``) to the right."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column.lstrip("#"), justify="right" if column.startswith("#") else "left", overflow="fold")
    return made


def print_json(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer, indent=2, allow_nan=False) + "\n")


def count(number: int) -> str:
    return f"{number:,}" if number else ""


def si(number: float, unit: str) -> str:
    """17_563_828_224 with unit MACs is 17.564 GMACs."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:,.3f} {prefix}{unit}"
    return f"{number:,.0f} {unit}" if number else ""


def size(number: float) -> str:
    """Bytes in powers of 1024, as memory is sold."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}" if number >= 100 or unit == "B" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"
