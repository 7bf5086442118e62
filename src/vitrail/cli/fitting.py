"""Options, run folder and final table that the commands running a recipe share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.live import Screen, shown
from vitrail.cli.screen import add, console, print_json, progress, table
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.recipes.given import Given
    from vitrail.train.recipe import Recipe
    from vitrail.train.team import Team

ImageSize = Annotated[
    str | None,
    typer.Option("--image", metavar="H[xW]", rich_help_panel="Data", help="Height and width of the input images in pixels."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        rich_help_panel="Optimisation",
        help="Override a field of the recipe, such as steps=1000 or optim.lr=1e-3; repeatable.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", rich_help_panel="Run", help="Run folder; an interrupted run in it is resumed."),
]
Show = Annotated[bool, typer.Option("--print-recipe", rich_help_panel="Run", help="Print the full recipe and exit.")]
Device = Annotated[str, typer.Option(rich_help_panel="Run", help="Device to compute on: auto, cpu, cuda, cuda:1 or mps.")]
Threads = Annotated[int | None, typer.Option(min=1, rich_help_panel="Run", help="Number of CPU threads for compute.")]
Workers = Annotated[
    int | None, typer.Option(min=0, rich_help_panel="Run", help="Number of threads that load and decode images.")
]
Minutes = Annotated[
    float | None,
    typer.Option(
        metavar="N", rich_help_panel="Optimisation", help="Train for as many steps as fit into N minutes on this machine."
    ),
]
FindLr = Annotated[
    bool,
    typer.Option("--find-lr", rich_help_panel="Optimisation", help="Choose the learning rate by an LR range test first."),
]
Tensorboard = Annotated[
    bool, typer.Option("--tensorboard", rich_help_panel="Run", help="Also write TensorBoard event files into the run.")
]


@dataclass(frozen=True)
class Asked:
    """Options for how a recipe is run and reported."""

    out: Path | None
    show: bool
    device: str
    threads: int | None
    workers: int | None
    json: bool
    tensorboard: bool = False
    minutes: float | None = None
    find_lr: bool = False


def carry_out(recipe: "Recipe", asked: Asked) -> None:
    """Print the recipe, or run it and print the result."""
    from vitrail.config import to_json

    if asked.show:
        if asked.minutes is not None or asked.find_lr:
            raise VitrailError("--print-recipe runs nothing, and --minutes and --find-lr need measurements; leave them out")
        if os.environ.get("RANK", "0") == "0":
            typer.echo(to_json(recipe))
        return

    from vitrail.train.team import joined

    if asked.out is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")):
        raise VitrailError("a run that torchrun may restart needs a named folder to resume from; try --out runs/mine")
    with joined() as team:
        result = _fitted(recipe, asked, team)
    if not team.first:
        return
    if asked.json:
        print_json(result)
    else:
        _tell(result)


def given(data: str, model: str | None, image: tuple[int, int] | None, labelled: bool = True) -> "Given":
    """Open the dataset and return what a recipe needs to know about it."""
    import numpy as np

    from vitrail.data.sources.open import pictures
    from vitrail.data.view import known_sizes
    from vitrail.recipes.given import Given

    with _in_turn(), progress() as tell:
        opened = pictures(data, labelled=labelled, progress=tell)
    if not len(opened.train):
        raise VitrailError(f"{data} has no training images; name a folder with train/{'CLASS/' if labelled else ''}*.jpg")
    sizes = known_sizes(opened.train, np.arange(len(opened.train)))
    alike = sizes is not None and bool((sizes == sizes[0]).all())
    whole = (int(sizes[0, 0]), int(sizes[0, 1])) if sizes is not None and alike else None
    pixels = opened.train.content(0) if alike else None
    channels = pixels.shape[2] if isinstance(pixels, np.ndarray) else 3
    return Given(data, len(opened.train), len(opened.names), whole, channels, model, image, names=tuple(opened.names))


@contextmanager
def _in_turn() -> Iterator[None]:
    """Let the first process of each node read or download the data before the others."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield
        return
    from vitrail.train.team import joined

    with joined() as team, team.in_turn():
        yield


def _fitted(recipe: "Recipe", asked: Asked, team: "Team") -> dict[str, Any]:
    from vitrail.report.page import write_whole
    from vitrail.report.run import run_page
    from vitrail.train.board import Board
    from vitrail.train.loop import Machine, fit
    from vitrail.train.settle import Wishes
    from vitrail.train.signals import Stopped
    from vitrail.train.watch import Several, Silent

    folder = asked.out or Path(team.told(lambda: str(_unused(Path("runs") / recipe.name))))
    report = folder / "report.html"
    drawn = report.is_file() and (folder / "result.json").is_file()  # of a finished run, whose dataset may have changed since
    quiet = asked.json or not team.first
    with Board(folder) if asked.tensorboard and team.first else nullcontext(Silent()) as board, Screen(recipe, quiet) as screen:
        try:
            machine = Machine(asked.device, asked.threads, asked.workers)
            result = fit(recipe, folder, machine, Several(screen, board), Wishes(asked.minutes, asked.find_lr))
        except Stopped as stop:
            named = "" if asked.out else f" with --out {folder}"
            with suppress(OSError):  # the terminal may have been closed, which then stopped it
                if team.first:
                    typer.echo(f"{stop}; the same command{named} resumes from there", err=True)
            raise typer.Exit(stop.code) from None
    if not drawn and team.first:
        write_whole(report, run_page(folder).encode())
    return {**result, "report": str(report)}


def _unused(wished: Path) -> Path:
    """Return runs/demo, else runs/demo-2 ...: an earlier run is never overwritten; --out resumes one that was stopped."""
    number, folder = 1, wished
    while folder.exists():
        number += 1
        folder = wished.with_name(f"{wished.name}-{number}")
    return folder


def _tell(result: dict[str, Any]) -> None:
    split = result["reported_on"]
    sheet = table("metric", "#value")
    for name, value in result[split].items():
        add(sheet, f"{split} {name}", shown(name, value))
    on = result.get("selected_on", "validation")  # missing in older runs
    for name, value in result["best"].items():
        if name != "step":
            add(sheet, f"best {on} {name}, at step {result['best']['step']}", shown(name, value))
    add(sheet, "training time in seconds", f"{result['seconds']:,.0f}")
    add(sheet, "images per second", f"{result['images_per_second']:,.0f}")
    screen = console()
    screen.print(sheet)
    screen.print(f"model: {result['run']}/best", soft_wrap=True)
    screen.print(f"report: {result['report']}", soft_wrap=True)
