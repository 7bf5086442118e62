"""``vitrail plan``: memory, time and cost of a recipe on a cluster, with the formulae."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.fitting import ImageSize, Overrides
from vitrail.cli.options import Json, pair
from vitrail.cli.screen import add, console, count, duration, print_json, si, size, table
from vitrail.config import override
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from rich.table import Table

    from vitrail.train.plan import Fit, Plan
    from vitrail.train.recipe import Recipe

MOST = 10**12  # images, far beyond any dataset
IMAGENET = (1_281_167, 1_000)
KNOWN = {"paper-imagenet21k": (14_197_122, 21_843), "paper-jft": (303_000_000, 18_291)}  # images and classes
TITLES = {"single": "one process", "ddp": "DDP", "fsdp": "FSDP2"}
TOTAL = "weights + gradients + moments + average + max(copies + summed + activations + working, stepping, looking)"
ROWS = {
    "weights": "weights", "gradients": "gradients", "moments": "optimiser state", "average": "EMA weights",
    "copies": "+ compute copies of weights", "summed": "+ accumulated gradients", "activations": "+ activations",
    "working": "+ workspace", "stepping": "or optimiser workspace", "looking": "or evaluation weights",
}  # fmt: skip


def plan(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Recipe to plan: its name, a run, or a recipe.json.")],
    nodes: Annotated[int, typer.Option(metavar="N", rich_help_panel="Cluster", help="Number of nodes.")] = 1,
    gpus_per_node: Annotated[
        int, typer.Option(metavar="G", rich_help_panel="Cluster", help="Number of GPUs per node, with one process each.")
    ] = 8,
    gpu: Annotated[
        str,
        typer.Option(
            metavar="NAME", rich_help_panel="Cluster", help="GPU model: A100, A100-40, H100, H200, L4, T4, V100, RTX4090 ..."
        ),
    ] = "A100",
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", rich_help_panel="Model", help="Model variant, such as L/16, if the recipe allows it."),
    ] = None,
    image: ImageSize = None,
    images: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST,
            rich_help_panel="Data",
            help="Number of training images; default: ImageNet's, or those of the recipe's paper.",
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(metavar="K", min=1, rich_help_panel="Data", help="Number of classes; default: those of that dataset."),
    ] = None,
    settings: Overrides = None,
    mfu: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            rich_help_panel="Cluster",
            help="Model FLOPs utilisation: fraction of the GPUs' peak that training reaches; default: 0.35, an assumption.",
        ),
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None,
        typer.Option(
            metavar="DOLLARS", rich_help_panel="Cluster", help="Price of one GPU for one hour; default: an assumption."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Plan a training run on a cluster: memory per GPU, the micro-batch that fits, days and cost."""
    from vitrail.train.accelerators import accelerator
    from vitrail.train.plan import UTILISATION, Machines
    from vitrail.train.plan import plan as planned

    machines = Machines(nodes, gpus_per_node, accelerator(gpu), UTILISATION if mfu is None else mfu, price_per_gpu_hour)
    chosen = override(_recipe(recipe, model, image, images, classes), settings or [])
    made = planned(chosen, machines)
    if json:
        print_json(_plain(made))
    else:
        _show(made)


def _recipe(name: str, model: str | None, image: str | None, pictures: int | None, classes: int | None) -> "Recipe":
    from vitrail.recipes.book import RECIPES
    from vitrail.recipes.book import recipe as by_name
    from vitrail.recipes.given import Given

    if name not in RECIPES and _exists(name):
        if any(word is not None for word in (model, image, pictures, classes)):
            raise VitrailError(f"{name} sets the model, image size and dataset; change them by --set, as in --set steps=1000")
        return _noted(Path(name))
    known = Given()  # the embedded images, which demo trains on
    if name != "demo":
        many, kinds = KNOWN.get(name, IMAGENET)
        known = Given("DATA", many, kinds, None, 3)
    wished = replace(
        known,
        pictures=known.pictures if pictures is None else pictures,
        classes=known.classes if classes is None else classes,
        model=model,
        image=None if image is None else pair(image, "--image"),
    )
    return by_name(name, wished)


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:  # longer than any file name
        return False


def _noted(path: Path) -> "Recipe":
    from vitrail.train.run import read_recipe

    file = path / "recipe.json" if path.is_dir() else path
    if not file.is_file():
        raise VitrailError(f"{path} is not a run: it has no recipe.json; name a run, a recipe.json, or a recipe such as plain")
    return read_recipe(file)


def _formulae(made: "Plan", way: str) -> dict[str, str]:
    """Return the formula of each memory term for this recipe; ``vitrail.train.held`` explains them."""
    recipe = made.recipe
    half, sharded = recipe.precision == "bfloat16", way == "fsdp"
    moments = {"adamw": "8 T", "sgd": "4 T" if recipe.optim.momentum else "0", "muon": "8 (T - M) + 4 M"}[recipe.optim.kind]
    whole = {"weights": "4 P", "gradients": "4 T", "moments": moments, "average": "0" if recipe.ema is None else "4 P"}
    parts = {"8 (T - M) + 4 M": "(8 (T - M) + 4 M) / R", "0": "0"}
    found = {name: parts.get(text, f"{text} / R") if sharded else text for name, text in whole.items()}
    held = next(fit.held for fit in made.ways if fit.way == way)
    return found | {
        "copies": "4 O + 3 c B + 4 B" if sharded else "2 P" if half else "0",
        "summed": "4 T" if held.summed else "0",
        "activations": "b A",
        "working": "b W",
        "stepping": "20 S" if held.stepping else "0",
        "looking": "4 P" if sharded else "0",
        "total": TOTAL,
    }


def _plain(made: "Plan") -> dict[str, Any]:
    machines, recipe = made.machines, made.recipe
    ways = {
        fit.way: {
            "max_micro_batch": fit.most, "micro_batch_size": fit.micro, "micro_batches": fit.pieces, "fits": fit.fits,
            **vars(fit.held), "total": fit.held.total, "formulae": _formulae(made, fit.way),
        }
        for fit in made.ways
    }  # fmt: skip
    return {
        "recipe": recipe.name, "precision": recipe.precision, "steps": recipe.steps, "batch_size": recipe.batch,
        "nodes": machines.hosts, "gpus_per_node": machines.gpus, "world_size": machines.ranks, "gpu": vars(machines.gpu),
        "memory_budget": made.room, "per_rank_batch": made.share, "model": {**vars(made.known), "flops": made.known.flops},
        "strategies": ways, "strategy": made.chosen, "flops": made.flops, "peak": made.peak,
        "mfu": machines.utilisation, "seconds_per_step": made.seconds, "days": made.days, "gpu_hours": made.hours,
        "price_per_gpu_hour": machines.hour, "cost": made.cost,
    }  # fmt: skip


def _show(made: "Plan") -> None:
    from vitrail.train.accelerators import TERA

    screen, recipe, machines, known = console(), made.recipe, made.machines, made.known
    gpu, ranks = machines.gpu.name, machines.ranks
    screen.print(_memory(made))
    screen.print(
        f"P {known.parameters:,} weights, T {known.trained:,} of them trained"
        + (f", M {known.matrices:,} updated by Muon, S {known.alike:,} of them of one shape" if known.matrices else "")
        + f"; O {known.outside:,} outside the blocks, B {known.block:,} in the largest block; R {ranks} ranks; "
        f"b micro-batch size; c {2 if recipe.precision == 'bfloat16' else 4} bytes per number; "
        f"A {size(known.kept)} activations per image, W {size(known.working)} workspace per image"
    )
    screen.print()
    for fit in made.ways:
        screen.print(_fitting(fit, made))
    screen.print()
    screen.print(f"{si(known.flops, 'FLOPs')} per image = {_operations(made)}")
    screen.print(
        f"{made.flops / 1e18:,.4g} exaFLOPs = that x {recipe.batch:,} images x {recipe.steps:,} steps\n"
        f"{made.seconds:,.3g} s per step = FLOPs x {recipe.batch:,} / ({ranks} x {made.peak / TERA:,.4g} TFLOP/s of {gpu} in "
        f"{recipe.precision} x {machines.utilisation:g} MFU)"
    )
    screen.print(f"{_days(made.days)}, {_hours(made)} GPU-hours", style="bold", end="")
    screen.print(f" = {made.seconds:,.3g} s x {recipe.steps:,} x {ranks} / 3600")
    screen.print(f"{made.cost:,.0f} dollars", style="bold", end="")
    assumed = "assumed; set yours with --price-per-gpu-hour" if machines.price is None else "as given"
    screen.print(f" = {_hours(made)} x {machines.hour:g} dollars per hour ({assumed})")
    for sentence in _notes(made):
        screen.print(sentence)


def _memory(made: "Plan") -> "Table":
    machines, recipe = made.machines, made.recipe
    columns = [word for fit in made.ways for word in (f"#{TITLES[fit.way]}", "formula")]
    sheet = table(
        "memory per rank", *columns, title=f"{recipe.name} on {machines.hosts} x {machines.gpus} {machines.gpu.name}, "
        f"{recipe.steps:,} steps of {recipe.batch:,} images in {recipe.precision}",
    )  # fmt: skip
    formulae = {fit.way: _formulae(made, fit.way) for fit in made.ways}
    for name in vars(made.ways[0].held):
        cells = [(getattr(fit.held, name), formulae[fit.way][name]) for fit in made.ways]
        if any(number for number, _ in cells):
            add(sheet, ROWS[name], *(word for number, text in cells for word in ((size(number), text) if number else ("", ""))))
    add(sheet, "total", *(word for fit in made.ways for word in (size(fit.held.total), "")))
    add(sheet, "b, micro-batch size", *(word for fit in made.ways for word in (count(fit.micro), _pieces(fit.pieces))))
    return sheet


def _pieces(number: int) -> str:
    return "1 micro-batch" if number == 1 else f"{number} micro-batches"


def _fitting(fit: "Fit", made: "Plan") -> str:
    name, room = TITLES[fit.way], f"{size(made.room)}, 0.9 of {made.machines.gpu.name}'s memory"
    if not fit.fits:
        pictures = "one image" if fit.micro == 1 else f"{fit.micro:,} images"
        return f"{name} does not fit: {size(fit.held.total)} with {pictures} per micro-batch, and the budget is {room}"
    part = f"{made.share:,} images, {'the batch' if fit.way == 'single' else 'the per-rank batch'}"
    if fit.pieces == 1:
        return f"{name} fits: {part}, in one micro-batch; {fit.most:,} would fit into {room}"
    return f"{name} fits: {part}, in {fit.pieces} micro-batches (--set micro={fit.micro}) into {room}"


def _operations(made: "Plan") -> str:
    known, text = made.known, "2 x MACs forward + 4 x MACs backward"
    again = f" + 2 x {si(known.again, 'MACs')} of recomputed blocks" if known.again else ""
    part = "" if known.backward == known.macs else f", backward through {si(known.backward, 'MACs')} only"
    return f"{text}{again}, {si(known.macs, 'MACs')}{part}"


def _days(days: float) -> str:
    return f"{days:,.1f} days" if days >= 2 else duration(86_400 * days)


def _hours(made: "Plan") -> str:
    return f"{made.hours:,.0f}" if made.hours >= 100 else f"{made.hours:.3g}"


def _notes(made: "Plan") -> list[str]:
    """List the strategy the run would choose, what would make it fit, and what the numbers leave out."""
    recipe, gpu, chosen = made.recipe, made.machines.gpu, made.fit
    said = []
    if len(made.ways) > 1:
        said.append(f"the run would use {TITLES[made.chosen]} (parallel={recipe.parallel})")
    if not chosen.fits:
        others = [f"--set parallel={fit.way}" for fit in made.ways if fit.fits]
        again = [] if recipe.recompute or recipe.model.family != "vit" else ["--set recompute=true"]
        fewer = [] if recipe.micro in (None, 1) else ["--set micro=1"]
        said.append(f"to make it fit: {', '.join([*others, *again, *fewer, 'a smaller --model or --image'])}")
    if recipe.precision == "float32" and gpu.bfloat16 is not None and gpu.bfloat16 > gpu.float32:
        said.append(
            f"in bfloat16 (--set precision=bfloat16) {gpu.name}'s peak is {gpu.bfloat16 / gpu.float32:.3g} times as high"
        )
    said.append(
        "the MFU is an assumption: by Table 2's core-days, the paper's H/14 reached 0.32 of a TPU's peak, its L/16 at most "
        "0.43; communication between ranks, slow data loading, evaluations and checkpoints are not modelled"
    )
    return said
