"""Output of ``vitrail predict`` for models that predict masks or boxes: a folder with a file per image, or COCO JSON."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import typer

from vitrail.cli.console import print_json, progress_bars
from vitrail.cli.part_files import main_rank_progress
from vitrail.cli.predict_job import PredictJob, format_counts
from vitrail.errors import VitrailError, printable
from vitrail.system import rank_and_world_size

if TYPE_CHECKING:
    from vitrail.inference.predictor import Predictor
    from vitrail.report.prediction_folder import PredictionFolder

COCO_SUFFIX = ".json"
BoxFormatName = Literal["images", "yolo", "jsonl"]


def check_dense_output(
    predictor: "Predictor",
    out: Path | None,
    folder: bool,
    *,
    overlay: bool,
    box_format: BoxFormatName | None,
    annotations: Path | None,
    rows_per_file: int | None,
) -> None:
    """Refuse options that are for other models or another output."""
    task = predictor.task.config
    is_file = out is not None and out.suffix.lower() == COCO_SUFFIX and not folder
    if rows_per_file is not None and (task.has_masks or (task.has_boxes and box_format != "jsonl")):
        noun, remedy = ("masks", "leave it out") if task.has_masks else ("images with boxes", "add --format jsonl")
        raise VitrailError(f"--rows-per-file is for part files, and {noun} are one file per image; {remedy}")
    if is_file and not (task.has_masks or task.has_boxes):
        assert out is not None
        raise VitrailError(
            f"--out must end in .csv or .jsonl, got {out}: .json is for masks and boxes; try {out.with_suffix('.jsonl')}"
        )
    if overlay and not (task.has_masks and folder):
        has_none = f"a model of masks, and {predictor.source} has none"
        raise VitrailError(f"--overlay needs {'a folder for the masks: --out masks' if task.has_masks else has_none}")
    if box_format is not None and not (task.has_boxes and folder):
        has_none = f"a model of boxes, and {predictor.source} has none"
        raise VitrailError(f"--format needs {'a folder: --out boxes' if task.has_boxes else has_none}")
    if annotations is not None and not (task.has_boxes and is_file):
        has_none = f"a model of boxes, and {predictor.source} has none"
        raise VitrailError(f"--annotations needs {'a file of COCO results: --out boxes.json' if task.has_boxes else has_none}")


def choose_folder(job: PredictJob, out: Path, overlay: bool, box_format: BoxFormatName | None) -> "PredictionFolder | None":
    """Return the folder that is written; None for part files."""
    from vitrail.report.box_folder import DrawnBoxFolder, YoloLabelFolder
    from vitrail.report.mask_folder import MaskFolder
    from vitrail.report.prediction_folder import output_names

    task = job.predictor.task
    if not (task.config.has_masks or task.config.has_boxes) or box_format == "jsonl":
        return None
    columns = out, job.names, output_names(job.names), task.class_names
    if task.config.has_masks:
        return MaskFolder(*columns, overlay)
    return YoloLabelFolder(*columns) if box_format == "yolo" else DrawnBoxFolder(*columns)


def write_folder(job: PredictJob, folder: "PredictionFolder") -> None:
    """Write a file for each image; those that are there from an interrupted start are kept."""
    folder.start({**job.request(), "output": folder.noun})
    rank, world_size = rank_and_world_size()
    own, failed = range(rank, len(job.names), world_size), []
    with folder.lock(rank), main_rank_progress() as on_progress:
        pending = folder.pending(rank, world_size)
        with closing(job.predictions([job.names[index] for index in pending])) as predictions:
            for done, (index, row) in enumerate(zip(pending, predictions, strict=True), 1):
                if row.error is None:
                    folder.write(index, row)
                else:
                    failed.append(row)
                on_progress("predicting", len(own) - len(pending) + done, len(own))
    _finish(job, len(own), failed, folder.folder)
    if failed and world_size == 1:  # torchrun would take it for a failure and end the other ranks
        raise typer.Exit(1)


def write_coco_masks(job: PredictJob, out: Path) -> None:
    """Write all masks to a file of COCO JSON."""
    from vitrail.report.coco_masks import CocoWriter

    with _open_text(out) as file:
        writer = CocoWriter(file, str(out.parent), job.predictor.task.class_names)
        failed = _write_each(job, lambda number, row: writer.write(row.file, row.mask))
        writer.finish()
    _finish_file(job, failed, out)


def write_coco_results(job: PredictJob, out: Path, annotations: Path | None) -> None:
    """Write all boxes to a file of COCO's results, with the ids of a COCO file if one is named."""
    from vitrail.report.coco_results import CocoResultsWriter

    class_names = job.predictor.task.class_names
    image_ids: Any = range(1, len(job.names) + 1)
    category_ids: Any = range(1, len(class_names) + 1)
    if annotations is not None:
        from vitrail.data.sources.coco.coco_ids import read_coco_ids

        ids = read_coco_ids(annotations)
        image_ids, category_ids = ids.image_ids(job.names), ids.category_ids(class_names)
        for note in ids.notes(class_names, len(job.names)):
            typer.echo(printable(f"note: {note}"), err=True)
    if job.threshold is None:
        job = replace(job, threshold=0.0)  # average precision is computed from all boxes
    with _open_text(out) as file:
        writer = CocoResultsWriter(file, str(out.parent), class_names, category_ids, named=annotations is None)
        failed = _write_each(job, lambda number, row: writer.write(row.file, image_ids[number], row.boxes))
        writer.finish()
    _finish_file(job, failed, out)


@contextmanager
def _open_text(out: Path) -> Iterator[TextIO]:
    """Open a file that appears whole or not at all."""
    from vitrail.io import atomic_path

    with atomic_path(out) as temporary, open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
        yield file


def _write_each(job: PredictJob, write: Callable[[int, Any], None]) -> list[Any]:
    """Write each prediction with its number; return those with an error."""
    failed = []
    with progress_bars() as on_progress, closing(job.predictions(job.names)) as predictions:
        for number, row in enumerate(predictions):
            if row.error is None:
                write(number, row)
            else:
                failed.append(row)
            on_progress("predicting", number + 1, len(job.names))
    return failed


def _finish_file(job: PredictJob, failed: list[Any], out: Path) -> None:
    _finish(job, len(job.names), failed, out)
    if failed:
        raise typer.Exit(1)


def _finish(job: PredictJob, num_images: int, failed: list[Any], out: Path) -> None:
    """Print what was written, and name the files that were not."""
    if job.json:
        errors = [{"file": row.file, "error": row.error} for row in failed]
        print_json({"model": job.model, "images": num_images, "errors": len(failed), "out": str(out), "failed": errors})
        return
    for row in failed:
        typer.echo(printable(f"{row.file}  {row.error}"), err=True)
    typer.echo(f"{format_counts(num_images, len(failed))}: {out}")
