"""What every command that runs a recipe shares: the run's folder, the plan, the live bar, the table at the end."""

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.screen import add, console, duration, print_json, progress, si, size, table
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.recipes.given import Given
    from vitrail.train.recipe import Recipe

EVERY = 5.0  # seconds between two lines where there is no terminal

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
        typer.echo(to_json(recipe))
        return
    result = _fitted(recipe, asked)
    if asked.json:
        print_json(result)
    else:
        _tell(result)


def given(data: str, model: str | None, image: tuple[int, int] | None) -> "Given":
    """What a recipe has to know of the data."""
    import numpy as np

    from vitrail.data.sources.open import pictures
    from vitrail.data.view import known_sizes
    from vitrail.recipes.given import Given

    with progress() as tell:
        opened = pictures(data, progress=tell)
    if not len(opened.train):
        raise VitrailError(f"{data} has no pictures to train on; name a folder with train/CLASS/*.jpg")
    first = np.arange(1)
    sizes = known_sizes(opened.train, first)
    pixels = opened.train.content(0) if sizes is not None else None
    channels = pixels.shape[2] if isinstance(pixels, np.ndarray) else 3
    whole = None if sizes is None else (int(sizes[0, 0]), int(sizes[0, 1]))
    return Given(data, len(opened.train), len(opened.names), whole, channels, model, image, names=tuple(opened.names))


def _fitted(recipe: "Recipe", asked: Asked) -> dict[str, Any]:
    from vitrail.report.page import write_whole
    from vitrail.report.run import run_page
    from vitrail.train.board import Board
    from vitrail.train.loop import Machine, fit
    from vitrail.train.settle import Wishes
    from vitrail.train.signals import Stopped
    from vitrail.train.watch import Several, Silent

    folder = asked.out or _unused(Path("runs") / recipe.name)
    with Board(folder) if asked.tensorboard else nullcontext(Silent()) as board, _Screen(recipe, asked.json) as screen:
        try:
            machine = Machine(asked.device, asked.threads, asked.workers)
            result = fit(recipe, folder, machine, Several(screen, board), Wishes(asked.minutes, asked.find_lr))
        except Stopped as stop:
            typer.echo(str(stop), err=True)
            raise typer.Exit(stop.code) from None
    report = folder / "report.html"
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
        add(sheet, f"{split} {name}", f"{value:.2%}" if name.startswith("top") else f"{value:.4f}")
    add(sheet, f"best validation top1, at step {result['best']['step']}", f"{result['best']['top1']:.2%}")
    add(sheet, "seconds of training", f"{result['seconds']:,.0f}")
    add(sheet, "pictures a second", f"{result['images_per_second']:,.0f}")
    screen = console()
    screen.print(sheet)
    screen.print(f"model: {result['run']}/best", soft_wrap=True)
    screen.print(f"report: {result['report']}", soft_wrap=True)


class _Screen:
    """A plan, then a live bar on a terminal, or plain lines elsewhere. Quacks as the loop's watcher."""

    def __init__(self, recipe: "Recipe", quiet: bool) -> None:
        self.recipe, self.quiet, self.curious = recipe, quiet, not quiet
        self.progress: Callable[[str, int, int | None], None] | None = None
        self.numbers: dict[str, float] = {}
        self.score = ""
        self.said_at = 0.0
        self.began: tuple[float, int] | None = None
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self) -> "_Screen":
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        live = sys.stderr.isatty() and not self.quiet
        words = TextColumn("{task.description}")
        columns = (TextColumn("step"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), words)
        self.bar = Progress(*columns, console=Console(stderr=True, markup=False), transient=True, disable=not live)
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def planned(self, recipe: "Recipe", data: Any, model: Any, state: Any, seconds: float | None) -> None:
        from vitrail.models.cost import cost

        self.recipe = recipe  # its steps and learning rate may have been found out since
        self.task = self.bar.add_task("", total=recipe.steps, completed=state.step)
        known = cost(model.config, state.micro or recipe.batch)
        epochs = recipe.steps * recipe.batch / max(len(data.train), 1)
        counts = ", ".join(f"{len(part):,} {split}" for split, part in data.splits.items())
        self.said(f"data      {data.name}: {counts}; {len(data.names)} classes")
        for note in data.notes:
            self.said(f"          {note}")
        work = f"{si(known.macs, 'MACs')} a picture, about {size(known.memory.training)} to train"
        self.said(f"model     {known.parameters:,} parameters, {work}")
        amount = f"{recipe.steps:,} steps of {recipe.batch} pictures, {epochs:.1f} epochs"
        self.said(f"recipe    {recipe.name}: {amount}, {recipe.optim.kind}, lr {recipe.optim.lr:g}")
        if state.micro is not None and state.micro < recipe.batch:
            self.said(f"          {state.micro} pictures at a time, as memory allows")
        if seconds is not None:
            self.said(f"time      about {duration(seconds)} from here")

    def stepped(self, step: int, numbers: dict[str, float]) -> None:
        now = time.perf_counter()
        self.began = self.began or (now, step)  # the first step warms up
        done = step - self.began[1]
        speed = f"  {done * self.recipe.batch / (now - self.began[0]):,.0f} pictures/s" if done else ""
        text = f"loss {numbers['loss']:.3f}  {numbers['accuracy']:.1%}{speed}{self.score}"
        self.bar.update(self.task, completed=step, description=text)
        if self.bar.disable and not self.quiet and now - self.said_at > EVERY:
            self.said_at = now
            self.said(f"step {step:,} of {self.recipe.steps:,}  {text}")

    def evaluated(self, step: int, scores: dict[str, float], best: bool) -> None:
        self.score = f"  validation {scores['top1']:.2%}"
        self.said(f"step {step:,}: validation {scores['top1']:.2%}, loss {scores['loss']:.4f}{' (best)' if best else ''}")

    def said(self, sentence: str) -> None:
        if not self.quiet:
            self.bar.console.print(sentence, soft_wrap=True, highlight=False)
