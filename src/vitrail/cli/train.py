"""``vitrail train``: from pictures to a model, a report and a run that can be gone on with."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.options import Json, Settings, pair
from vitrail.cli.screen import add, console, print_json, progress, si, size, table
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.recipes.given import Given
    from vitrail.train.recipe import Recipe

EVERY = 5.0  # seconds between two lines where there is no terminal


def train(
    data: Annotated[str, typer.Argument(metavar="[DATA]", help="A folder of pictures or any other data set.")] = "fashion",
    recipe: Annotated[str | None, typer.Option(help="demo, small, plain, augreg, textbook, resnet, paper-...")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Such as S/16, where the recipe leaves it open.")] = None,
    image: Annotated[str | None, typer.Option(metavar="H[xW]", help="Height and width of the pictures.")] = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The run's folder; one begun before goes on.")] = None,
    again: Annotated[Path | None, typer.Option(metavar="recipe.json", help="A run's recipe, to run it once more.")] = None,
    show: Annotated[bool, typer.Option("--print", help="Print the whole recipe and stop.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="Of the computation.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Threads that read pictures.")] = None,
    json: Json = False,
) -> None:
    """Train a Vision Transformer on your pictures, or without an argument on the embedded ones in a few minutes."""
    from vitrail.config import to_json

    if again is not None:
        chosen = _noted(again, settings or [])
    else:
        with progress() as tell:
            given = _given(data, model, pair(image, "--image") if image else None, tell)
        chosen = _recipe(recipe or ("demo" if data == "fashion" else "small"), given, settings or [])
    if show:
        typer.echo(to_json(chosen))
        return
    result = _fitted(chosen, out, device, threads, workers, quiet=json)
    if json:
        print_json(result)
    else:
        _tell(result)


def _recipe(name: str, given: "Given", settings: list[str]) -> "Recipe":
    from vitrail.config import override
    from vitrail.recipes.book import recipe

    return override(recipe(name, given), settings)


def _noted(path: Path, settings: list[str]) -> "Recipe":
    from vitrail.config import from_json, override
    from vitrail.train.recipe import Recipe

    if not path.is_file():
        raise VitrailError(f"--again must be a recipe.json, got {path}; a run's folder has one")
    return override(from_json(Recipe, path.read_text()), settings)


def _given(data: str, model: str | None, image: tuple[int, int] | None, tell: Any) -> "Given":
    """What the recipe has to know of the data."""
    import numpy as np

    from vitrail.data.sources.open import pictures
    from vitrail.data.view import known_sizes
    from vitrail.recipes.given import Given

    opened = pictures(data, progress=tell)
    if not len(opened.train):
        raise VitrailError(f"{data} has no pictures to train on; name a folder with train/CLASS/*.jpg")
    first = np.arange(1)
    sizes = known_sizes(opened.train, first)
    pixels = opened.train.content(0) if sizes is not None else None
    channels = pixels.shape[2] if isinstance(pixels, np.ndarray) else 3
    whole = None if sizes is None else (int(sizes[0, 0]), int(sizes[0, 1]))
    return Given(data, len(opened.train), len(opened.names), whole, channels, model, image)


def _fitted(
    recipe: "Recipe", out: Path | None, device: str, threads: int | None, workers: int | None, quiet: bool
) -> dict[str, Any]:
    from vitrail.report.page import write_whole
    from vitrail.report.run import run_page
    from vitrail.train.loop import Machine, fit
    from vitrail.train.signals import Stopped

    folder = out or _unused(Path("runs") / recipe.name)
    with _Screen(recipe, quiet) as screen:
        try:
            result = fit(recipe, folder, Machine(device, threads, workers), screen)
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
        self.recipe, self.quiet = recipe, quiet
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

    def planned(self, recipe: "Recipe", data: Any, model: Any, state: Any) -> None:
        from vitrail.models.cost import cost

        self.task = self.bar.add_task("", total=recipe.steps, completed=state.step)
        known = cost(model.config, recipe.micro or recipe.batch)
        epochs = recipe.steps * recipe.batch / max(len(data.train), 1)
        counts = ", ".join(f"{len(part):,} {split}" for split, part in data.splits.items())
        self.said(f"data      {data.name}: {counts}; {len(data.names)} classes")
        for note in data.notes:
            self.said(f"          {note}")
        work = f"{si(known.macs, 'MACs')} a picture, about {size(known.memory.training)} to train"
        self.said(f"model     {known.parameters:,} parameters, {work}")
        amount = f"{recipe.steps:,} steps of {recipe.batch} pictures, {epochs:.1f} epochs"
        self.said(f"recipe    {recipe.name}: {amount}, {recipe.optim.kind}")

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
