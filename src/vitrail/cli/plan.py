"""``vitrail plan``: what a recipe would take on machines that are not here, with the formulae."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.options import Json, Settings, pair
from vitrail.cli.screen import add, console, count, duration, print_json, si, size, table
from vitrail.config import override
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from rich.table import Table

    from vitrail.train.plan import Fit, Plan
    from vitrail.train.recipe import Recipe

MOST = 10**12  # pictures, far beyond any collection
IMAGENET = (1_281_167, 1_000)
KNOWN = {"paper-imagenet21k": (14_197_122, 21_843), "paper-jft": (303_000_000, 18_291)}  # pictures and classes
TITLES = {"alone": "one process", "ddp": "DDP", "fsdp": "FSDP2"}
TOTAL = "weights + gradients + moments + average + max(copies + summed + activations + working, stepping, looking)"
ROWS = {
    "weights": "weights", "gradients": "gradients", "moments": "optimiser's moments", "average": "averaged weights",
    "copies": "+ weights to compute with", "summed": "+ sums over pieces", "activations": "+ activations",
    "working": "+ alive for a moment", "stepping": "or, in an update", "looking": "or, to evaluate",
}  # fmt: skip


def plan(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name, a run, or a recipe.json.")],
    hosts: Annotated[int, typer.Option(metavar="H", help="Machines.")] = 1,
    gpus: Annotated[int, typer.Option(metavar="G", help="Accelerators in each, with one process on every one.")] = 8,
    gpu: Annotated[str, typer.Option(metavar="NAME", help="A100, A100-40, H100, H200, L4, T4, V100, RTX4090 ...")] = "A100",
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Such as L/16, where the recipe leaves it open.")] = None,
    image: Annotated[str | None, typer.Option(metavar="H[xW]", help="Height and width of the pictures.")] = None,
    pictures: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=MOST, help="To learn from; else ImageNet's, or what the paper had.")
    ] = None,
    classes: Annotated[int | None, typer.Option(metavar="K", min=1, help="Of the pictures; else as many as there.")] = None,
    settings: Settings = None,
    utilisation: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Of the peak that training reaches; else 0.35, an assumption.")
    ] = None,
    price: Annotated[float | None, typer.Option(metavar="DOLLARS", help="Of an hour of one; else an assumption.")] = None,
    json: Json = False,
) -> None:
    """Plan a run on other machines: memory of each process, the batch that fits, days and cost."""
    from vitrail.train.accelerators import accelerator
    from vitrail.train.plan import UTILISATION, Machines
    from vitrail.train.plan import plan as planned

    machines = Machines(hosts, gpus, accelerator(gpu), UTILISATION if utilisation is None else utilisation, price)
    chosen = override(_recipe(recipe, model, image, pictures, classes), settings or [])
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
            raise VitrailError(f"{name} brings its own model, size and data; change them by --set, as in --set steps=1000")
        return _noted(Path(name))
    known = Given()  # of the embedded pictures, which demo is for
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
    except OSError:  # a name longer than any file's
        return False


def _noted(path: Path) -> "Recipe":
    from vitrail.train.run import read_recipe

    file = path / "recipe.json" if path.is_dir() else path
    if not file.is_file():
        raise VitrailError(f"{path} is no run: it has no recipe.json; name a run, a recipe.json, or a recipe such as plain")
    return read_recipe(file)


def _formulae(made: "Plan", way: str) -> dict[str, str]:
    """How each number comes about, for this recipe; ``vitrail.train.held`` says why."""
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
            "most": fit.most, "micro": fit.micro, "pieces": fit.pieces, "fits": fit.fits,
            **vars(fit.held), "total": fit.held.total, "formulae": _formulae(made, fit.way),
        }
        for fit in made.ways
    }  # fmt: skip
    return {
        "recipe": recipe.name, "precision": recipe.precision, "steps": recipe.steps, "batch": recipe.batch,
        "hosts": machines.hosts, "gpus": machines.gpus, "ranks": machines.ranks, "gpu": vars(machines.gpu),
        "room": made.room, "share": made.share, "model": {**vars(made.known), "flops": made.known.flops},
        "ways": ways, "chosen": made.chosen, "flops": made.flops, "peak": made.peak,
        "utilisation": machines.utilisation, "seconds_a_step": made.seconds, "days": made.days, "gpu_hours": made.hours,
        "price": machines.hour, "cost": made.cost,
    }  # fmt: skip


def _show(made: "Plan") -> None:
    from vitrail.train.accelerators import TERA

    screen, recipe, machines, known = console(), made.recipe, made.machines, made.known
    gpu, ranks = machines.gpu.name, machines.ranks
    screen.print(_memory(made))
    screen.print(
        f"P {known.parameters:,} weights, T {known.trained:,} of them trained"
        + (f", M {known.matrices:,} moved by Muon, S {known.alike:,} of them of one shape" if known.matrices else "")
        + f"; O {known.outside:,} outside of blocks, B {known.block:,} in the largest; R {ranks} ranks; b pictures at a time; "
        f"c {2 if recipe.precision == 'bfloat16' else 4} bytes a number; A {size(known.kept)} kept of a picture, "
        f"W {size(known.working)} alive for a moment"
    )
    screen.print()
    for fit in made.ways:
        screen.print(_fitting(fit, made))
    screen.print()
    screen.print(f"{si(known.flops, 'FLOPs')} a picture = {_operations(made)}")
    screen.print(
        f"{made.flops / 1e18:,.4g} exaFLOPs = that x {recipe.batch:,} pictures x {recipe.steps:,} steps\n"
        f"{made.seconds:,.3g} s a step = FLOPs x {recipe.batch:,} / ({ranks} x {made.peak / TERA:,.4g} TFLOP/s of {gpu} in "
        f"{recipe.precision} x {machines.utilisation:g} utilisation)"
    )
    screen.print(f"{_days(made.days)}, {_hours(made)} GPU-hours", style="bold", end="")
    screen.print(f" = {made.seconds:,.3g} s x {recipe.steps:,} x {ranks} / 3600")
    screen.print(f"{made.cost:,.0f} dollars", style="bold", end="")
    assumed = "assumed; --price has yours" if machines.price is None else "as you say"
    screen.print(f" = {_hours(made)} x {machines.hour:g} an hour ({assumed})")
    for sentence in _notes(made):
        screen.print(sentence)


def _memory(made: "Plan") -> "Table":
    machines, recipe = made.machines, made.recipe
    columns = [word for fit in made.ways for word in (f"#{TITLES[fit.way]}", "formula")]
    sheet = table(
        "held by a rank", *columns, title=f"{recipe.name} on {machines.hosts} x {machines.gpus} {machines.gpu.name}, "
        f"{recipe.steps:,} steps of {recipe.batch:,} pictures in {recipe.precision}",
    )  # fmt: skip
    formulae = {fit.way: _formulae(made, fit.way) for fit in made.ways}
    for name in vars(made.ways[0].held):
        cells = [(getattr(fit.held, name), formulae[fit.way][name]) for fit in made.ways]
        if any(number for number, _ in cells):
            add(sheet, ROWS[name], *(word for number, text in cells for word in ((size(number), text) if number else ("", ""))))
    add(sheet, "total", *(word for fit in made.ways for word in (size(fit.held.total), "")))
    add(sheet, "b, pictures at a time", *(word for fit in made.ways for word in (count(fit.micro), _pieces(fit.pieces))))
    return sheet


def _pieces(number: int) -> str:
    return "in one piece" if number == 1 else f"in {number} pieces"


def _fitting(fit: "Fit", made: "Plan") -> str:
    name, room = TITLES[fit.way], f"{size(made.room)}, 0.9 of {made.machines.gpu.name}'s memory"
    if not fit.fits:
        pictures = "one picture" if fit.micro == 1 else f"{fit.micro:,} pictures"
        return f"{name} does not fit: {size(fit.held.total)} with {pictures} at a time, and there are {room}"
    part = f"{made.share:,} pictures, {'the batch' if fit.way == 'alone' else 'its part of the batch'}"
    if fit.pieces == 1:
        return f"{name} fits: {part}, at once; {fit.most:,} would fit into {room}"
    return f"{name} fits: {part}, in {fit.pieces} pieces (--set micro={fit.micro}) into {room}"


def _operations(made: "Plan") -> str:
    known, text = made.known, "2 x MACs forward + 4 x MACs back"
    again = f" + 2 x {si(known.again, 'MACs')} of blocks once more" if known.again else ""
    part = "" if known.backward == known.macs else f", back through {si(known.backward, 'MACs')} alone"
    return f"{text}{again}, {si(known.macs, 'MACs')}{part}"


def _days(days: float) -> str:
    return f"{days:,.1f} days" if days >= 2 else duration(86_400 * days)


def _hours(made: "Plan") -> str:
    return f"{made.hours:,.0f}" if made.hours >= 100 else f"{made.hours:.3g}"


def _notes(made: "Plan") -> list[str]:
    """What the run would choose, what would help, and what the numbers leave out."""
    recipe, gpu, chosen = made.recipe, made.machines.gpu, made.fit
    said = []
    if len(made.ways) > 1:
        said.append(f"the run would take {TITLES[made.chosen]} (parallel={recipe.parallel})")
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
        "utilisation is an assumption: from Table 2's core-days, the paper's H/14 had 0.32 of a TPU's peak, its L/16 at most "
        "0.43; ranks that wait for each other, slow reading, evaluations and checkpoints are not modelled"
    )
    return said
