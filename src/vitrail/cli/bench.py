"""``vitrail bench``: speed as ratios to other libraries, timed in interleaved rounds in one process."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from vitrail.cli.console import add_row, make_console, make_table, print_json, progress_bars
from vitrail.cli.help import Command, Group
from vitrail.cli.options import (
    BackendOption,
    BatchOption,
    JsonOption,
    MergeTokensOption,
    ModelArgument,
    PredictorArgument,
    SplitOption,
    check_output_file,
    parse_merge_tokens,
    parse_size,
)
from vitrail.cli.panels import data_option, model_option, output_option, timing_option
from vitrail.cli.run_recipe import ThreadsOption
from vitrail.errors import VitrailError
from vitrail.io import atomic_path

bench = typer.Typer(
    name="bench",
    help="Benchmark speed against other libraries.",
    epilog="Example: vitrail bench data --data photos",
    no_args_is_help=True,
    cls=Group,
)

Result = TypeVar("Result")
RoundsOption = Annotated[int, timing_option(min=1, help="Number of interleaved timing rounds; the best counts.")]


@bench.command(cls=Command, epilog="Example: vitrail bench data --data photos")
def data(
    folder: Annotated[
        Path | None,
        data_option("--data", metavar="DIR", help="Folder of JPEGs, one subfolder per class; default: synthetic images."),
    ] = None,
    count: Annotated[int, data_option(min=32, help="Number of images to read.")] = 256,
    rounds: RoundsOption = 5,
    json: JsonOption = False,
) -> None:
    """Benchmark data loading on one core: files, a pack and small images in memory, against torchvision v2."""
    from vitrail.bench.data import benchmark_data

    speed = _measure(benchmark_data, json, folder, count, rounds)
    title = f"one core, {speed.num_images} images, best of {speed.rounds}"
    sheet = make_table("path", "#images per second", "#torchvision", "#ratio", title=title)
    theirs = speed.peers.get("torchvision", {})
    for path, mine in speed.ours.items():
        other = theirs.get("files" if path == "pack" else path)
        peer = (f"{other:,.0f}", f"{mine / other:.2f} x") if other else ("not installed", "")
        add_row(sheet, path, f"{mine:,.0f}", *peer)
    make_console().print(sheet)


@bench.command(cls=Command, epilog="Example: vitrail bench train-step --shape s16")
def train_step(
    rounds: RoundsOption = 10,
    shape: Annotated[list[str] | None, model_option(help="Model shape: demo, small or s16; repeatable, default: all.")] = None,
    compiled: Annotated[
        bool, model_option("--compiled", help="Also time the compiled model, which takes a minute more.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Benchmark a training step against timm, transformers and vit-pytorch in their usual eager mode."""
    from vitrail.bench.train_step import benchmark_shapes, benchmark_train_step

    shapes_by_name = benchmark_shapes()
    for name in shape or ():
        if name not in shapes_by_name:
            raise VitrailError(f"--shape must be one of {', '.join(shapes_by_name)}, got {name!r}")
    speed = _measure(benchmark_train_step, json, rounds, compiled, tuple(shape) if shape else None)
    title = f"{speed.threads} threads, peak {speed.gigaflops:,.0f} GFLOP/s, best of {speed.rounds}"
    sheet = make_table("shape", "step", "#images per second", "#vs best peer", "#of peak FLOP/s", title=title)
    for name, ours in speed.ours.items():
        best = max(speed.peers[name].values(), default=0.0)
        flops_fraction = speed.gemm_fraction[name] / ours["vitrail"]
        for who, rate in {**ours, **speed.peers[name]}.items():
            ratio = f"{rate / best:.2f} x" if best else ""
            add_row(sheet, name, who, f"{rate:,.1f}", ratio, f"{rate * flops_fraction:.0%}")
    make_console().print(sheet)


@bench.command(cls=Command, epilog="Example: vitrail bench time-to-accuracy")
def time_to_accuracy(
    steps: Annotated[int | None, timing_option(min=1, help="Number of training steps; default: the recipe's own.")] = None,
    rounds: RoundsOption = 10,
    json: JsonOption = False,
) -> None:
    """Benchmark how soon the demo reaches the accuracy of timm's ViT of equal size, trained for as long."""
    from vitrail.bench.time_to_accuracy import benchmark_time_to_accuracy

    speed = _measure(benchmark_time_to_accuracy, json, steps, rounds)
    sheet = make_table(
        "run", "#learning rate", "#steps", "#seconds", "#test accuracy", title="the same model, dataset and machine"
    )
    for name, runs in (("timm, AdamW", speed.peer), ("ours", speed.ours)):
        for run in runs:
            add_row(sheet, name, f"{run.lr:g}", f"{run.steps:,}", f"{run.seconds:,.1f}", f"{run.accuracy:.2%}")
    screen = make_console()
    screen.print(sheet)
    if speed.ratio is None:
        screen.print(f"ours does not reach {speed.accuracy:.2%} in {speed.peer_seconds:,.1f} s")
    else:
        times = f"{speed.ours_seconds:,.1f} s instead of {speed.peer_seconds:,.1f} s"
        screen.print(f"to {speed.accuracy:.2%}: {times}, {speed.ratio:.2f} of the time")


@bench.command(cls=Command, epilog="Example: vitrail bench finetune ViT-B_16.npz photos --seeds 1")
def finetune(
    model: ModelArgument,
    folder: Annotated[str, typer.Argument(metavar="DATA", help="Dataset with train, validation and test splits.")],
    seeds: Annotated[int, timing_option(min=1, help="Number of runs per library, with different seeds.")] = 3,
    steps: Annotated[int | None, timing_option(min=1, help="Number of training steps; default: the recipe's own.")] = None,
    rounds: RoundsOption = 5,
    json: JsonOption = False,
) -> None:
    """Benchmark fine-tuning against timm with AdamW, from the same weights in the same time, and against a linear probe."""
    from vitrail.bench.finetune import benchmark_finetune

    speed = _measure(benchmark_finetune, json, model, folder, seeds, steps, rounds)
    screen, sides = make_console(), {"ours": speed.ours, "timm, AdamW": speed.peer}
    sheet = make_table("run", "#steps", "#seconds", "#validation", "#test", title=f"mean of {seeds} seeds during training")
    for name, runs in sides.items():
        for evaluations in zip(*(run.curve for run in runs), strict=True):
            means = (sum(getattr(evaluation, split) for evaluation in evaluations) / seeds for split in ("validation", "test"))
            add_row(
                sheet, name, f"{evaluations[0].step:,}", f"{evaluations[0].seconds:,.0f}", *(f"{value:.2%}" for value in means)
            )
    screen.print(sheet)
    final = make_table(
        "run", *(f"#seed {seed}" for seed in range(seeds)), "#mean", title="test accuracy, checkpoint selected on validation"
    )
    for name, runs in sides.items():
        mean = sum(run.test for run in runs) / seeds
        add_row(final, name, *(f"{run.test:.2%}" for run in runs), f"{mean:.2%}")
    add_row(final, "linear probe", *("" for _ in range(seeds)), f"{speed.linear_probe_accuracy:.2%}")
    screen.print(final)
    if speed.ratio is None:
        screen.print(f"ours does not reach {speed.peer_accuracy:.2%} in {speed.peer_seconds:,.0f} s")
    else:
        times = f"{speed.ours_seconds:,.0f} s instead of {speed.peer_seconds:,.0f} s"
        screen.print(f"to timm's {speed.peer_accuracy:.2%}: {times}, {speed.ratio:.2f} of the time")


@bench.command(cls=Command, epilog="Example: vitrail bench explain --rounds 5")
def explain(rounds: RoundsOption = 10, json: JsonOption = False) -> None:
    """Benchmark the cost of extracting the attention of all heads of B/16, in forward passes."""
    from vitrail.bench.explain import benchmark_explain

    speed = _measure(benchmark_explain, json, rounds)
    title = f"B/16, one image, {speed.threads} threads, best of {speed.rounds}"
    sheet = make_table("work", "#milliseconds", "#forward passes", title=title)
    names = {"forward": "a forward pass", "heads": f"attention of all {speed.heads} heads", "class": "the class token's rows"}
    for name, label in names.items():
        add_row(sheet, label, f"{1000 * speed.seconds[name]:,.1f}", f"{speed.seconds[name] / speed.seconds['forward']:.2f}")
    make_console().print(sheet)


@bench.command(cls=Command, epilog="Example: vitrail bench pretrain --model B/16 --batch-size 8")
def pretrain(
    model: Annotated[str, model_option(metavar="NAME", help="Encoder variant, at 224 pixels.")] = "B/16",
    rounds: RoundsOption = 5,
    batch: Annotated[int, model_option("--batch-size", min=1, help="Number of images per step.")] = 8,
    mae_only: Annotated[
        bool, model_option("--mae-only", help="Time MAE only, if the memory does not suffice for the others.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Benchmark a self-supervised training step, and MAE's gain from encoding only the visible patches."""
    from vitrail.bench.pretrain import benchmark_pretrain

    speed = _measure(benchmark_pretrain, json, model, rounds, batch, not mae_only)
    sheet = make_table("step", "#images per second", title=f"{model}, {speed.threads} threads, best of {speed.rounds}")
    for name, rate in speed.images_per_second.items():
        add_row(sheet, name, f"{rate:,.1f}")
    screen = make_console()
    screen.print(sheet)
    screen.print(f"encoding only the visible patches makes MAE's step {speed.mae_gain:.2f} times as fast")
    if speed.peer_ratio is not None:
        screen.print(f"MAE's step is {speed.peer_ratio:.2f} times as fast as transformers'")


@bench.command(cls=Command, epilog="Example: vitrail bench scaling --model Ti/16")
def scaling(
    model: Annotated[str, model_option(metavar="NAME", help="Model variant, at 224 pixels.")] = "Ti/16",
    batch: Annotated[int, model_option("--batch-size", min=2, help="Global batch size, over all processes.")] = 32,
    rounds: RoundsOption = 5,
    json: JsonOption = False,
) -> None:
    """Benchmark a training step of two processes with DDP and FSDP2 against one process of two threads."""
    from vitrail.bench.distributed_scaling import benchmark_scaling

    result = _measure(benchmark_scaling, json, model, batch, rounds)
    sheet = make_table("step", "#images per second", "#efficiency", title=f"{model}, batch {batch}, best of {result.rounds}")
    labels = {"single": "one process of two threads", "ddp": "two processes, DDP", "fsdp": "two processes, FSDP2"}
    for name, rate in result.images_per_second.items():
        add_row(sheet, labels[name], f"{rate:,.1f}", f"{rate / result.images_per_second['single']:.2f}")
    make_console().print(sheet)


@bench.command(cls=Command, epilog="Example: vitrail bench serve runs/photos --clients 16")
def serve(
    model: PredictorArgument,
    clients: Annotated[int, timing_option(min=1, max=1000, help="Number of concurrent clients (closed loop).")] = 32,
    seconds: Annotated[float, timing_option(min=0.1, help="Total duration of all rounds in seconds.")] = 30.0,
    rounds: RoundsOption = 3,
    backend: BackendOption = "auto",
    max_batch: Annotated[int, model_option(metavar="B", min=1, help="Maximum number of images per batch.")] = 16,
    threads: ThreadsOption = None,
    folder: Annotated[
        Path | None, data_option("--data", metavar="DIR", help="Folder of JPEGs to send; default: synthetic images.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Benchmark HTTP serving against the same model in full batches without HTTP."""
    from vitrail.bench.serve import benchmark_serve

    speed = _measure(benchmark_serve, json, model, clients, seconds, rounds, backend, max_batch, threads, folder)
    batches = f"batches of {speed.mean_batch_size:.1f} of {speed.max_batch_size}"
    title = f"{speed.backend}, {speed.clients} clients, {batches}, best of {speed.rounds}"
    sheet = make_table("path", "#images per second", "#ratio", "#p50", "#p99", title=title)
    times = (f"{1000 * value:,.0f} ms" for value in (speed.p50, speed.p99))
    add_row(sheet, "served", f"{speed.served:,.1f}", f"{speed.ratio:.2f}", *times)
    add_row(sheet, "offline", f"{speed.offline:,.1f}", "1.00", "", "")
    make_console().print(sheet)
    if speed.other_statuses:
        make_console().print(
            "failed requests: " + ", ".join(f"{count} with {status}" for status, count in speed.other_statuses.items())
        )


@bench.command(cls=Command, epilog="Example: vitrail bench inference --size Ti/16 --batch-size 8")
def inference(
    size: Annotated[
        list[str] | None, model_option(help="Model variant: Ti/16, S/16 or B/16; repeatable, default: all.")
    ] = None,
    batch: Annotated[
        list[int] | None, model_option("--batch-size", min=1, help="Number of images per batch; repeatable, default: 1 and 8.")
    ] = None,
    rounds: RoundsOption = 30,
    compiled: Annotated[bool, model_option(help="Also time the compiled model, a minute more per variant.")] = True,
    merge_tokens: MergeTokensOption = "30/3",
    weights: Annotated[
        str | None, data_option(metavar="WEIGHTS", help="Trained Ti/16 weights, to also report the accuracy.")
    ] = None,
    folder: Annotated[str | None, data_option("--data", metavar="DATA", help="Dataset to measure the accuracy on.")] = None,
    json: JsonOption = False,
) -> None:
    """Benchmark every inference path against timm, transformers, torchvision and vit-pytorch."""
    from vitrail.bench.inference import BATCH_SIZES, MODEL_SIZES, OUR_PATHS, benchmark_inference

    sizes, batches, merge = tuple(size or MODEL_SIZES), tuple(batch or BATCH_SIZES), parse_merge_tokens(merge_tokens)
    result = _measure(benchmark_inference, json, sizes, batches, rounds, compiled, merge, weights, folder)
    screen = make_console()
    title = f"{result.threads} threads, peak {result.gigaflops:,.0f} GFLOP/s, best of {result.rounds}, merged by {merge_tokens}"
    sheet = make_table("model", "#batch", "path", "#images per second", "#vs best peer", title=title)
    for row in result.rows:
        best = max((rate for name, rate in row.images_per_second.items() if name not in OUR_PATHS), default=0.0)
        for name, rate in row.images_per_second.items():
            add_row(sheet, row.model, str(row.batch_size), name, f"{rate:,.1f}", f"{rate / best:.2f} x" if best else "")
    screen.print(sheet)
    if result.accuracy:
        accuracy_table = make_table("path", "#top-1", "#same prediction", title="Ti/16 on the given dataset")
        for name, scores in result.accuracy.items():
            add_row(accuracy_table, name, "" if scores.top1 is None else f"{scores.top1:.1%}", f"{scores.agreement:.1%}")
        screen.print(accuracy_table)


@bench.command(cls=Command, epilog="Example: vitrail bench token-merging runs/photos photos --r 0,4,8")
def token_merging(
    model: ModelArgument,
    folder: Annotated[str, typer.Argument(metavar="DATA", help="Labelled dataset to measure the accuracy on.")],
    r: Annotated[
        str, model_option("--r", metavar="NUMBERS", help="Numbers of tokens to merge in each layer.")
    ] = "0,2,4,6,8,10,13",
    drop_patches: Annotated[
        str, model_option("--drop-patches", metavar="FRACTIONS", help="Fractions of patches to drop, or none.")
    ] = "0.1,0.2,0.3,0.4",
    image: Annotated[
        str | None,
        model_option("--image-size", metavar="SIZES", help="Smaller image sizes, such as 192,160, or none; default: three."),
    ] = None,
    batch: BatchOption = 8,
    rounds: RoundsOption = 5,
    split: SplitOption = None,
    out: Annotated[
        Path | None, output_option(metavar="FILE", help="Draw the accuracy-speed curve into a .svg or .png file.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Benchmark the accuracy-speed trade-off of token merging, patch dropping and smaller images."""
    if out is not None:
        check_output_file(out, "--out", folder, (".svg", ".png"))
    counts = _parse_numbers("--r", r, "4,8")
    fractions = _parse_numbers("--drop-patches", drop_patches, "0.1,0.2")
    if any(count != int(count) for count in counts):
        raise VitrailError(f"--r must be whole numbers, got {r[:40]!r}; try --r 4,8")
    sizes = (
        None if image is None else [] if image == "none" else [parse_size(size, "--image-size") for size in image.split(",")]
    )

    from vitrail.bench.token_merging import SPEEDUP_NAMES, benchmark_token_merging, format_amount, plot_curve

    with progress_bars() as on_progress:
        result = benchmark_token_merging(
            model, folder, [int(count) for count in counts], fractions, sizes, batch, rounds, split, on_progress
        )
    if out is not None:
        drawing = plot_curve(result)
        with atomic_path(out) as temporary:
            if out.suffix.lower() == ".png":
                drawing.to_image().save(temporary, "png")
            else:
                temporary.write_text(drawing.to_svg(), encoding="utf-8")
    if json:
        print_json({**asdict(result), "out": None if out is None else str(out)})
        return
    title = f"{result.num_images:,} images, batch {result.batch_size}, {result.threads} threads, best of {result.rounds}"
    sheet = make_table(
        "method", "#amount", "#top-1", "#correct", "#same prediction", "#images per second", "#speed", "#MACs", title=title
    )
    for row in result.rows:
        cells = (f"{row.top1:.2%}", f"{row.num_correct:,}", f"{row.agreement:.1%}", f"{row.images_per_second:,.1f}")
        add_row(
            sheet, SPEEDUP_NAMES[row.speedup], format_amount(row), *cells, f"{row.speed:.2f} x", f"{row.macs_ratio:.2f} x fewer"
        )
    make_console().print(sheet)
    if out is not None:
        typer.echo(f"curve: {out}")


def _measure(benchmark: Callable[..., Result], json: bool, *arguments: Any) -> Result:
    """Run a benchmark with progress bars; with --json, print its result as JSON and end the command."""
    with progress_bars() as on_progress:
        result = benchmark(*arguments, progress=on_progress)
    if json:
        print_json(asdict(cast(Any, result)))
        raise typer.Exit
    return result


def _parse_numbers(option: str, text: str, example: str) -> list[float]:
    """Parse comma-separated numbers such as ``0,4,8``; ``none`` is an empty list."""
    if text == "none":
        return []
    try:
        return [float(item) for item in text.split(",")]
    except ValueError:
        raise VitrailError(f"{option} must be comma-separated numbers, got {text[:40]!r}; try {option} {example}") from None
