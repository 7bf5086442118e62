"""``vitrail bench``: speed as ratios to other libraries, timed in interleaved rounds in one process."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from vitrail.cli.faster import Merge, merging
from vitrail.cli.fitting import Threads
from vitrail.cli.options import Batch, Json, Split, check_out, pair, whole
from vitrail.cli.screen import add, console, print_json, progress, table
from vitrail.errors import VitrailError

bench = typer.Typer(name="bench", help="Benchmark speed against other libraries.", no_args_is_help=True)

Rounds = Annotated[
    int, typer.Option(min=1, rich_help_panel="Timing", help="Number of interleaved timing rounds; the best counts.")
]


@bench.command(epilog="Example: vitrail bench data --data photos")
def data(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            rich_help_panel="Data",
            help="Folder of JPEGs, one subfolder per class; default: synthetic images.",
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=32, rich_help_panel="Data", help="Number of images to read.")] = 256,
    rounds: Rounds = 5,
    json: Json = False,
) -> None:
    """Benchmark data loading on one core: files, a pack and small images in memory, against torchvision v2."""
    from vitrail.bench.data import data_speed

    with progress() as tell:
        speed = data_speed(folder, count, rounds, tell)
    if json:
        print_json(vars(speed))
        return
    title = f"one core, {speed.pictures} images, best of {speed.rounds}"
    sheet = table("path", "#images per second", "#torchvision", "#ratio", title=title)
    theirs = speed.peers.get("torchvision", {})
    for path, against in (
        ("files", "files"),
        ("pack", "files"),
        ("small", "small"),
        ("small_random_resized", "small_random_resized"),
    ):
        mine, other = speed.ours[path], theirs.get(against)
        add(
            sheet, path, f"{mine:,.0f}", f"{other:,.0f}" if other else "not installed", f"{mine / other:.2f} x" if other else ""
        )
    console().print(sheet)


@bench.command(epilog="Example: vitrail bench train-step --shape s16")
def train_step(
    rounds: Rounds = 10,
    shape: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel="Model", help="Model shape: demo, small or s16; repeatable, default: all."),
    ] = None,
    compiled: Annotated[
        bool,
        typer.Option("--compiled", rich_help_panel="Model", help="Also time the compiled model, which takes a minute more."),
    ] = False,
    json: Json = False,
) -> None:
    """Benchmark a training step against timm, transformers and vit-pytorch in their usual eager mode."""
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
    sheet = table("shape", "step", "#images per second", "#vs best peer", "#of peak FLOP/s", title=title)
    for name, ours in speed.ours.items():
        best = max(speed.peers[name].values(), default=0.0)
        per_picture = speed.gemm_share[name] / ours["vitrail"]
        for who, rate in {**ours, **speed.peers[name]}.items():
            ratio = f"{rate / best:.2f} x" if best else ""
            add(sheet, name, who, f"{rate:,.1f}", ratio, f"{rate * per_picture:.0%}")
    console().print(sheet)


@bench.command(epilog="Example: vitrail bench time-to-accuracy")
def time_to_accuracy(
    steps: Annotated[
        int | None,
        typer.Option(min=1, rich_help_panel="Timing", help="Number of training steps; default: the recipe's own."),
    ] = None,
    rounds: Rounds = 10,
    json: Json = False,
) -> None:
    """Benchmark the time to reach the accuracy that timm's ViT of equal size reaches in the demo's training time."""
    from dataclasses import asdict

    from vitrail.bench.recipe import recipe_speed

    with progress() as tell:
        speed = recipe_speed(steps, rounds, tell)
    if json:
        print_json(asdict(speed))
        return
    sheet = table("run", "#learning rate", "#steps", "#seconds", "#test accuracy", title="the same model, dataset and machine")
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


@bench.command(epilog="Example: vitrail bench finetune ViT-B_16.npz photos --seeds 1")
def finetune(
    weights: Annotated[str, typer.Argument(metavar="WEIGHTS", help="Weights of a plain Vision Transformer, in any format.")],
    folder: Annotated[str, typer.Argument(metavar="DATA", help="Dataset with train, validation and test splits.")],
    seeds: Annotated[
        int, typer.Option(min=1, rich_help_panel="Timing", help="Number of runs per library, with different seeds.")
    ] = 3,
    steps: Annotated[
        int | None,
        typer.Option(min=1, rich_help_panel="Timing", help="Number of training steps; default: the recipe's own."),
    ] = None,
    rounds: Rounds = 5,
    json: Json = False,
) -> None:
    """Benchmark fine-tuning against timm with AdamW from the same weights in the same time, and a linear probe."""
    from dataclasses import asdict

    from vitrail.bench.finetune import finetune_speed

    with progress() as tell:
        speed = finetune_speed(weights, folder, seeds, steps, rounds, tell)
    if json:
        print_json(asdict(speed))
        return
    screen, sides = console(), {"ours": speed.ours, "timm, AdamW": speed.peer}
    sheet = table("run", "#steps", "#seconds", "#validation", "#test", title=f"mean of {seeds} seeds during training")
    for name, runs in sides.items():
        for looks in zip(*(run.curve for run in runs), strict=True):
            means = (sum(getattr(look, split) for look in looks) / seeds for split in ("validation", "test"))
            add(sheet, name, f"{looks[0].step:,}", f"{looks[0].seconds:,.0f}", *(f"{value:.2%}" for value in means))
    screen.print(sheet)
    ends = table(
        "run", *(f"#seed {seed}" for seed in range(seeds)), "#mean", title="test accuracy, checkpoint selected on validation"
    )
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


@bench.command(epilog="Example: vitrail bench explain --rounds 5")
def explain(
    rounds: Rounds = 10,
    json: Json = False,
) -> None:
    """Benchmark the cost of extracting the attention of all heads of B/16, in forward passes."""
    from vitrail.bench.explain import explain_speed

    with progress() as tell:
        speed = explain_speed(rounds, progress=tell)
    if json:
        print_json(vars(speed))
        return
    title = f"B/16, one image, {speed.threads} threads, best of {speed.rounds}"
    sheet = table("work", "#milliseconds", "#forward passes", title=title)
    names = {"forward": "a forward pass", "heads": f"attention of all {speed.heads} heads", "class": "the class token's rows"}
    for name, words in names.items():
        add(sheet, words, f"{1000 * speed.seconds[name]:,.1f}", f"{speed.seconds[name] / speed.seconds['forward']:.2f}")
    console().print(sheet)


@bench.command(epilog="Example: vitrail bench pretrain --model B/16 --batch 8")
def pretrain(
    model: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel="Model", help="Encoder variant, at 224 pixels.")
    ] = "B/16",
    rounds: Rounds = 5,
    batch: Annotated[int, typer.Option(min=1, rich_help_panel="Model", help="Number of images per step.")] = 8,
    alone: Annotated[
        bool,
        typer.Option(
            "--mae-only", rich_help_panel="Model", help="Time MAE only, if the memory does not suffice for the others."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Benchmark a self-supervised training step, and MAE's gain from encoding only the visible patches."""
    from vitrail.bench.pretrain import pretrain_speed

    with progress() as tell:
        speed = pretrain_speed(model, rounds, batch, not alone, tell)
    if json:
        print_json(vars(speed))
        return
    sheet = table("step", "#images per second", title=f"{model}, {speed.threads} threads, best of {speed.rounds}")
    for name, rate in speed.images_per_second.items():
        add(sheet, name, f"{rate:,.1f}")
    screen = console()
    screen.print(sheet)
    screen.print(f"encoding only the visible patches makes MAE's step {speed.mae_gain:.2f} times as fast")
    if speed.peer_ratio is not None:
        screen.print(f"MAE's step is {speed.peer_ratio:.2f} times as fast as transformers'")


@bench.command(epilog="Example: vitrail bench scaling --model Ti/16")
def scaling(
    model: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel="Model", help="Model variant, at 224 pixels.")
    ] = "Ti/16",
    batch: Annotated[int, typer.Option(min=2, rich_help_panel="Model", help="Global batch size, over all processes.")] = 32,
    rounds: Rounds = 5,
    json: Json = False,
) -> None:
    """Benchmark a training step of two processes with DDP and FSDP2 against one process of two threads."""
    from vitrail.bench.scale import scale_speed

    with progress() as tell:
        found = scale_speed(model, batch, rounds, tell)
    if json:
        print_json(vars(found))
        return
    sheet = table("step", "#images per second", "#efficiency", title=f"{model}, batch {batch}, best of {found.rounds}")
    words = {"single": "one process of two threads", "ddp": "two processes, DDP", "fsdp": "two processes, FSDP2"}
    for name, rate in found.images_per_second.items():
        add(sheet, words[name], f"{rate:,.1f}", f"{rate / found.images_per_second['single']:.2f}")
    console().print(sheet)


@bench.command(epilog="Example: vitrail bench serve runs/photos --clients 16")
def serve(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder, any weights, or an exported .onnx or .pt2 file.")],
    clients: Annotated[
        int, typer.Option(min=1, max=1000, rich_help_panel="Timing", help="Number of concurrent clients (closed loop).")
    ] = 32,
    seconds: Annotated[
        float, typer.Option(min=0.1, rich_help_panel="Timing", help="Total duration of all rounds in seconds.")
    ] = 30.0,
    rounds: Rounds = 3,
    engine: Annotated[
        Literal["auto", "torch", "onnxruntime"], typer.Option(rich_help_panel="Model", help="Inference engine.")
    ] = "auto",
    max_batch: Annotated[
        int, typer.Option(metavar="B", min=1, rich_help_panel="Model", help="Maximum number of images per batch.")
    ] = 16,
    threads: Threads = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", rich_help_panel="Data", help="Folder of JPEGs to send; default: synthetic images."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Benchmark HTTP serving against the same engine in full batches without HTTP."""
    from vitrail.bench.serve import serve_speed

    with progress() as tell:
        speed = serve_speed(run, clients, seconds, rounds, engine, max_batch, threads, folder, tell)
    if json:
        print_json(vars(speed))
        return
    title = (
        f"{speed.engine}, {speed.clients} clients, batches of {speed.batch:.1f} of {speed.max_batch}, best of {speed.rounds}"
    )
    sheet = table("path", "#images per second", "#ratio", "#p50", "#p99", title=title)
    times = (f"{1000 * value:,.0f} ms" for value in (speed.p50, speed.p99))
    add(sheet, "served", f"{speed.served:,.1f}", f"{speed.ratio:.2f}", *times)
    add(sheet, "offline", f"{speed.offline:,.1f}", "1.00", "", "")
    console().print(sheet)
    if speed.others:
        console().print("failed requests: " + ", ".join(f"{count} with {status}" for status, count in speed.others.items()))


@bench.command(epilog="Example: vitrail bench inference --size Ti/16 --batch 8")
def inference(
    size: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel="Model", help="Model variant: Ti/16, S/16 or B/16; repeatable, default: all."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, rich_help_panel="Model", help="Number of images per batch; repeatable, default: 1 and 8."),
    ] = None,
    rounds: Rounds = 30,
    compiled: Annotated[
        bool, typer.Option(rich_help_panel="Model", help="Also time the compiled model, a minute more per variant.")
    ] = True,
    merge: Merge = "30/3",
    weights: Annotated[
        str | None,
        typer.Option(metavar="WEIGHTS", rich_help_panel="Data", help="Trained Ti/16 weights, to also report the accuracy."),
    ] = None,
    folder: Annotated[
        str | None,
        typer.Option("--data", metavar="DATA", rich_help_panel="Data", help="Dataset to measure the accuracy on."),
    ] = None,
    json: Json = False,
) -> None:
    """Benchmark every inference path against timm, transformers, torchvision and vit-pytorch."""
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
    sheet = table("model", "#batch", "path", "#images per second", "#vs best peer", title=title)
    for row in found.rows:
        best = max((rate for name, rate in row.images_per_second.items() if name not in OURS), default=0.0)
        for name, rate in row.images_per_second.items():
            add(sheet, row.model, str(row.batch), name, f"{rate:,.1f}", f"{rate / best:.2f} x" if best else "")
    screen.print(sheet)
    if found.accuracy:
        kept = table("path", "#top-1", "#same prediction", title="Ti/16 on the given dataset")
        for name, what in found.accuracy.items():
            add(kept, name, "" if what.top1 is None else f"{what.top1:.1%}", f"{what.agreement:.1%}")
        screen.print(kept)


@bench.command(epilog="Example: vitrail bench token-merging runs/photos photos --r 0,4,8")
def token_merging(
    weights: Annotated[str, typer.Argument(metavar="RUN", help="Run folder, or any weights of a Vision Transformer.")],
    folder: Annotated[str, typer.Argument(metavar="DATA", help="Labelled dataset to measure the accuracy on.")],
    r: Annotated[
        str,
        typer.Option("--r", metavar="NUMBERS", rich_help_panel="Model", help="Numbers of tokens to merge in each layer."),
    ] = "0,2,4,6,8,10,13",
    drop: Annotated[
        str,
        typer.Option(
            "--drop-patches", metavar="FRACTIONS", rich_help_panel="Model", help="Fractions of patches to drop, or none."
        ),
    ] = "0.1,0.2,0.3,0.4",
    image: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES", rich_help_panel="Model", help="Smaller image sizes, such as 192,160, or none; default: three."
        ),
    ] = None,
    batch: Batch = 8,
    rounds: Rounds = 5,
    split: Split = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel="Run", help="Draw the accuracy-speed curve into a .svg or .png file."),
    ] = None,
    json: Json = False,
) -> None:
    """Benchmark the accuracy-speed trade-off of token merging, patch dropping and smaller images."""
    if out is not None:
        check_out(out, "--out", folder, (".svg", ".png"))
    counts = _numbers("--r", r, "4,8")
    shares = _numbers("--drop-patches", drop, "0.1,0.2")
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
    title = f"{found.pictures:,} images, batch {found.batch}, {found.threads} threads, best of {found.rounds}"
    sheet = table(
        "method", "#amount", "#top-1", "#correct", "#same prediction", "#images per second", "#speed", "#MACs", title=title
    )
    for row in found.rows:
        cells = (f"{row.top1:.2%}", f"{row.right:,}", f"{row.same:.1%}", f"{row.images_per_second:,.1f}")
        add(sheet, WAYS[row.way], amount(row), *cells, f"{row.speed:.2f} x", f"{row.macs:.2f} x fewer")
    console().print(sheet)
    if out is not None:
        typer.echo(f"curve: {out}")


def _numbers(option: str, words: str, example: str) -> list[float]:
    """Parse comma-separated numbers such as ``0,4,8``; ``none`` is an empty list."""
    if words == "none":
        return []
    try:
        return [float(word) for word in words.split(",")]
    except ValueError:
        raise VitrailError(f"{option} must be comma-separated numbers, got {words[:40]!r}; try {option} {example}") from None
