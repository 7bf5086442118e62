"""``vitrail lab``: reproduce the paper's experiments at laptop scale, one command each."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.console import add_row, make_console, make_table, print_json, progress_bars
from vitrail.cli.options import JsonOption
from vitrail.cli.panels import data_option, optimisation_option, run_option
from vitrail.cli.run_recipe import DeviceOption, ThreadsOption, WorkersOption
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.lab.experiment import ExperimentResult


def lab(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Experiment to run; without a name they are listed.")
    ] = None,
    minutes: Annotated[
        float | None,
        optimisation_option(
            metavar="N", help="Time budget in minutes for all training runs of the experiment; default: 20, or 180 for masked."
        ),
    ] = None,
    data: Annotated[str | None, data_option(metavar="DATA", help="Labelled dataset; default: the experiment's own.")] = None,
    quick: Annotated[
        bool, optimisation_option("--quick", help="Train for a few steps only, as a smoke test; results are meaningless.")
    ] = False,
    weights: Annotated[
        str | None, data_option(metavar="WEIGHTS", help="Checkpoint to compare with, if the experiment supports it.")
    ] = None,
    out: Annotated[
        Path, run_option(metavar="DIR", help="Folder for pages and results; finished training runs in it are reused.")
    ] = Path("lab"),
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Run an experiment of the paper and write a page that compares the results with the paper's."""
    if name is None:
        _list_experiments(json)
        return
    if minutes is not None and not 0 < minutes < 1e6:
        raise VitrailError(f"--minutes must be above 0, got {minutes:g}; try --minutes 20")

    from vitrail.lab.experiment import ExperimentOptions
    from vitrail.lab.registry import get_experiment
    from vitrail.lab.runner import QUICK_NOTE, run_experiment
    from vitrail.training.signals import TrainingStopped
    from vitrail.training.trainer import Hardware

    selected = get_experiment(name)
    options = ExperimentOptions(selected.data if data is None else data, quick, weights)
    folder = out / (f"{name}-quick" if quick else name)
    _check_writable(out, folder)
    try:
        with progress_bars() as on_progress:
            result = run_experiment(selected, options, folder, minutes, Hardware(device, threads, workers), on_progress)
    except TrainingStopped as stop:
        raise _stopped_exit(f"{stop} of a training run", stop.code) from None
    except KeyboardInterrupt:  # between two training runs
        raise _stopped_exit("stopped", 130) from None
    _print_result(result, folder, json, QUICK_NOTE if quick and selected.trains else "")


def _stopped_exit(reason: str, code: int) -> typer.Exit:
    with suppress(OSError):  # the terminal may have been closed, which then stopped it
        typer.echo(f"{reason}; the same command resumes from there", err=True)
    return typer.Exit(code)


def _check_writable(out: Path, folder: Path) -> None:
    """Check before the work that the page and results can be written."""
    file = next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)
    if file is not None:
        raise VitrailError(f"--out must be a folder, got {out}, and {file} is a file; try --out lab")
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise VitrailError(f"--out must be a folder that can be written, got {out}; try --out lab")


def _list_experiments(json: bool) -> None:
    from vitrail.lab.registry import NAMES, get_experiment

    if json:
        print_json({name: {"title": get_experiment(name).title, "data": get_experiment(name).data} for name in NAMES})
        return
    sheet = make_table("experiment", "question")
    for name in NAMES:
        add_row(sheet, name, get_experiment(name).title)
    screen = make_console()
    screen.print(sheet)
    screen.print("vitrail lab NAME runs one and writes its page; --quick is a smoke test of a few seconds")


def _print_result(result: "ExperimentResult", folder: Path, json: bool, warning: str) -> None:
    if json:
        quick = {"quick": bool(warning)}
        print_json({"summary": result.summary, "page": str(folder / "index.html"), **quick, **result.numbers})
        return
    screen = make_console()
    screen.print(result.summary)
    if warning:
        screen.print(warning)
    screen.print(f"page: {folder / 'index.html'}", soft_wrap=True)
