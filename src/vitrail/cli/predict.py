"""``vitrail predict``: classify images; one row of labels and probabilities each, as soon as it is computed."""

import hashlib
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len
from rich.text import Text

from vitrail.cli.faster import Compile, Drop, Image, Merge, switches
from vitrail.cli.fitting import Device, Workers
from vitrail.cli.naming import Tell, named
from vitrail.cli.options import Batch, Json, check_out
from vitrail.cli.parts import Part, Share, bar, concluded, in_parts, opened_parts
from vitrail.cli.rows import ENDINGS, Put, putting, written
from vitrail.cli.screen import console, print_json, progress
from vitrail.errors import VitrailError, printable

if TYPE_CHECKING:
    from vitrail.evaluate.parts import Parts
    from vitrail.evaluate.predict import Prediction
    from vitrail.models.build import Model

WIDEST = 64  # characters of a file name or label that its column has space for


def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder, or any weights: a folder, a file, hf:owner/name.")],
    files: Annotated[
        list[str],
        typer.Argument(metavar="IMAGES...", help="Images: files, folders, 'patterns*.jpg'; - reads names from stdin."),
    ],
    top: Annotated[
        int, typer.Option(metavar="K", min=1, rich_help_panel="Output", help="Number of most probable labels per image.")
    ] = 5,
    csv: Annotated[bool, typer.Option("--csv", rich_help_panel="Output", help="Print the predictions as CSV.")] = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", rich_help_panel="Output", help="Print the predictions as JSON lines.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR",
            rich_help_panel="Output",
            help="Write the predictions to a .csv or .jsonl file, or as part files to a folder.",
        ),
    ] = None,
    part: Part = None,
    batch: Batch = 32,
    compile: Compile = False,
    merge: Merge = None,
    drop: Drop = 0.0,
    image: Image = None,
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Classify images: labels and probabilities as a table, CSV or JSON; exit code 1 if one cannot be read."""
    folder = in_parts(out, ENDINGS, "--out", part)
    kind = _kind(run, csv, jsonl, out, json, folder)
    if "-" in files and os.environ.get("WORLD_SIZE", "1") != "1":
        raise VitrailError("several processes cannot share stdin; name folders or patterns in place of -")
    with bar() as tell:
        names = list(named(files, tell))
    if not names:
        places = ", ".join("stdin" if word == "-" else word for word in files)
        raise VitrailError(f"there is no image in {places}; name files, or folders of images")

    from vitrail.evaluate.predict import Prediction, stream
    from vitrail.export.exported import open_model
    from vitrail.models.device import device as chosen

    where = chosen(device)
    model = open_model(run, switches(compile, merge, drop, image, where.type)).to(where)
    if out is not None and folder:
        asked = {"command": "predict", "top": top, "merge_tokens": merge, "drop_patches": drop, "image": image}
        _in_parts(run, model, names, _begun(run, model, names, out, part, asked), top, batch, workers, json)
        return
    found = stream(model, names, top, batch, workers)
    bad = 0
    kept: list[Prediction] = []
    sink: AbstractContextManager[Put]
    if kind is not None:
        sink = written(kind, min(top, model.config.classes), out)
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


def _begun(run: str, model: "Model", names: list[str], out: Path, part: int | None, asked: dict[str, Any]) -> "Parts":
    """Open a folder of part files for the predictions of this model on these files."""
    from vitrail.evaluate.identity import file_identity, model_identity
    from vitrail.evaluate.predict import preprocessing
    from vitrail.export.exported import ENDINGS as EXPORTED

    preprocessing(model)  # raises before the folder is made
    weights = file_identity(Path(run)) if Path(run).suffix.lower() in EXPORTED else model_identity(model)
    data = hashlib.sha256(b"\0".join(os.fsencode(name) for name in names)).hexdigest()
    return opened_parts(out, ".jsonl", len(names), part, {**asked, "weights": weights, "data": data})


def _in_parts(
    run: str, model: "Model", names: list[str], parts: "Parts", top: int, batch: int, workers: int | None, json: bool
) -> None:
    from vitrail.evaluate.predict import stream

    made = 0
    with bar() as tell:
        share = Share(parts, "predicting", tell)
        for part in parts.todo():
            some = [names[number] for number in parts.numbers(part)]
            with (
                parts.writing(part) as draft,
                open(draft.path, "wb") as file,
                closing(stream(model, some, top, batch, workers)) as found,
            ):
                put = putting(".jsonl", top, file)
                for row in found:
                    put(row)
                    draft.bad += row.error is not None
                    share.more()
            made += 1
    done = concluded(parts, made)
    if done is None:
        return
    if json:
        told = {"model": run, "images": done.pictures, "errors": done.bad, "out": str(parts.folder), "parts": parts.count}
        print_json(told)
    else:
        typer.echo(
            f"{_counted(done.pictures, done.bad)}, in {parts.count:,} {'part' if parts.count == 1 else 'parts'}: {parts.folder}"
        )
    if done.bad and parts.ranks == 1:  # torchrun would take it for a failure and end the other ranks
        raise typer.Exit(1)


def _kind(run: str, csv: bool, jsonl: bool, out: Path | None, json: bool, folder: bool) -> str | None:
    """Return ``.csv`` or ``.jsonl``; None for a table, or one JSON object."""
    if (csv or jsonl) and (json or out is not None or (csv and jsonl)):
        raise VitrailError("--csv, --jsonl, --json and --out choose the output format; name one of them, or --json with --out")
    if out is None:
        return ".csv" if csv else ".jsonl" if jsonl else None
    if folder:
        return ".jsonl"
    check_out(out, "--out", run, ENDINGS)
    return out.suffix.lower()


def _bar(kind: str | None, out: Path | None, json: bool) -> AbstractContextManager[Tell]:
    """Return a progress bar, a silent one if the rows themselves are printed."""
    on_screen = not json and out is None and (kind is None or sys.stdout.isatty())
    return nullcontext(lambda what, done, total: None) if on_screen else progress()


def _drawn(names: Sequence[str], labels: Sequence[str]) -> Put:
    """Print table rows one at a time, with column widths fixed in advance."""
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
    """Format the other labels, truncated at the edge of the terminal."""
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
        print_json({"model": run, "images": pictures, "errors": bad, "out": None if out is None else str(out), **rows})
    elif bad or out is not None:
        counted = _counted(pictures, bad)
        typer.echo(counted if out is None else f"{counted}: {out}", err=out is None)


def _counted(pictures: int, bad: int) -> str:
    return f"{pictures:,} {'image' if pictures == 1 else 'images'}, {bad:,} with an error"
