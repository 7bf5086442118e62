"""``vitrail bench``: how fast it is, as ratios against the libraries people know, taken in turns in one process."""

from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.options import Json
from vitrail.cli.screen import add, console, print_json, progress, table

bench = typer.Typer(name="bench", help="Measure speed against other libraries.", no_args_is_help=True)


@bench.callback()
def _several() -> None:
    """Keeps the group a group while it has one command."""


@bench.command()
def data(
    folder: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="JPEGs in a folder a class; else drawn ones.")
    ] = None,
    count: Annotated[int, typer.Option(min=32, help="Pictures to read.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each; the best counts.")] = 5,
    json: Json = False,
) -> None:
    """Pictures a second on one core from files, from a pack and from small pictures in memory, against torchvision v2."""
    from vitrail.bench.data import data_speed

    with progress() as tell:
        speed = data_speed(folder, count, rounds, tell)
    if json:
        print_json(vars(speed))
        return
    title = f"one core, {speed.pictures} pictures, best of {speed.rounds}"
    sheet = table("path", "#pictures a second", "#torchvision", "#ratio", title=title)
    theirs = speed.peers.get("torchvision", {})
    for path, against in (("files", "files"), ("pack", "files"), ("small", "small"), ("small_inception", "small_inception")):
        mine, other = speed.ours[path], theirs.get(against)
        add(
            sheet, path, f"{mine:,.0f}", f"{other:,.0f}" if other else "not installed", f"{mine / other:.2f} x" if other else ""
        )
    console().print(sheet)
