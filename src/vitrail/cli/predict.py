"""``vitrail predict``: one row per image, such as labels and probabilities, as soon as it is computed."""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len
from rich.text import Text

from vitrail.cli.console import make_console, print_json, progress_bars
from vitrail.cli.dense_output import (
    COCO_SUFFIX,
    BoxFormatName,
    check_dense_output,
    choose_folder,
    write_coco_masks,
    write_coco_results,
    write_folder,
)
from vitrail.cli.input_paths import ProgressCallback, expand_paths
from vitrail.cli.options import (
    BatchOption,
    CompileOption,
    DropPatchesOption,
    ImageSizeOption,
    JsonOption,
    MergeTokensOption,
    OverlapOption,
    PredictorArgument,
    TileOption,
    TTAOption,
    check_output_file,
    parse_tile,
    select_speedups,
    warn_about_compiling,
)
from vitrail.cli.panels import model_option, output_option
from vitrail.cli.part_files import (
    PartProgress,
    RowsPerFileOption,
    finish_parts,
    main_rank_progress,
    open_part_files,
    writes_part_files,
)
from vitrail.cli.predict_job import DEFAULT_OVERLAP, PredictJob, format_counts
from vitrail.cli.run_recipe import DeviceOption, WorkersOption
from vitrail.cli.writers import PREDICTION_SUFFIXES, WritePrediction, open_prediction_writer, prediction_writer
from vitrail.errors import VitrailError, printable
from vitrail.system import is_distributed

if TYPE_CHECKING:
    from vitrail.tasks.task import Prediction

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
MAX_COLUMN_WIDTH = 64  # characters of a file name or label that its column has space for


def predict(
    model: PredictorArgument,
    files: Annotated[
        list[str],
        typer.Argument(metavar="IMAGES...", help="Images: files, folders, 'patterns*.jpg'; - reads names from stdin."),
    ],
    top: Annotated[
        int,
        output_option(metavar="K", min=1, help="Number of most probable labels per image; predicted labels are always listed."),
    ] = 5,
    csv: Annotated[bool, output_option("--csv", help="Print the predictions as CSV.")] = False,
    jsonl: Annotated[bool, output_option("--jsonl", help="Print the predictions as JSON lines.")] = False,
    out: Annotated[
        Path | None,
        output_option(
            metavar="FILE|DIR",
            help="Write the predictions to a .csv or .jsonl file, or as part files to a folder; masks as PNG files and images "
            "with boxes to a folder, or to a .json file as COCO has them.",
        ),
    ] = None,
    overlay: Annotated[bool, output_option("--overlay", help="Write each mask over its image, too, into the folder.")] = False,
    box_format: Annotated[
        BoxFormatName | None,
        output_option("--format", help="Of boxes in a folder: images with the boxes, YOLO's label files, or part files."),
    ] = None,
    annotations: Annotated[
        Path | None,
        output_option(metavar="FILE.json", help="COCO file whose ids of images and categories --out boxes.json has."),
    ] = None,
    rows_per_file: RowsPerFileOption = None,
    threshold: Annotated[
        float | None,
        model_option(metavar="SCORE", help="Score from which on a box, or one of several labels, is predicted."),
    ] = None,
    batch: BatchOption = 32,
    compile: CompileOption = False,
    merge_tokens: MergeTokensOption = None,
    drop_patches: DropPatchesOption = 0.0,
    image: ImageSizeOption = None,
    tile: TileOption = "none",
    overlap: OverlapOption = DEFAULT_OVERLAP,
    tta: TTAOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Predict images: labels and probabilities, masks, or what else a model predicts, as a table, CSV, JSON or images.

    The exit code is 1 if one cannot be read.
    """
    folder = writes_part_files(out, (*PREDICTION_SUFFIXES, COCO_SUFFIX), "--out", rows_per_file)
    kind = _output_format(model, csv, jsonl, out, json, folder)
    if "-" in files and is_distributed():
        raise VitrailError("several processes cannot share stdin; name folders or patterns instead of -")
    with main_rank_progress() as on_progress:
        names = list(expand_paths(files, on_progress))
    if not names:
        locations = ", ".join("stdin" if name == "-" else name for name in files)
        raise VitrailError(f"there is no image in {locations}; name files, or folders of images")

    from vitrail.inference.load import load_predictor
    from vitrail.inference.predictor import require_outputs
    from vitrail.system import select_device

    speedups = select_speedups(compile, merge_tokens, drop_patches, image, select_device(device).type)
    predictor = require_outputs(load_predictor(model, speedups=speedups, device=device))
    options = {"merge_tokens": merge_tokens, "drop_patches": drop_patches, "image": image}
    job = PredictJob(model, predictor, names, top, batch, workers, parse_tile(tile), overlap, tta, threshold, options, json)
    check_dense_output(
        predictor,
        out,
        folder,
        overlay=overlay,
        box_format=box_format,
        annotations=annotations,
        rows_per_file=rows_per_file,
    )
    warn_about_compiling(speedups)
    if out is not None and folder:
        prediction_folder = choose_folder(job, out, overlay, box_format)
        _write_parts(job, out, rows_per_file) if prediction_folder is None else write_folder(job, prediction_folder)
    elif out is not None and kind == COCO_SUFFIX:
        write_coco_masks(job, out) if predictor.task.config.has_masks else write_coco_results(job, out, annotations)
    else:
        _write_rows(job, kind, out)


def _write_rows(job: PredictJob, kind: str | None, out: Path | None) -> None:
    """Write or print a row for each image."""
    bad, task, json = 0, job.predictor.task, job.json
    collected: list[dict[str, Any]] = []
    predictions = job.predictions(job.names)  # checks the options before anything is printed
    sink: AbstractContextManager[WritePrediction]
    if kind is not None:
        sink = open_prediction_writer(kind, task.row_columns(job.top), out)
    else:
        sink = nullcontext(
            (lambda row: collected.append(row.plain())) if json else _table_writer(job.names, task.table_columns())
        )
    with closing(predictions), sink as write, _progress_or_silent(kind, out, json) as on_progress:
        for done, row in enumerate(predictions, 1):
            write(row)
            bad += row.error is not None
            on_progress("predicting", done, len(job.names))
    _print_summary(job.model, len(job.names), bad, out, collected, json)
    if bad:
        raise typer.Exit(1)


def _write_parts(job: PredictJob, out: Path, rows_per_file: int | None) -> None:
    """Write the predictions of this model on these files to a folder of part files."""
    model, json, num_written = job.model, job.json, 0
    parts = open_part_files(out, ".jsonl", len(job.names), rows_per_file, {**job.request(), "top": job.top})
    with main_rank_progress() as on_progress:
        progress = PartProgress(parts, "predicting", on_progress)
        for part in parts.pending():
            files = [job.names[number] for number in parts.image_indices(part)]
            with (
                parts.write_part(part) as draft,
                open(draft.path, "wb") as file,
                closing(job.predictions(files)) as predictions,
            ):
                write = prediction_writer(".jsonl", (), file)
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
            "model": model,
            "images": done.num_images,
            "errors": done.num_bad,
            "out": str(parts.folder),
            "parts": parts.num_parts,
        }
        print_json(summary)
    else:
        typer.echo(
            f"{format_counts(done.num_images, done.num_bad)}, in {parts.num_parts:,} "
            f"{'part' if parts.num_parts == 1 else 'parts'}: {parts.folder}"
        )
    if done.num_bad and parts.world_size == 1:  # torchrun would take it for a failure and end the other ranks
        raise typer.Exit(1)


def _output_format(model: str, csv: bool, jsonl: bool, out: Path | None, json: bool, folder: bool) -> str | None:
    """Return ``.csv`` or ``.jsonl``; None for a table, or one JSON object."""
    if (csv or jsonl) and (json or out is not None or (csv and jsonl)):
        raise VitrailError("--csv, --jsonl, --json and --out choose the output format; name one of them, or --json with --out")
    if out is None:
        return ".csv" if csv else ".jsonl" if jsonl else None
    if folder:
        return ".jsonl"
    if out.suffix.lower() in IMAGE_SUFFIXES:
        raise VitrailError(f"--out is a folder, or a .csv, .jsonl or .json file, got {out}; try {out.stem}")
    check_output_file(out, "--out", model, (*PREDICTION_SUFFIXES, COCO_SUFFIX))
    return out.suffix.lower()


def _progress_or_silent(kind: str | None, out: Path | None, json: bool) -> AbstractContextManager[ProgressCallback]:
    """Return a progress bar, a silent one if the rows themselves are printed."""
    on_screen = not json and out is None and (kind is None or sys.stdout.isatty())
    return nullcontext(lambda task, done, total: None) if on_screen else progress_bars()


def _table_writer(names: Sequence[str], columns: dict[str, int]) -> WritePrediction:
    """Print table rows one at a time, with column widths fixed in advance."""
    screen = make_console()
    first = _column_width("file", names)
    widths = [min(max(width, cell_len(title)), MAX_COLUMN_WIDTH) for title, width in columns.items()]

    def write(row: "Prediction") -> None:
        line, texts = Text(_pad(printable(row.file), first)), row.text()
        if row.error is not None:
            line.append("  ").append(printable(row.error), "red")
        else:
            fixed = widths if len(texts) > len(widths) else widths[:-1]  # the last text has all the space that is left
            for text, width in zip(texts, fixed, strict=False):
                line.append("  " + _pad(printable(text), width))
            rest = Text("".join(f"  {printable(text)}" for text in texts[len(fixed) :]))
            if screen.is_terminal:
                rest.truncate(max(screen.width - line.cell_len, 1), overflow="ellipsis")
            line.append_text(rest)
        screen.print(line, soft_wrap=True)

    header = [_pad("file", first), *(_pad(title, width) for title, width in zip(columns, widths, strict=True))]
    screen.print(Text("  ".join(header), "bold"), soft_wrap=True)
    return write


def _column_width(title: str, texts: Sequence[str]) -> int:
    return max(min(cell_len(text), MAX_COLUMN_WIDTH) for text in (title, *texts[:1000]))


def _pad(text: str, width: int) -> str:
    return text + " " * max(width - cell_len(text), 0)


def _print_summary(
    model: str, num_images: int, bad: int, out: Path | None, predictions: list[dict[str, Any]], json: bool
) -> None:
    if json:
        rows = {} if out is not None else {"predictions": predictions}
        print_json({"model": model, "images": num_images, "errors": bad, "out": None if out is None else str(out), **rows})
    elif bad or out is not None:
        counts = format_counts(num_images, bad)
        typer.echo(counts if out is None else f"{counts}: {out}", err=out is None)
