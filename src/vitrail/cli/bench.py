"""``vitrail bench``: how fast it is, as ratios against the libraries people know, taken in turns in one process."""

from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.options import Json
from vitrail.cli.screen import add, console, print_json, progress, table
from vitrail.errors import VitrailError

bench = typer.Typer(name="bench", help="Measure speed against other libraries.", no_args_is_help=True)


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


@bench.command()
def train(
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each; the best counts.")] = 10,
    shape: Annotated[list[str] | None, typer.Option(help="demo, small or s16 alone; repeatable.")] = None,
    compiled: Annotated[bool, typer.Option("--compiled", help="Also measure ours compiled, a minute more.")] = False,
    json: Json = False,
) -> None:
    """Pictures a second of a training step, against timm, transformers and vit-pytorch in their usual eager step."""
    from vitrail.bench.train import shapes, train_speed

    known = shapes()
    for name in shape or ():
        if name not in known:
            raise VitrailError(f"--shape must be one of {', '.join(known)}, got {name!r}")
    with progress() as tell:
        speed = train_speed(rounds, compiled, tuple(shape) if shape else None, tell)
    if json:
        print_json(vars(speed))
        return
    title = f"{speed.threads} threads, peak {speed.gigaflops:,.0f} GFLOP/s, best of {speed.rounds}"
    sheet = table("shape", "step", "#pictures a second", "#of the best peer", "#of the peak", title=title)
    for name, ours in speed.ours.items():
        best = max(speed.peers[name].values(), default=0.0)
        per_picture = speed.gemm_share[name] / ours["vitrail"]
        for who, rate in {**ours, **speed.peers[name]}.items():
            ratio = f"{rate / best:.2f} x" if best else ""
            add(sheet, name, who, f"{rate:,.1f}", ratio, f"{rate * per_picture:.0%}")
    console().print(sheet)


@bench.command()
def recipe(
    steps: Annotated[int | None, typer.Option(min=1, help="Of the demo, instead of its own; fewer are a quick look.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns in which a step is timed; the best counts.")] = 10,
    json: Json = False,
) -> None:
    """Time to the accuracy that timm's ViT of the demo's size reaches in the demo's time, on the embedded pictures."""
    from dataclasses import asdict

    from vitrail.bench.recipe import recipe_speed

    with progress() as tell:
        speed = recipe_speed(steps, rounds, tell)
    if json:
        print_json(asdict(speed))
        return
    sheet = table("run", "#learning rate", "#steps", "#seconds", "#test pictures", title="the same model, data and machine")
    for name, runs in (("timm, AdamW", speed.peer), ("ours", speed.ours)):
        for run in runs:
            add(sheet, name, f"{run.lr:g}", f"{run.steps:,}", f"{run.seconds:,.1f}", f"{run.accuracy:.2%}")
    screen = console()
    screen.print(sheet)
    if speed.ratio is None:
        screen.print(f"ours does not reach {speed.accuracy:.2%} in {speed.peer_seconds:,.1f} s")
    else:
        times = f"{speed.ours_seconds:,.1f} s instead of {speed.peer_seconds:,.1f} s"
        screen.print(f"to {speed.accuracy:.2%}: {times}, {speed.ratio:.2f} of the time")
