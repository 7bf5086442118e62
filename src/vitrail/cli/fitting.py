"""What every command that runs a recipe shares: its options, the run's folder, the table at the end."""

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

Out = Annotated[Path | None, typer.Option(metavar="DIR", help="The run's folder; one begun before goes on.")]
Show = Annotated[bool, typer.Option("--print", help="Print the whole recipe and stop.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Of the computation.")]
Workers = Annotated[int | None, typer.Option(min=0, help="Threads that read pictures.")]
Minutes = Annotated[float | None, typer.Option(metavar="N", help="Take as many steps as fit into so many minutes here.")]
FindLr = Annotated[bool, typer.Option("--find-lr", help="Find the learning rate by a range test first.")]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard's events into the run, too.")]


@dataclass(frozen=True)
class Asked:
    """How a recipe is to be run and told about."""

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
    """Print the recipe, or run it and tell what came of it."""
    from vitrail.config import to_json

    if asked.show:
        if asked.minutes is not None or asked.find_lr:
            raise VitrailError("--print does not run what --minutes and --find-lr are found out by; leave them out")
        if os.environ.get("RANK", "0") == "0":
            typer.echo(to_json(recipe))
        return

    from vitrail.train.team import joined

    if asked.out is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")):
        raise VitrailError(
            "a run that torchrun may start again needs a folder by name, so that it finds itself; try --out runs/mine"
        )
    with joined() as team:
        result = _fitted(recipe, asked, team)
    if not team.first:
        return
    if asked.json:
        print_json(result)
    else:
        _tell(result)


def given(data: str, model: str | None, image: tuple[int, int] | None, labelled: bool = True) -> "Given":
    """What a recipe has to know of the data."""
    import numpy as np

    from vitrail.data.sources.open import pictures
    from vitrail.data.view import known_sizes
    from vitrail.recipes.given import Given

    with _in_turn(), progress() as tell:
        opened = pictures(data, labelled=labelled, progress=tell)
    if not len(opened.train):
        raise VitrailError(f"{data} has no pictures to train on; name a folder with train/{'CLASS/' if labelled else ''}*.jpg")
    sizes = known_sizes(opened.train, np.arange(len(opened.train)))
    alike = sizes is not None and bool((sizes == sizes[0]).all())
    whole = (int(sizes[0, 0]), int(sizes[0, 1])) if sizes is not None and alike else None
    pixels = opened.train.content(0) if alike else None
    channels = pixels.shape[2] if isinstance(pixels, np.ndarray) else 3
    return Given(data, len(opened.train), len(opened.names), whole, channels, model, image, names=tuple(opened.names))


@contextmanager
def _in_turn() -> Iterator[None]:
    """Of several processes the first one of each host reads or downloads what the others then find."""
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
    drawn = report.is_file() and (folder / "result.json").is_file()  # of a finished run, whose data may be others by now
    quiet = asked.json or not team.first
    with Board(folder) if asked.tensorboard and team.first else nullcontext(Silent()) as board, Screen(recipe, quiet) as screen:
        try:
            machine = Machine(asked.device, asked.threads, asked.workers)
            result = fit(recipe, folder, machine, Several(screen, board), Wishes(asked.minutes, asked.find_lr))
        except Stopped as stop:
            named = "" if asked.out else f" with --out {folder}"
            with suppress(OSError):  # the terminal may be gone, which is then why
                if team.first:
                    typer.echo(f"{stop}; the same command{named} goes on from there", err=True)
            raise typer.Exit(stop.code) from None
    if not drawn and team.first:
        write_whole(report, run_page(folder).encode())
    return {**result, "report": str(report)}


def _unused(wished: Path) -> Path:
    """runs/demo, then runs/demo-2 ...: a run of another time is never written over; one that was stopped is named by --out."""
    number, folder = 1, wished
    while folder.exists():
        number += 1
        folder = wished.with_name(f"{wished.name}-{number}")
    return folder


def _tell(result: dict[str, Any]) -> None:
    split = result["reported_on"]
    sheet = table("what", "#value")
    for name, value in result[split].items():
        add(sheet, f"{split} {name}", shown(name, value))
    on = result.get("chosen_on", "validation")  # of an older run
    for name, value in result["best"].items():
        if name != "step":
            add(sheet, f"best {on} {name}, at step {result['best']['step']}", shown(name, value))
    add(sheet, "seconds of training", f"{result['seconds']:,.0f}")
    add(sheet, "pictures a second", f"{result['images_per_second']:,.0f}")
    screen = console()
    screen.print(sheet)
    screen.print(f"model: {result['run']}/best", soft_wrap=True)
    screen.print(f"report: {result['report']}", soft_wrap=True)
