"""``vitrail inspect``: shapes, parameters, MACs and memory of a model; with ``--trace``, statistics of a real pass."""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.options import Json, Settings, pair
from vitrail.cli.screen import add, console, count, print_json, si, size, table
from vitrail.config import make, to_plain
from vitrail.errors import VitrailError, printable
from vitrail.models.cost import Cost, cost
from vitrail.models.settings import ModelConfig
from vitrail.models.tally import Stage
from vitrail.models.variants import blueprint
from vitrail.weights.folder import best_of, is_model, read_config, read_facts, training_facts

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vitrail.explain.trace import Row


def inspect(
    model: Annotated[
        str,
        typer.Argument(metavar="RUN_OR_NAME", help="Run, model folder, or the name of a variant: B/16, R50+B/16, R50x1 ..."),
    ],
    image: Annotated[
        str | None,
        typer.Option(metavar="H[xW]", rich_help_panel="Model", help="Height and width of the input images in pixels."),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(rich_help_panel="Model", help="Number of classes; 0 for a model without a head.")
    ] = None,
    batch: Annotated[int, typer.Option(rich_help_panel="Run", help="Number of images per batch.")] = 1,
    settings: Settings = None,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace", rich_help_panel="Run", help="Run one pass: shape, mean, std and gradient norm after every module."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Show the shapes, parameters, MACs and memory of a model, layer by layer."""
    changes: dict[str, Any] = {} if image is None else {"image": pair(image, "--image")}
    changes |= {} if classes is None else {"classes": classes}
    config = _config(model, changes, settings or [])
    bill = cost(config, batch)
    if trace:
        _trace(model, config, batch, json)
    elif json:
        print_json({**to_plain(bill), **_trained(model)})
    else:
        show(console(), model, bill)
        _tell(_trained(model))


def _config(model: str, changes: dict[str, Any], settings: list[str]) -> ModelConfig:
    if (folder := _folder(model)) is not None:
        if changes or settings:
            raise VitrailError(f"{model} has a fixed configuration; --image, --classes and --set need a variant such as B/16")
        return read_config(folder)
    try:
        kind, values = blueprint(model)
    except VitrailError:
        if _exists(Path(model)):
            raise VitrailError(
                f"{model} is not a model folder: it has no vitrail.json; variants are named B/16 or R50x1"
            ) from None
        raise
    return make(kind, {**values, **changes}, settings, prefix="model.")


def _folder(model: str) -> Path | None:
    """Return the model folder, in a run that of the best weights, or None."""
    folder = best_of(Path(model)) if _there(model) else Path(model)
    return folder if is_model(folder) else None


def _there(model: str) -> bool:
    try:
        return Path(model).is_dir()
    except OSError:  # longer than any file name
        return False


def _trained(model: str) -> dict[str, Any]:
    """Return the training metadata of a model on disk, with the recipe reduced to its name."""
    folder = _folder(model)
    facts = {} if folder is None else training_facts(read_facts(folder))
    return {**facts, "recipe": facts["recipe"].get("name")} if "recipe" in facts else facts


def _tell(trained: dict[str, Any]) -> None:
    """Print ``trained with finetune on clothing: validation 90.32 %, test 88.17 % (step 960)``."""
    score = trained.get("metrics", {})
    splits = {name: found.get("top1") for name, found in score.items() if isinstance(found, dict)}
    shares = [f"{name} {share:.2%}" for name, share in splits.items() if isinstance(share, float)]
    if shares:
        by, on = trained.get("recipe", "?"), trained.get("dataset", {}).get("name", "?")
        typer.echo(printable(f"trained with {by} on {on}: {', '.join(shares)} (step {score.get('step', '?')})"))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def show(screen: "Console", name: str, bill: Cost) -> None:
    rows = table("stage", "shape", "#parameters", "#MACs", "#activations", title=f"{name}: forward pass")
    for stages in _runs(bill.stages):
        first, many = stages[0], len(stages)
        label = first.name if many == 1 else f"{first.name} … {stages[-1].name.split()[-1]}"
        add(
            rows,
            label,
            _shape(first) if many == 1 else f"{_shape(first)} × {many}",
            count(sum(stage.parameters for stage in stages)),
            si(sum(stage.macs for stage in stages), ""),
            size(sum(stage.training for stage in stages)) if first.training else "",
        )
    screen.print(rows)
    memory, batch = bill.memory, bill.stages[0].shape[0]
    tokens = "" if bill.tokens is None else f", {bill.tokens} tokens"
    screen.print(f"{bill.parameters:,}", style="bold", end="")
    screen.print(" parameters, ", end="")
    screen.print(si(bill.macs, "MACs"), style="bold", end="")
    screen.print(f" per image, grid {bill.grid[0]} × {bill.grid[1]}{tokens}")
    screen.print(
        f"memory in float32, B = {batch}: weights {size(memory.weights)}; inference {size(memory.inference)} more; "
        f"training with Adam {size(memory.adam + memory.training)} more"
    )


def _shape(stage: Stage) -> str:
    return f"(B, {', '.join(map(str, stage.shape[1:]))})"


def _runs(stages: tuple[Stage, ...]) -> list[list[Stage]]:
    """Group consecutive stages of equal shape and cost into one row."""
    key = lambda stage: (stage.name.split()[0], stage.shape, stage.parameters, stage.macs, stage.training)  # noqa: E731
    return [list(group) for _, group in groupby(stages, key=key)]


def _trace(name: str, config: ModelConfig, batch: int, json: bool) -> None:
    import torch

    from vitrail.explain.trace import trace, wake_head
    from vitrail.models.build import build
    from vitrail.weights.load import load

    torch.manual_seed(0)
    model = load(name).train() if _folder(name) is not None else build(config)
    woken = config.classes > 0 and wake_head(model)
    images = torch.randn(batch, config.channels, *config.image)
    labels = torch.randint(config.classes, (batch,)) if config.classes else None
    try:
        rows = trace(model, images, labels)
    except VitrailError:
        raise
    except (RuntimeError, ValueError) as error:
        raise VitrailError(
            f"the traced pass failed: {str(error).strip().splitlines()[0]}; a smaller --batch needs less memory"
        ) from None
    if json:
        print_json({"trace": [vars(row) for row in rows]})
        return
    screen = console()
    screen.print(_trace_table(name, rows))
    loss = "cross-entropy against random labels" if config.classes else "mean squared output"
    note = "; its head is zero-initialised and would block every gradient, so it is random here" if woken else ""
    screen.print(f"random images; the loss is the {loss}{note}")


def _trace_table(name: str, rows: "list[Row]") -> "Table":
    sheet = table(
        "module",
        "kind",
        "shape",
        "#mean",
        "#std",
        "#grad norm",
        "#of parameters",
        title=f"{name}: one forward and backward pass",
    )
    for row in rows:
        gradients = ("" if norm is None else f"{norm:.3g}" for norm in (row.gradient, row.parameters))
        add(sheet, row.name, row.kind, str(row.shape), f"{row.mean:.4g}", f"{row.std:.4g}", *gradients)
    return sheet
