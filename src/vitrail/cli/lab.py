"""``vitrail lab``: every table and figure of the paper as one command, on a machine that people have."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.fitting import Device, Threads, Workers
from vitrail.cli.options import Json
from vitrail.cli.screen import add, console, print_json, progress, table
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.lab.experiment import Told


def lab(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The experiment; without a name they are listed.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(metavar="N", help="For all trainings of the experiment together: 20, and 180 for masked.")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="DATA", help="Pictures with labels; else the experiment's own.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few steps, to see that it works; the numbers mean nothing.")
    ] = False,
    weights: Annotated[
        str | None, typer.Option(metavar="WEIGHTS", help="A checkpoint to look at beside, where the experiment can.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where pages and results lie; what is there already is not done again.")
    ] = Path("lab"),
    device: Device = "auto",
    threads: Threads = None,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Run an experiment of the paper, and write a page with our numbers beside the paper's."""
    if name is None:
        _list(json)
        return
    if minutes is not None and not 0 < minutes < 1e6:
        raise VitrailError(f"--minutes must be above 0, got {minutes:g}; try --minutes 20")

    from vitrail.lab.book import experiment
    from vitrail.lab.experiment import Asked
    from vitrail.lab.run import QUICKLY, carried_out
    from vitrail.train.loop import Machine
    from vitrail.train.signals import Stopped

    chosen = experiment(name)
    asked = Asked(chosen.data if data is None else data, quick, weights)
    folder = out / (f"{name}-quick" if quick else name)
    _check_out(out, folder)
    try:
        with progress() as tell:
            told = carried_out(chosen, asked, folder, minutes, Machine(device, threads, workers), tell)
    except Stopped as stop:
        raise _gone(f"{stop} of a training", stop.code) from None
    except KeyboardInterrupt:  # between two trainings
        raise _gone("stopped", 130) from None
    _tell(told, folder, json, QUICKLY if quick and chosen.trains else "")


def _gone(why: str, code: int) -> typer.Exit:
    with suppress(OSError):  # the terminal may be gone, which is then why
        typer.echo(f"{why}; the same command goes on from there", err=True)
    return typer.Exit(code)


def _check_out(out: Path, folder: Path) -> None:
    """Before the work: a page and results can lie there."""
    wrong = next((place for place in (folder, *folder.parents) if place.exists() and not place.is_dir()), None)
    if wrong is not None:
        raise VitrailError(f"--out must be a folder, got {out}, and {wrong} is a file; try --out lab")
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise VitrailError(f"--out must be a folder that can be written, got {out}; try --out lab")


def _list(json: bool) -> None:
    from vitrail.lab.book import NAMES, experiment

    if json:
        print_json({name: {"title": experiment(name).title, "data": experiment(name).data} for name in NAMES})
        return
    sheet = table("experiment", "what")
    for name in NAMES:
        add(sheet, name, experiment(name).title)
    screen = console()
    screen.print(sheet)
    screen.print("vitrail lab NAME runs one and writes its page; with --quick in seconds, to see that it works")


def _tell(told: "Told", folder: Path, json: bool, warning: str) -> None:
    if json:
        quick = {"quick": bool(warning)}
        print_json({"answer": told.answer, "page": str(folder / "index.html"), **quick, **told.numbers})
        return
    screen = console()
    screen.print(told.answer)
    if warning:
        screen.print(warning)
    screen.print(f"page: {folder / 'index.html'}", soft_wrap=True)
