"""``vitrail bench``: how fast it is, as ratios against the libraries people know, taken in turns in one process."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from vitrail.cli.faster import Merge, merging
from vitrail.cli.fitting import Threads
from vitrail.cli.options import Json, Split, check_out, pair, whole
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


@bench.command()
def scale(
    model: Annotated[str, typer.Option(metavar="NAME", help="What is trained, at 224 pixels.")] = "Ti/16",
    batch: Annotated[int, typer.Option(min=2, help="Pictures of a step, of all processes together.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each; the best counts.")] = 5,
    json: Json = False,
) -> None:
    """A training step by two processes of one thread, with DDP and with FSDP2, against one process of two threads."""
    from vitrail.bench.scale import scale_speed

    with progress() as tell:
        found = scale_speed(model, batch, rounds, tell)
    if json:
        print_json(vars(found))
        return
    sheet = table("step", "#pictures a second", "#efficiency", title=f"{model}, batch {batch}, best of {found.rounds}")
    words = {"alone": "one process of two threads", "ddp": "two processes, DDP", "fsdp": "two processes, FSDP2"}
    for name, rate in found.images_per_second.items():
        add(sheet, words[name], f"{rate:,.1f}", f"{rate / found.images_per_second['alone']:.2f}")
    console().print(sheet)


@bench.command()
def serve(
    run: Annotated[str, typer.Argument(metavar="RUN", help="What `vitrail serve` takes.")],
    clients: Annotated[int, typer.Option(min=1, max=1000, help="That ask at a time, each again once it is answered.")] = 32,
    seconds: Annotated[float, typer.Option(min=0.1, help="For all turns of both together.")] = 30.0,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each; the best counts.")] = 3,
    engine: Annotated[Literal["auto", "torch", "onnxruntime"], typer.Option(help="What computes.")] = "auto",
    max_batch: Annotated[int, typer.Option(metavar="B", min=1, help="Pictures computed at a time.")] = 16,
    threads: Threads = None,
    folder: Annotated[Path | None, typer.Option("--data", metavar="DIR", help="JPEGs to send; else drawn ones.")] = None,
    json: Json = False,
) -> None:
    """Pictures a second over HTTP by many clients, against the same engine and pictures in full batches without HTTP."""
    from vitrail.bench.serve import serve_speed

    with progress() as tell:
        speed = serve_speed(run, clients, seconds, rounds, engine, max_batch, threads, folder, tell)
    if json:
        print_json(vars(speed))
        return
    title = (
        f"{speed.engine}, {speed.clients} clients, batches of {speed.batch:.1f} of {speed.max_batch}, best of {speed.rounds}"
    )
    sheet = table("path", "#pictures a second", "#ratio", "#p50", "#p99", title=title)
    times = (f"{1000 * value:,.0f} ms" for value in (speed.p50, speed.p99))
    add(sheet, "served", f"{speed.served:,.1f}", f"{speed.ratio:.2f}", *times)
    add(sheet, "offline", f"{speed.offline:,.1f}", "1.00", "", "")
    console().print(sheet)
    if speed.others:
        console().print("not answered: " + ", ".join(f"{count} with {status}" for status, count in speed.others.items()))


@bench.command()
def speed(
    size: Annotated[list[str] | None, typer.Option(help="Ti/16, S/16 or B/16 alone; repeatable.")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Pictures at a time; repeatable, else 1 and 8.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each; the best counts.")] = 30,
    compiled: Annotated[bool, typer.Option(help="Also measure ours compiled, a minute more a size.")] = True,
    merge: Merge = "30/3",
    weights: Annotated[str | None, typer.Option(metavar="WEIGHTS", help="Of a real Ti/16, to tell the accuracy, too.")] = None,
    folder: Annotated[str | None, typer.Option("--data", metavar="DATA", help="Pictures to tell the accuracy on.")] = None,
    json: Json = False,
) -> None:
    """Pictures a second of an answer by each of our paths, against timm, transformers, torchvision and vit-pytorch."""
    from dataclasses import asdict

    from vitrail.bench.speed import BATCHES, OURS, SIZES
    from vitrail.bench.speed import speed as measured

    with progress() as tell:
        sizes, batches = tuple(size or SIZES), tuple(batch or BATCHES)
        found = measured(sizes, batches, rounds, compiled, merging(merge), weights, folder, tell)
    if json:
        print_json(asdict(found))
        return
    screen = console()
    title = f"{found.threads} threads, peak {found.gigaflops:,.0f} GFLOP/s, best of {found.rounds}, merged by {merge}"
    sheet = table("model", "#batch", "path", "#pictures a second", "#of the best peer", title=title)
    for row in found.rows:
        best = max((rate for name, rate in row.images_per_second.items() if name not in OURS), default=0.0)
        for name, rate in row.images_per_second.items():
            add(sheet, row.model, str(row.batch), name, f"{rate:,.1f}", f"{rate / best:.2f} x" if best else "")
    screen.print(sheet)
    if found.accuracy:
        kept = table("path", "#top-1", "#same answers", title="Ti/16 on the pictures named")
        for name, what in found.accuracy.items():
            add(kept, name, "" if what.top1 is None else f"{what.top1:.1%}", f"{what.agreement:.1%}")
        screen.print(kept)


@bench.command()
def merge(
    weights: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or any weights of a Vision Transformer.")],
    folder: Annotated[str, typer.Argument(metavar="DATA", help="Pictures with labels, to tell the accuracy on.")],
    r: Annotated[str, typer.Option("--r", metavar="NUMBERS", help="Tokens merged in each layer.")] = "0,2,4,6,8,10,13",
    drop: Annotated[str, typer.Option(metavar="SHARES", help="Of the patches; none: no dropping.")] = "0.1,0.2,0.3,0.4",
    image: Annotated[str | None, typer.Option(metavar="SIZES", help="Such as 192,160; else three, none: no others.")] = None,
    batch: Annotated[int, typer.Option(metavar="B", min=1, help="Pictures at a time.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each; the best counts.")] = 5,
    split: Split = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the curve into a .svg or .png file.")] = None,
    json: Json = False,
) -> None:
    """Accuracy against speed by merging tokens, dropping patches and smaller pictures, and which is the better bargain."""
    if out is not None:
        check_out(out, "--out", folder, (".svg", ".png"))
    counts = _numbers("--r", r, "4,8")
    shares = _numbers("--drop", drop, "0.1,0.2")
    if any(count != int(count) for count in counts):
        raise VitrailError(f"--r must be whole numbers, got {r[:40]!r}; try --r 4,8")
    sizes = None if image is None else [] if image == "none" else [pair(word, "--image") for word in image.split(",")]

    from dataclasses import asdict

    from vitrail.bench.merge import WAYS, amount, curve_drawing, merge_curve

    with progress() as tell:
        found = merge_curve(weights, folder, [int(count) for count in counts], shares, sizes, batch, rounds, split, tell)
    if out is not None:
        drawing = curve_drawing(found)
        with whole(out) as half:
            if out.suffix.lower() == ".png":
                drawing.picture().save(half, "png")
            else:
                half.write_text(drawing.svg(), encoding="utf-8")
    if json:
        print_json({**asdict(found), "out": None if out is None else str(out)})
        return
    title = f"{found.pictures:,} pictures, batch {found.batch}, {found.threads} threads, best of {found.rounds}"
    sheet = table("way", "#how much", "#top-1", "#right", "#same answer", "#pictures a second", "#speed", "#MACs", title=title)
    for row in found.rows:
        cells = (f"{row.top1:.2%}", f"{row.right:,}", f"{row.same:.1%}", f"{row.images_per_second:,.1f}")
        add(sheet, WAYS[row.way], amount(row), *cells, f"{row.speed:.2f} x", f"{row.macs:.2f} x fewer")
    console().print(sheet)
    if out is not None:
        typer.echo(f"curve: {out}")


def _numbers(option: str, words: str, example: str) -> list[float]:
    """``0,4,8``; ``none`` are none."""
    if words == "none":
        return []
    try:
        return [float(word) for word in words.split(",")]
    except ValueError:
        raise VitrailError(f"{option} must be numbers with commas, got {words[:40]!r}; try {option} {example}") from None
