"""Output of ``vitrail predict`` for models that predict masks: a folder of PNG files, or COCO JSON."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vitrail.cli.console import print_json, progress_bars
from vitrail.cli.part_files import main_rank_progress
from vitrail.cli.predict_job import PredictJob, format_counts
from vitrail.errors import VitrailError, printable
from vitrail.system import rank_and_world_size

if TYPE_CHECKING:
    from vitrail.inference.predictor import Predictor

COCO_SUFFIX = ".json"


def check_mask_output(predictor: "Predictor", out: Path | None, folder: bool, overlay: bool, rows_per_file: int | None) -> bool:
    """Return whether the model predicts masks; options that are for other models are an error."""
    has_masks = predictor.task.config.has_masks
    if has_masks and rows_per_file is not None:
        raise VitrailError("--rows-per-file is for part files, and masks are one file per image; leave it out")
    if out is not None and out.suffix.lower() == COCO_SUFFIX and not folder and not has_masks:
        raise VitrailError(f"--out must end in .csv or .jsonl, got {out}: .json is for masks; try {out.with_suffix('.jsonl')}")
    if overlay and not (has_masks and folder):
        needed = "a folder for the masks: --out masks" if has_masks else f"a model of masks, and {predictor.source} has none"
        raise VitrailError(f"--overlay needs {needed}")
    return has_masks


def write_mask_folder(job: PredictJob, out: Path, overlay: bool) -> None:
    """Write the mask of each file to a folder; those that are there from an interrupted start are kept."""
    from vitrail.report.mask_folder import MaskFolder, mask_names

    masks = MaskFolder(out, job.names, mask_names(job.names), job.predictor.task.class_names, overlay)
    masks.start(job.request())
    rank, world_size = rank_and_world_size()
    own, failed = range(rank, len(job.names), world_size), []
    with masks.lock(rank), main_rank_progress() as on_progress:
        pending = masks.pending(rank, world_size)
        with closing(job.predictions([job.names[index] for index in pending])) as predictions:
            for done, (index, row) in enumerate(zip(pending, predictions, strict=True), 1):
                if row.error is None:
                    masks.write(index, row.mask)
                else:
                    failed.append(row)
                on_progress("predicting", len(own) - len(pending) + done, len(own))
    _finish(job, len(own), failed, out)
    if failed and world_size == 1:  # torchrun would take it for a failure and end the other ranks
        raise typer.Exit(1)


def write_coco_file(job: PredictJob, out: Path) -> None:
    """Write all masks to a file of COCO JSON, which appears whole or not at all."""
    from vitrail.io import atomic_path
    from vitrail.report.coco_masks import CocoWriter

    failed = []
    with (
        atomic_path(out) as temporary,
        open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file,
        progress_bars() as on_progress,
        closing(job.predictions(job.names)) as predictions,
    ):
        writer = CocoWriter(file, str(out.parent), job.predictor.task.class_names)
        for done, row in enumerate(predictions, 1):
            if row.error is None:
                writer.write(row.file, row.mask)
            else:
                failed.append(row)
            on_progress("predicting", done, len(job.names))
        writer.finish()
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
