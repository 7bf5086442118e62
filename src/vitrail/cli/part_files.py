"""Part files of ``vitrail predict`` and ``vitrail embed``: an output folder that several processes may write to."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.console import progress_bars
from vitrail.cli.input_paths import ProgressCallback
from vitrail.cli.panels import output_option
from vitrail.errors import VitrailError
from vitrail.system import is_distributed, is_main_process, rank_and_world_size

if TYPE_CHECKING:
    from vitrail.inference.part_files import PartFiles, PartManifest

RowsPerFileOption = Annotated[
    int | None,
    output_option("--rows-per-file", metavar="N", min=1, help="Number of images per part file, if the output is a folder."),
]


def writes_part_files(out: Path | None, endings: tuple[str, ...], option: str, rows_per_file: int | None) -> bool:
    """Return whether the output is a folder of part files: a name without a suffix, or an existing folder."""
    folder = out is not None and out.suffix.lower() not in endings and (out.is_dir() or not out.suffix)
    if not folder and is_distributed():
        got = "none" if out is None else out
        raise VitrailError(f"several processes need a folder for part files, got {got}; try {option} predictions")
    if not folder and rows_per_file is not None:
        raise VitrailError(f"--rows-per-file is for a folder of part files, got {out or 'none'}; try {option} predictions")
    return folder


def main_rank_progress() -> AbstractContextManager[ProgressCallback]:
    """Return a progress bar for rank 0, and a silent one for the other ranks."""
    return progress_bars() if is_main_process() else nullcontext(lambda task, done, total: None)


def open_part_files(
    out: Path, ending: str, num_images: int, rows_per_file: int | None, options: dict[str, Any], max_bad_fraction: float = 1.0
) -> "PartFiles":
    from vitrail.inference.part_files import PartFiles, choose_part_size

    parts = PartFiles(
        out, ending, num_images, choose_part_size(out, num_images, rows_per_file), *rank_and_world_size(), max_bad_fraction
    )
    parts.start({**options, "images": num_images})
    return parts


class PartProgress:
    """Progress of this process on its own parts; helping others counts beyond the total."""

    def __init__(self, parts: "PartFiles", task: str, on_progress: ProgressCallback) -> None:
        pending = [part for part in parts.own_parts if parts.manifest(part) is None]
        self.total, self.done = sum(len(parts.image_indices(part)) for part in pending), 0
        self.task, self.on_progress = task, on_progress

    def advance(self, count: int = 1) -> None:
        self.done += count
        self.on_progress(self.task, self.done, max(self.total, self.done))


def finish_parts(parts: "PartFiles", num_written: int) -> "PartManifest | None":
    """Return the summary of all parts to the one process that reports it: the first to find all parts complete."""
    finished = parts.finalise()
    if finished is None:
        if parts.rank == 0:
            num_complete = sum(parts.manifest(part) is not None for part in range(parts.num_parts))
            rerun = f"if no other process is writing the rest, rerun the command: {parts.folder}"
            typer.echo(f"{num_complete:,} of {parts.num_parts:,} parts so far; {rerun}", err=True)
        return None
    done, is_first = finished
    return done if is_first or (parts.rank == 0 and not num_written) else None
