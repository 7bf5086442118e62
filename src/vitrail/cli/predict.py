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

from vitrail.cli.console import make_console, print_json, progress_bars
from vitrail.cli.input_paths import ProgressCallback, expand_paths
from vitrail.cli.options import (
    BatchOption,
    CompileOption,
    DropPatchesOption,
    ImageSizeOption,
    JsonOption,
    MergeTokensOption,
    check_output_file,
    select_speedups,
)
from vitrail.cli.part_files import (
    PartProgress,
    RowsPerFileOption,
    finish_parts,
    main_rank_progress,
    open_part_files,
    writes_part_files,
)
from vitrail.cli.run_recipe import DeviceOption, WorkersOption
from vitrail.cli.writers import PREDICTION_SUFFIXES, WritePrediction, open_prediction_writer, prediction_writer
from vitrail.errors import VitrailError, printable
from vitrail.system import is_distributed

if TYPE_CHECKING:
    from vitrail.inference.part_files import PartFiles
    from vitrail.inference.predict import Prediction
    from vitrail.models.build import Model

MAX_COLUMN_WIDTH = 64  # characters of a file name or label that its column has space for


def predict(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Run folder, or any weights: a folder, a file, hf:owner/name, dinov2-s14 ...")
    ],
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
    rows_per_file: RowsPerFileOption = None,
    batch: BatchOption = 32,
    compile: CompileOption = False,
    merge_tokens: MergeTokensOption = None,
    drop_patches: DropPatchesOption = 0.0,
    image: ImageSizeOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Classify images: labels and probabilities as a table, CSV or JSON; exit code 1 if one cannot be read."""
    folder = writes_part_files(out, PREDICTION_SUFFIXES, "--out", rows_per_file)
    kind = _output_format(run, csv, jsonl, out, json, folder)
    if "-" in files and is_distributed():
        raise VitrailError("several processes cannot share stdin; name folders or patterns instead of -")
    with main_rank_progress() as on_progress:
        names = list(expand_paths(files, on_progress))
    if not names:
        locations = ", ".join("stdin" if name == "-" else name for name in files)
        raise VitrailError(f"there is no image in {locations}; name files, or folders of images")

    from vitrail.inference.exported_model import load_any_model
    from vitrail.inference.predict import Prediction, iter_predictions
    from vitrail.system import select_device

    target_device = select_device(device)
    model = load_any_model(run, select_speedups(compile, merge_tokens, drop_patches, image, target_device.type)).to(
        target_device
    )
    if out is not None and folder:
        options = {"command": "predict", "top": top, "merge_tokens": merge_tokens, "drop_patches": drop_patches, "image": image}
        _write_parts(run, model, names, _open_parts(run, model, names, out, rows_per_file, options), top, batch, workers, json)
        return
    predictions = iter_predictions(model, names, top, batch, workers)
    bad = 0
    collected: list[Prediction] = []
    sink: AbstractContextManager[WritePrediction]
    if kind is not None:
        sink = open_prediction_writer(kind, min(top, model.config.classes), out)
    else:
        sink = nullcontext(collected.append if json else _table_writer(names, model.class_names or ()))
    with closing(predictions), sink as write, _progress_or_silent(kind, out, json) as on_progress:
        for done, row in enumerate(predictions, 1):
            write(row)
            bad += row.error is not None
            on_progress("predicting", done, len(names))
    _print_summary(run, len(names), bad, out, collected, json)
    if bad:
        raise typer.Exit(1)


def _open_parts(
    run: str, model: "Model", names: list[str], out: Path, rows_per_file: int | None, options: dict[str, Any]
) -> "PartFiles":
    """Open a folder of part files for the predictions of this model on these files."""
    from vitrail.inference.exported_model import EXPORTED_SUFFIXES
    from vitrail.inference.model_hash import file_hash, model_hash
    from vitrail.inference.predict import require_classifier

    require_classifier(model)  # raises before the folder is made
    weights = file_hash(Path(run)) if Path(run).suffix.lower() in EXPORTED_SUFFIXES else model_hash(model)
    data = hashlib.sha256(b"\0".join(os.fsencode(name) for name in names)).hexdigest()
    return open_part_files(out, ".jsonl", len(names), rows_per_file, {**options, "weights": weights, "data": data})


def _write_parts(
    run: str, model: "Model", names: list[str], parts: "PartFiles", top: int, batch: int, workers: int | None, json: bool
) -> None:
    from vitrail.inference.predict import iter_predictions

    num_written = 0
    with main_rank_progress() as on_progress:
        progress = PartProgress(parts, "predicting", on_progress)
        for part in parts.pending():
            files = [names[number] for number in parts.image_indices(part)]
            with (
                parts.write_part(part) as draft,
                open(draft.path, "wb") as file,
                closing(iter_predictions(model, files, top, batch, workers)) as predictions,
            ):
                write = prediction_writer(".jsonl", top, file)
                for row in predictions:
                    write(row)
                    draft.num_bad += row.error is not None
                    progress.advance()
            num_written += 1
    done = finish_parts(parts, num_written)
    if done is None:
        return
    if json:
        summary = {
            "model": run,
            "images": done.num_images,
            "errors": done.num_bad,
            "out": str(parts.folder),
            "parts": parts.num_parts,
        }
        print_json(summary)
    else:
        typer.echo(
            f"{_format_counts(done.num_images, done.num_bad)}, in {parts.num_parts:,} "
            f"{'part' if parts.num_parts == 1 else 'parts'}: {parts.folder}"
        )
    if done.num_bad and parts.world_size == 1:  # torchrun would take it for a failure and end the other ranks
        raise typer.Exit(1)


def _output_format(run: str, csv: bool, jsonl: bool, out: Path | None, json: bool, folder: bool) -> str | None:
    """Return ``.csv`` or ``.jsonl``; None for a table, or one JSON object."""
    if (csv or jsonl) and (json or out is not None or (csv and jsonl)):
        raise VitrailError("--csv, --jsonl, --json and --out choose the output format; name one of them, or --json with --out")
    if out is None:
        return ".csv" if csv else ".jsonl" if jsonl else None
    if folder:
        return ".jsonl"
    check_output_file(out, "--out", run, PREDICTION_SUFFIXES)
    return out.suffix.lower()


def _progress_or_silent(kind: str | None, out: Path | None, json: bool) -> AbstractContextManager[ProgressCallback]:
    """Return a progress bar, a silent one if the rows themselves are printed."""
    on_screen = not json and out is None and (kind is None or sys.stdout.isatty())
    return nullcontext(lambda task, done, total: None) if on_screen else progress_bars()


def _table_writer(names: Sequence[str], labels: Sequence[str]) -> WritePrediction:
    """Print table rows one at a time, with column widths fixed in advance."""
    screen = make_console()
    first, second = _column_width("file", names), _column_width("label", labels)

    def write(row: "Prediction") -> None:
        line = Text(_pad(printable(row.file), first) + "  ")
        if row.error is not None:
            line.append(printable(row.error), "red")
        else:
            line.append(f"{_pad(printable(row.label or ''), second)}  {row.probability:>11.2%}")
            line.append_text(_other_labels(row, screen.width - line.cell_len if screen.is_terminal else None))
        screen.print(line, soft_wrap=True)

    screen.print(Text(f"{_pad('file', first)}  {_pad('label', second)}  probability", "bold"), soft_wrap=True)
    return write


def _other_labels(row: "Prediction", max_width: int | None) -> Text:
    """Format the other labels, truncated at the edge of the terminal."""
    text = Text("".join(f"  {printable(entry.label)} {entry.probability:.2%}" for entry in row.top[1:]))
    if max_width is not None:
        text.truncate(max(max_width, 1), overflow="ellipsis")
    return text


def _column_width(title: str, texts: Sequence[str]) -> int:
    return max(min(cell_len(text), MAX_COLUMN_WIDTH) for text in (title, *texts[:1000]))


def _pad(text: str, width: int) -> str:
    return text + " " * max(width - cell_len(text), 0)


def _print_summary(run: str, num_images: int, bad: int, out: Path | None, predictions: "list[Prediction]", json: bool) -> None:
    if json:
        rows = {} if out is not None else {"predictions": [asdict(row) for row in predictions]}
        print_json({"model": run, "images": num_images, "errors": bad, "out": None if out is None else str(out), **rows})
    elif bad or out is not None:
        counts = _format_counts(num_images, bad)
        typer.echo(counts if out is None else f"{counts}: {out}", err=out is None)


def _format_counts(num_images: int, bad: int) -> str:
    return f"{num_images:,} {'image' if num_images == 1 else 'images'}, {bad:,} with an error"
