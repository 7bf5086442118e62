"""``vitrail data convert``: write a dataset of boxes in another format."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from vitrail.cli.console import print_json, progress_bars
from vitrail.cli.options import JsonOption, LabelsColumnOption
from vitrail.cli.panels import output_option
from vitrail.errors import VitrailError, printable

MAX_PRINTED_ROWS = 12  # skipped images printed; --json has them all


def convert(
    source: Annotated[
        str,
        typer.Argument(metavar="DATA", help="Dataset of boxes: COCO JSON, YOLO, Pascal VOC, a table, hf:owner/name, or panes."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write the dataset into.")],
    to: Annotated[Literal["coco", "yolo", "voc", "csv"], output_option("--to", help="Format of the boxes that are written.")],
    labels_column: LabelsColumnOption = None,
    json: JsonOption = False,
) -> None:
    """Write a dataset of boxes in another format, with its images unchanged and all its splits."""
    from dataclasses import replace

    from vitrail.data.convert_boxes import convert_boxes
    from vitrail.data.resumable_folder import require_new_folder
    from vitrail.data.sources.columns import choose_columns
    from vitrail.data.sources.open import open_dataset

    if Path(source).is_dir() and out.resolve().is_relative_to(Path(source).resolve()):
        raise VitrailError(f"OUT must not be inside the dataset, got {out}; name a folder outside of it")
    require_new_folder(out)  # before work that may take hours
    columns = replace(choose_columns(labels_column), boxes=True)
    with progress_bars() as on_progress:
        dataset = open_dataset(source, columns=columns, progress=on_progress)
        splits = {split: part for split, part in dataset.splits.items() if len(part)}
        report = convert_boxes(out, splits, to, progress=on_progress)
    notes = [*dataset.notes, *report.notes]
    if json:
        print_json({
            "path": report.path, "to": to, "classes": dataset.class_names, "counts": report.counts, "boxes": report.boxes,
            "skipped": report.skipped, "resumed": report.resumed_images, "notes": notes,
        })  # fmt: skip
        return
    for note in notes:
        typer.echo(printable(f"note: {note}"))
    for sentence in report.skipped[:MAX_PRINTED_ROWS]:
        typer.echo(printable(f"skipped {sentence}"))
    parts = ", ".join(f"{count:,} {split} with {report.boxes[split]:,} boxes" for split, count in report.counts.items())
    skipped = f"; {len(report.skipped):,} skipped" if report.skipped else ""
    resumed = f"; {report.resumed_images:,} kept from an interrupted attempt" if report.resumed_images else ""
    typer.echo(f"wrote {parts}{skipped}{resumed}: {report.path}")
