"""``vitrail models``: published models that can be loaded by name."""

import sys
from typing import Annotated

from vitrail.cli.console import add_row, format_si, make_console, make_table, print_json
from vitrail.cli.options import JsonOption
from vitrail.cli.panels import output_option
from vitrail.errors import VitrailError
from vitrail.weights.catalogue import CATALOGUE, model_row, search_models


def models(
    filter: Annotated[
        str | None,
        output_option(
            metavar="TEXT",
            help="List only models with these words in their name, repository, training data or licence.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List published models by name: parameters, MACs, image size, licence, training data and hub repository."""
    rows = [model_row(model) for model in search_models(filter)]
    if not rows:
        raise VitrailError(
            f"--filter must match one of the {len(CATALOGUE)} published models, got {filter!r}; try --filter dinov2"
        )
    if json:
        print_json({"models": rows})
        return
    sheet = make_table("name", "#parameters", "#GMACs", "#image", "licence", "trained on", "repository")
    for row in rows:
        numbers = (format_si(row["parameters"], ""), f"{row['macs'] / 1e9:,.1f}", str(row["image"]))
        add_row(sheet, row["name"], *numbers, row["licence"], row["trained_on"], row["repository"])
    screen = make_console()
    if not sys.stdout.isatty():
        screen.width = 200  # a model per line, for grep
    screen.print(sheet)
    screen.print(
        f"{len(rows)} models, with the licences of their authors, which the repositories hold in full; "
        f"fine-tune one: vitrail finetune {rows[0]['name']} photos",
        soft_wrap=True,
    )
