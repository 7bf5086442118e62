"""Write predictions as CSV or as JSON lines."""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vitrail.cli.options import atomic_path

if TYPE_CHECKING:
    from vitrail.inference.predict import Prediction

WritePrediction = Callable[["Prediction"], None]
PREDICTION_SUFFIXES = (".csv", ".jsonl")


@contextmanager
def open_prediction_writer(kind: str, top: int, out: Path | None) -> Iterator[WritePrediction]:
    """Yield a function that writes a row; rows are bytes, so that file names keep their encoding."""
    with _open_output(out) as file:
        yield prediction_writer(kind, top, file)


def prediction_writer(kind: str, top: int, file: BinaryIO) -> WritePrediction:
    def write(text: str) -> None:
        file.write(_encode(text))
        file.flush()

    if kind == ".jsonl":
        return lambda row: write(json.dumps(asdict(row), allow_nan=False) + "\n")
    more = [f"{column}_{rank}" for rank in range(2, top + 1) for column in ("label", "probability")]
    write(_csv_line(["file", "label", "probability", "error", *more]))
    return lambda row: write(_csv_line(_csv_cells(row, top)))


@contextmanager
def _open_output(out: Path | None) -> Iterator[BinaryIO]:
    """Open stdout, or a file that appears whole or not at all."""
    if out is None:
        yield sys.stdout.buffer
        return
    with atomic_path(out) as temporary, open(temporary, "wb") as file:
        yield file


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate, which a label read from a file may have
        return text.encode("utf-8", "replace")


def _csv_cells(row: "Prediction", top: int) -> list[object]:
    others = [cell for entry in row.top[1:] for cell in (entry.label, entry.probability)]
    return [row.file, row.label, row.probability, row.error, *others, *[None] * (2 * (top - 1) - len(others))]


def _csv_line(cells: Iterable[object]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)  # with \r\n, so that a name with a single \r is quoted
    return text.getvalue().removesuffix("\r\n") + "\n"
