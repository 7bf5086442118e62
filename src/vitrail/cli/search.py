"""``vitrail search``: find the images most similar to a query image."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.console import add_row, make_console, make_table, print_json, progress_bars
from vitrail.cli.embed import SplitsOption, check_splits, open_splits
from vitrail.cli.options import BatchOption, JsonOption, ModelArgument, check_output_file
from vitrail.cli.panels import output_option
from vitrail.cli.run_recipe import DeviceOption, WorkersOption
from vitrail.errors import VitrailError, printable

if TYPE_CHECKING:
    from vitrail.data.sources.dataset import Dataset
    from vitrail.inference.search import SearchHit

MAX_SHEET_IMAGES = 1000


def search(
    model: ModelArgument,
    source: Annotated[
        str, typer.Argument(metavar="DATA", help="Dataset to search: a folder, a file, or a name such as fashion or cifar10.")
    ],
    query: Annotated[Path, typer.Argument(metavar="QUERY", help="Query image.")],
    top: Annotated[int, output_option(metavar="N", min=1, help="Number of images to return.")] = 10,
    split: SplitsOption = None,
    contact_sheet_path: Annotated[
        Path | None,
        output_option("--contact-sheet", metavar="FILE.png", help="Draw the query and the hits on a contact sheet."),
    ] = None,
    batch: BatchOption = 64,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Find the images most similar to a query image, by the cosine similarity of their features."""
    check_splits(split)
    if contact_sheet_path is not None:
        _check_contact_sheet(contact_sheet_path, source, query, top)

    from vitrail.inference.load import load_predictor
    from vitrail.inference.search import search as search_images

    with progress_bars() as on_progress:
        splits = open_splits(source, split, on_progress)
        predictor = load_predictor(model, device=device)
        hits = search_images(predictor, splits, query, top, batch, workers, on_progress)
    if contact_sheet_path is not None:
        _draw_contact_sheet(contact_sheet_path, query, splits, hits)
    if json:
        sheet_name = None if contact_sheet_path is None else str(contact_sheet_path)
        print_json(
            {
                "model": model,
                "data": source,
                "query": str(query),
                "hits": [asdict(hit) for hit in hits],
                "contact_sheet": sheet_name,
            }
        )
        return
    rows = make_table("#rank", "#cosine", "image", "label", "split", title=printable(f"most similar to {query}"))
    for rank, hit in enumerate(hits, 1):
        add_row(rows, str(rank), f"{hit.similarity:.4f}", printable(hit.file), printable(hit.label or ""), hit.split)
    make_console().print(rows)
    if contact_sheet_path is not None:
        typer.echo(f"contact sheet: {contact_sheet_path}")


def _check_contact_sheet(path: Path, source: str, query: Path, top: int) -> None:
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise VitrailError(f"--contact-sheet must end in .png or .jpg, got {path}; try {path.stem or 'similar'}.png")
    check_output_file(path, "--contact-sheet", source)
    if path.exists() and query.exists() and path.samefile(query):
        raise VitrailError(f"--contact-sheet must not be the query itself, got {path}; name another file")
    if top > MAX_SHEET_IMAGES:
        raise VitrailError(f"--top must be at most {MAX_SHEET_IMAGES} to be drawn, got {top}; leave out --contact-sheet")


def _draw_contact_sheet(path: Path, query: Path, splits: "dict[str, Dataset]", hits: "list[SearchHit]") -> None:
    from vitrail.data.band_view import to_view
    from vitrail.io import atomic_write
    from vitrail.report.contact_sheet import contact_sheet, encode_image

    images = [to_view(splits[hit.split].read(hit.index)) for hit in hits]
    captions = [f"{hit.similarity:.3f} {hit.label or ''}".strip() for hit in hits]
    atomic_write(path, encode_image(contact_sheet([to_view(query.read_bytes()), *images], ["query", *captions]), path.suffix))
