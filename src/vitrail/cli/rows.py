"""Write predictions as CSV or as JSON lines."""

import csv as tables
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vitrail.cli.options import whole

if TYPE_CHECKING:
    from vitrail.evaluate.predict import Prediction

Put = Callable[["Prediction"], None]
ENDINGS = (".csv", ".jsonl")


@contextmanager
def written(kind: str, top: int, out: Path | None) -> Iterator[Put]:
    """Yield a function that writes a row; rows are bytes, so that file names keep their encoding."""
    with _opened(out) as file:
        yield putting(kind, top, file)


def putting(kind: str, top: int, file: BinaryIO) -> Put:
    def put(text: str) -> None:
        file.write(_encoded(text))
        file.flush()

    if kind == ".jsonl":
        return lambda row: put(json.dumps(asdict(row), allow_nan=False) + "\n")
    more = [f"{column}_{place}" for place in range(2, top + 1) for column in ("label", "probability")]
    put(_line(["file", "label", "probability", "error", *more]))
    return lambda row: put(_line(_cells(row, top)))


@contextmanager
def _opened(out: Path | None) -> Iterator[BinaryIO]:
    """Open stdout, or a file that appears whole or not at all."""
    if out is None:
        yield sys.stdout.buffer
        return
    with whole(out) as half, open(half, "wb") as file:
        yield file


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate, which a label read from a file may have
        return text.encode("utf-8", "replace")


def _cells(row: "Prediction", top: int) -> list[object]:
    others = [cell for guess in row.top[1:] for cell in (guess.label, guess.probability)]
    return [row.file, row.label, row.probability, row.error, *others, *[None] * (2 * (top - 1) - len(others))]


def _line(cells: Iterable[object]) -> str:
    text = io.StringIO()
    tables.writer(text).writerow(cells)  # with \r\n, so that a name with a single \r is quoted
    return text.getvalue().removesuffix("\r\n") + "\n"
