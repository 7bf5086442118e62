"""``vitrail predict``: labels and probabilities for pictures, a row each as soon as it is known."""

import csv as tables
import io
import json as objects
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer
from rich.cells import cell_len
from rich.text import Text

from vitrail.cli.faster import Compile, Drop, Image, Merge, switches
from vitrail.cli.fitting import Device, Workers
from vitrail.cli.naming import Tell, named
from vitrail.cli.options import Json, check_out, whole
from vitrail.cli.screen import console, print_json, progress
from vitrail.errors import VitrailError, printable

if TYPE_CHECKING:
    from vitrail.evaluate.predict import Prediction

Put = Callable[["Prediction"], None]
WIDEST = 64  # letters of a name or a label that its column makes room for


def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or any weights: a folder, a file, hf:owner/name.")],
    files: Annotated[
        list[str], typer.Argument(metavar="PICTURES...", help="Files, folders, 'patterns*.jpg'; - reads names from the input.")
    ],
    top: Annotated[int, typer.Option(metavar="K", min=1, help="Most probable labels of each picture.")] = 5,
    csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print the rows as JSON, an object a line.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the rows to a .csv or .jsonl file.")] = None,
    batch: Annotated[int, typer.Option(metavar="B", min=1, help="Pictures at a time.")] = 32,
    compile: Compile = False,
    merge: Merge = None,
    drop: Drop = 0.0,
    image: Image = None,
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Tell what pictures show. A bad file is a row with an error, and the exit code then 1."""
    kind = _kind(run, csv, jsonl, out, json)
    with progress() as tell:
        names = list(named(files, tell))
    if not names:
        places = ", ".join("the input" if word == "-" else word for word in files)
        raise VitrailError(f"there is no picture in {places}; name files, or folders that have some")

    from vitrail.evaluate.predict import Prediction, stream
    from vitrail.export.exported import open_model
    from vitrail.models.device import device as chosen

    where = chosen(device)
    model = open_model(run, switches(compile, merge, drop, image, where.type)).to(where)
    found = stream(model, names, top, batch, workers)
    bad = 0
    kept: list[Prediction] = []
    sink: AbstractContextManager[Put]
    if kind is not None:
        sink = _written(kind, min(top, model.config.classes), out)
    else:
        sink = nullcontext(kept.append if json else _drawn(names, model.labels or ()))
    with closing(found), sink as put, _bar(kind, out, json) as tell:
        for done, row in enumerate(found, 1):
            put(row)
            bad += row.error is not None
            tell("predicting", done, len(names))
    _sum_up(run, len(names), bad, out, kept, json)
    if bad:
        raise typer.Exit(1)


def _kind(run: str, csv: bool, jsonl: bool, out: Path | None, json: bool) -> str | None:
    """``.csv`` or ``.jsonl``; none: for people, or all in one object."""
    if (csv or jsonl) and (json or out is not None or (csv and jsonl)):
        raise VitrailError("--csv, --jsonl, --json and --out say where the rows go; name one of them, or --json with --out")
    if out is None:
        return ".csv" if csv else ".jsonl" if jsonl else None
    check_out(out, "--out", run, (".csv", ".jsonl"))
    return out.suffix.lower()


def _bar(kind: str | None, out: Path | None, json: bool) -> AbstractContextManager[Tell]:
    """Where rows come to the screen, they are the sign of life."""
    on_screen = not json and out is None and (kind is None or sys.stdout.isatty())
    return nullcontext(lambda what, done, total: None) if on_screen else progress()


@contextmanager
def _written(kind: str, top: int, out: Path | None) -> Iterator[Put]:
    """Rows as bytes, so that a name is what it is on disk, whatever the terminal can show."""
    with _opened(out) as file:

        def put(text: str) -> None:
            file.write(_encoded(text))
            file.flush()

        if kind == ".jsonl":
            yield lambda row: put(objects.dumps(asdict(row), allow_nan=False) + "\n")
        else:
            more = [f"{column}_{place}" for place in range(2, top + 1) for column in ("label", "probability")]
            put(_line(["file", "label", "probability", "error", *more]))
            yield lambda row: put(_line(_cells(row, top)))


@contextmanager
def _opened(out: Path | None) -> Iterator[BinaryIO]:
    """The output, or a file that appears whole or not at all."""
    if out is None:
        yield sys.stdout.buffer
        return
    with whole(out) as half, open(half, "wb") as file:
        yield file


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a letter, which a label out of a file may have
        return text.encode("utf-8", "replace")


def _cells(row: "Prediction", top: int) -> list[object]:
    others = [cell for guess in row.top[1:] for cell in (guess.label, guess.probability)]
    return [row.file, row.label, row.probability, row.error, *others, *[None] * (2 * (top - 1) - len(others))]


def _line(cells: Iterable[object]) -> str:
    text = io.StringIO()
    tables.writer(text).writerow(cells)  # with its own line end, so that a name with half of one is put in quotes
    return text.getvalue().removesuffix("\r\n") + "\n"


def _drawn(names: Sequence[str], labels: Sequence[str]) -> Put:
    """A table whose rows need not wait for each other: the widths are known before."""
    screen = console()
    first, second = _widest("file", names), _widest("label", labels)

    def put(row: "Prediction") -> None:
        line = Text(_padded(printable(row.file), first) + "  ")
        if row.error is not None:
            line.append(printable(row.error), "red")
        else:
            line.append(f"{_padded(printable(row.label or ''), second)}  {row.probability:>11.2%}")
            line.append_text(_others(row, screen.width - line.cell_len if screen.is_terminal else None))
        screen.print(line, soft_wrap=True)

    screen.print(Text(f"{_padded('file', first)}  {_padded('label', second)}  probability", "bold"), soft_wrap=True)
    return put


def _others(row: "Prediction", room: int | None) -> Text:
    """A terminal breaks a line whose name is long; the other guesses are not worth that and cut where it ends."""
    said = Text("".join(f"  {printable(guess.label)} {guess.probability:.2%}" for guess in row.top[1:]))
    if room is not None:
        said.truncate(max(room, 1), overflow="ellipsis")
    return said


def _widest(title: str, words: Sequence[str]) -> int:
    return max(min(cell_len(word), WIDEST) for word in (title, *words[:1000]))


def _padded(word: str, width: int) -> str:
    return word + " " * max(width - cell_len(word), 0)


def _sum_up(run: str, pictures: int, bad: int, out: Path | None, kept: "list[Prediction]", json: bool) -> None:
    if json:
        rows = {} if out is not None else {"predictions": [asdict(row) for row in kept]}
        print_json({"model": run, "pictures": pictures, "errors": bad, "out": None if out is None else str(out), **rows})
    elif bad or out is not None:
        counted = f"{pictures:,} {'picture' if pictures == 1 else 'pictures'}, {bad:,} with an error"
        typer.echo(counted if out is None else f"{counted}: {out}", err=out is None)
