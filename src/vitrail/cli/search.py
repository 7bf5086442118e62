"""``vitrail search``: find the images most similar to a query image."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.embed import Splits, check_splits, opened
from vitrail.cli.fitting import Device, Workers
from vitrail.cli.options import Batch, Json, check_out
from vitrail.cli.probe import Weights
from vitrail.cli.screen import add, console, print_json, progress, table
from vitrail.errors import VitrailError, printable

if TYPE_CHECKING:
    from vitrail.data.sources.source import Source
    from vitrail.evaluate.search import Hit

MOST_DRAWN = 1000


def search(
    weights: Weights,
    source: Annotated[str, typer.Argument(metavar="DATA", help="Dataset to search: a folder, a file, or a known name.")],
    query: Annotated[Path, typer.Argument(metavar="QUERY", help="Query image.")],
    top: Annotated[int, typer.Option(metavar="N", min=1, rich_help_panel="Output", help="Number of images to return.")] = 10,
    split: Splits = None,
    sheet: Annotated[
        Path | None,
        typer.Option(
            "--contact-sheet",
            metavar="FILE.png",
            rich_help_panel="Output",
            help="Draw the query and the hits on a contact sheet.",
        ),
    ] = None,
    batch: Batch = 64,
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Find the images most similar to a query image, by the cosine similarity of their features."""
    check_splits(split)
    if sheet is not None:
        _check_sheet(sheet, source, query, top)

    from vitrail.evaluate.search import search as find
    from vitrail.models.device import device as chosen
    from vitrail.weights.load import load

    with progress() as tell:
        parts = opened(source, split, tell)
        model = load(weights).to(chosen(device))
        hits = find(model, parts, query, top, batch, workers, tell)
    if sheet is not None:
        _draw(sheet, query, parts, hits)
    if json:
        drawn = None if sheet is None else str(sheet)
        print_json(
            {
                "model": weights,
                "data": source,
                "query": str(query),
                "hits": [asdict(hit) for hit in hits],
                "contact_sheet": drawn,
            }
        )
        return
    rows = table("#rank", "#cosine", "image", "label", "split", title=printable(f"most similar to {query}"))
    for rank, hit in enumerate(hits, 1):
        add(rows, str(rank), f"{hit.similarity:.4f}", printable(hit.file), printable(hit.label or ""), hit.split)
    console().print(rows)
    if sheet is not None:
        typer.echo(f"contact sheet: {sheet}")


def _check_sheet(sheet: Path, source: str, query: Path, top: int) -> None:
    if sheet.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise VitrailError(f"--contact-sheet must end in .png or .jpg, got {sheet}; try {sheet.stem or 'similar'}.png")
    check_out(sheet, "--contact-sheet", source)
    if sheet.exists() and query.exists() and sheet.samefile(query):
        raise VitrailError(f"--contact-sheet must not be the query itself, got {sheet}; name another file")
    if top > MOST_DRAWN:
        raise VitrailError(f"--top must be at most {MOST_DRAWN} to be drawn, got {top}; leave out --contact-sheet")


def _draw(sheet: Path, query: Path, parts: "dict[str, Source]", hits: "list[Hit]") -> None:
    from vitrail.data.decode import as_picture, decode
    from vitrail.report.page import write_whole
    from vitrail.report.pictures import as_file
    from vitrail.report.pictures import sheet as arrange

    shown = [as_picture(parts[hit.split].content(hit.index)) for hit in hits]
    captions = [f"{hit.similarity:.3f} {hit.label or ''}".strip() for hit in hits]
    write_whole(sheet, as_file(arrange([decode(query), *shown], ["query", *captions]), sheet.suffix))
