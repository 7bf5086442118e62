"""``vitrail lab``: reproduce the paper's experiments at laptop scale, one command each."""

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
        str | None, typer.Argument(metavar="[NAME]", help="Experiment to run; without a name they are listed.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            rich_help_panel="Optimisation",
            help="Time budget in minutes for all training runs of the experiment; default: 20, or 180 for masked.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DATA", rich_help_panel="Data", help="Labelled dataset; default: the experiment's own."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            rich_help_panel="Optimisation",
            help="Train for a few steps only, as a smoke test; results are meaningless.",
        ),
    ] = False,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="WEIGHTS", rich_help_panel="Data", help="Checkpoint to compare with, if the experiment supports it."
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", rich_help_panel="Run", help="Folder for pages and results; finished training runs in it are reused."
        ),
    ] = Path("lab"),
    device: Device = "auto",
    threads: Threads = None,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Run an experiment of the paper and write a page that compares the results with the paper's."""
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
        raise _gone(f"{stop} of a training run", stop.code) from None
    except KeyboardInterrupt:  # between two training runs
        raise _gone("stopped", 130) from None
    _tell(told, folder, json, QUICKLY if quick and chosen.trains else "")


def _gone(why: str, code: int) -> typer.Exit:
    with suppress(OSError):  # the terminal may have been closed, which then stopped it
        typer.echo(f"{why}; the same command resumes from there", err=True)
    return typer.Exit(code)


def _check_out(out: Path, folder: Path) -> None:
    """Check before the work that the page and results can be written."""
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
    sheet = table("experiment", "question")
    for name in NAMES:
        add(sheet, name, experiment(name).title)
    screen = console()
    screen.print(sheet)
    screen.print("vitrail lab NAME runs one and writes its page; --quick is a smoke test of a few seconds")


def _tell(told: "Told", folder: Path, json: bool, warning: str) -> None:
    if json:
        quick = {"quick": bool(warning)}
        print_json({"summary": told.answer, "page": str(folder / "index.html"), **quick, **told.numbers})
        return
    screen = console()
    screen.print(told.answer)
    if warning:
        screen.print(warning)
    screen.print(f"page: {folder / 'index.html'}", soft_wrap=True)
