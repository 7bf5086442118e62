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


@bench.command()
def finetune(
    weights: Annotated[str, typer.Argument(metavar="WEIGHTS", help="Of a plain Vision Transformer, in any format.")],
    folder: Annotated[str, typer.Argument(metavar="DATA", help="Pictures with train, validation and test parts.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each, with other chance.")] = 3,
    steps: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's own; fewer are a quick look.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns in which a step is timed; the best counts.")] = 5,
    json: Json = False,
) -> None:
    """Fine-tuning against timm's model from the same weights with AdamW in the same time, and against a linear probe."""
    from dataclasses import asdict

    from vitrail.bench.finetune import finetune_speed

    with progress() as tell:
        speed = finetune_speed(weights, folder, seeds, steps, rounds, tell)
    if json:
        print_json(asdict(speed))
        return
    screen, sides = console(), {"ours": speed.ours, "timm, AdamW": speed.peer}
    sheet = table("run", "#steps", "#seconds", "#validation", "#test", title=f"mean of {seeds} seeds on the way")
    for name, runs in sides.items():
        for looks in zip(*(run.curve for run in runs), strict=True):
            means = (sum(getattr(look, split) for look in looks) / seeds for split in ("validation", "test"))
            add(sheet, name, f"{looks[0].step:,}", f"{looks[0].seconds:,.0f}", *(f"{value:.2%}" for value in means))
    screen.print(sheet)
    ends = table("run", *(f"#seed {seed}" for seed in range(seeds)), "#mean", title="test, weights chosen on validation")
    for name, runs in sides.items():
        mean = sum(run.test for run in runs) / seeds
        add(ends, name, *(f"{run.test:.2%}" for run in runs), f"{mean:.2%}")
    add(ends, "linear probe", *("" for _ in range(seeds)), f"{speed.linear:.2%}")
    screen.print(ends)
    if speed.ratio is None:
        screen.print(f"ours does not reach {speed.peer_accuracy:.2%} in {speed.peer_seconds:,.0f} s")
    else:
        times = f"{speed.ours_seconds:,.0f} s instead of {speed.peer_seconds:,.0f} s"
        screen.print(f"to timm's {speed.peer_accuracy:.2%}: {times}, {speed.ratio:.2f} of the time")


@bench.command()
def explain(
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each; the best counts.")] = 10,
    json: Json = False,
) -> None:
    """What it costs to read the attention of all heads of B/16 for one picture, in forward passes."""
    from vitrail.bench.explain import explain_speed

    with progress() as tell:
        speed = explain_speed(rounds, progress=tell)
    if json:
        print_json(vars(speed))
        return
    title = f"B/16, one picture, {speed.threads} threads, best of {speed.rounds}"
    sheet = table("work", "#milliseconds", "#forward passes", title=title)
    names = {"forward": "a forward pass", "heads": f"attention of all {speed.heads} heads", "class": "the class token's rows"}
    for name, words in names.items():
        add(sheet, words, f"{1000 * speed.seconds[name]:,.1f}", f"{speed.seconds[name] / speed.seconds['forward']:.2f}")
    console().print(sheet)


@bench.command()
def pretrain(
    model: Annotated[str, typer.Option(metavar="NAME", help="The encoder, at 224 pixels.")] = "B/16",
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each; the best counts.")] = 5,
    batch: Annotated[int, typer.Option(min=1, help="Pictures a step.")] = 8,
    alone: Annotated[bool, typer.Option("--alone", help="MAE alone, for an encoder that leaves no memory for others.")] = False,
    json: Json = False,
) -> None:
    """Pictures a second of a step without labels, and what MAE gains by encoding the visible patches alone."""
    from vitrail.bench.pretrain import pretrain_speed

    with progress() as tell:
        speed = pretrain_speed(model, rounds, batch, not alone, tell)
    if json:
        print_json(vars(speed))
        return
    sheet = table("step", "#pictures a second", title=f"{model}, {speed.threads} threads, best of {speed.rounds}")
    for name, rate in speed.images_per_second.items():
        add(sheet, name, f"{rate:,.1f}")
    screen = console()
    screen.print(sheet)
    screen.print(f"encoding the visible patches alone makes MAE's step {speed.mae_gain:.2f} times as fast")
    if speed.peer_ratio is not None:
        screen.print(f"MAE's step is {speed.peer_ratio:.2f} times as fast as transformers'")
