"""Options, run folder and final table that the commands running a recipe share."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitrail.cli.console import add_row, make_console, make_table, print_json, progress_bars
from vitrail.cli.training_progress import ProgressDisplay, format_score
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.recipes.context import RecipeContext
    from vitrail.training.process_group import ProcessGroup
    from vitrail.training.recipe import Recipe

InputSizeOption = Annotated[
    str | None,
    typer.Option(
        "--image-size", metavar="H[xW]", rich_help_panel="Data", help="Height and width of the input images in pixels."
    ),
]
OverridesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        rich_help_panel="Optimisation",
        help="Override a field of the recipe, such as steps=1000 or optim.lr=1e-3; repeatable.",
    ),
]
EpochsOption = Annotated[
    float | None,
    typer.Option(metavar="N", rich_help_panel="Optimisation", help="Number of passes over the training images; sets steps."),
]
BatchSizeOption = Annotated[
    int | None, typer.Option(metavar="B", rich_help_panel="Optimisation", help="Number of images per step; sets batch_size.")
]
LrOption = Annotated[
    float | None, typer.Option("--lr", metavar="LR", rich_help_panel="Optimisation", help="Peak learning rate; sets optim.lr.")
]
WeightDecayOption = Annotated[
    float | None, typer.Option(metavar="WD", rich_help_panel="Optimisation", help="Weight decay; sets optim.weight_decay.")
]
AugmentOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", rich_help_panel="Data", help="Augmentation policy, such as none, light1, medium1 or pad."),
]
SeedOption = Annotated[
    int | None, typer.Option(metavar="N", rich_help_panel="Run", help="Seed of weights, order and augmentation; sets seed.")
]
PrecisionOption = Annotated[
    Literal["float32", "bfloat16"] | None,
    typer.Option(rich_help_panel="Run", help="Number format of the computation; sets precision."),
]
CompileOption = Annotated[
    bool, typer.Option("--compile", rich_help_panel="Run", help="Compile the model with torch.compile; sets compile.")
]
ResumeOption = Annotated[
    Path | None,
    typer.Option(metavar="RUN", rich_help_panel="Run", help="Run folder to resume, with the recipe and dataset it has."),
]
OutOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", rich_help_panel="Run", help="Run folder; an interrupted run in it is resumed."),
]
PrintRecipeOption = Annotated[
    bool, typer.Option("--print-recipe", rich_help_panel="Run", help="Print the full recipe and exit.")
]
DeviceOption = Annotated[str, typer.Option(rich_help_panel="Run", help="Device to compute on: auto, cpu, cuda, cuda:1 or mps.")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, rich_help_panel="Run", help="Number of CPU threads for compute.")]
WorkersOption = Annotated[
    int | None, typer.Option(min=0, rich_help_panel="Run", help="Number of threads that load and decode images.")
]
MinutesOption = Annotated[
    float | None,
    typer.Option(
        metavar="N", rich_help_panel="Optimisation", help="Train for as many steps as fit into N minutes on this machine."
    ),
]
FindLrOption = Annotated[
    bool,
    typer.Option("--find-lr", rich_help_panel="Optimisation", help="Choose the learning rate by an LR range test first."),
]
TensorboardOption = Annotated[
    bool, typer.Option("--tensorboard", rich_help_panel="Run", help="Also write TensorBoard event files into the run.")
]


@dataclass(frozen=True)
class RunOptions:
    """Options for how a recipe is run and reported."""

    out: Path | None
    print_recipe: bool
    device: str
    threads: int | None
    workers: int | None
    json: bool
    tensorboard: bool = False
    minutes: float | None = None
    find_lr: bool = False


@dataclass(frozen=True)
class RecipeOptions:
    """Options that set a field of the recipe under the name that people type first; ``--set`` reaches the same fields."""

    overrides: list[str] | None = None
    epochs: float | None = None
    batch_size: int | None = None
    lr: float | None = None
    weight_decay: float | None = None
    seed: int | None = None
    precision: str | None = None
    compile: bool = False
    augment: str | None = None

    def apply(self, recipe: "Recipe", num_images: int | None, notes: list[str] | None = None) -> "Recipe":
        """Return the recipe with these options; ``num_images`` to train on turn epochs into steps."""
        from dataclasses import replace

        from vitrail.augment.policy import get_policy
        from vitrail.training.recipe import override_recipe

        if self.augment is not None:
            recipe = replace(recipe, augment=get_policy(self.augment))
        recipe, new_notes = override_recipe(recipe, [*self._assignments(), *(self.overrides or [])])
        if notes is not None:
            notes += new_notes
        if self.epochs is None:
            return recipe
        if not 0 < self.epochs < 1e9:
            raise VitrailError(f"--epochs must be above 0, got {self.epochs:g}; try --epochs 10")
        if num_images is None:
            num_images = recipe_context(recipe.data, None, None, labelled=recipe.masking is None).num_images
        return recipe.with_steps(max(round(self.epochs * num_images / recipe.batch_size), 1))

    def _assignments(self) -> list[str]:
        """Return the options as assignments; one that ``--set`` assigns as well is an error."""
        fields = {
            "--batch-size": ("batch_size", self.batch_size),
            "--lr": ("optim.lr", self.lr),
            "--weight-decay": ("optim.weight_decay", self.weight_decay),
            "--seed": ("seed", self.seed),
            "--precision": ("precision", self.precision),
            "--compile": ("compile", "true" if self.compile else None),
            "--epochs": ("steps", self.epochs),
            "--augment": ("augment", self.augment),
        }
        assigned = {text.partition("=")[0].strip() for text in self.overrides or []}
        given = {option: field for option, (field, value) in fields.items() if value is not None}
        for option, field in given.items():
            if field in assigned:
                raise VitrailError(f"{option} and --set {field} set the same field; leave one of them out")
        return [f"{fields[option][0]}={fields[option][1]}" for option in given if option not in ("--epochs", "--augment")]


def resume_recipe(run: Path, options: "RunOptions", **others: object) -> tuple["Recipe", "RunOptions"]:
    """Return the recipe of the run that ``--resume`` names and options that resume it; nothing else may be set."""
    from dataclasses import replace

    from vitrail.training.run import read_recipe

    set_too = [
        f"--{name.replace('_', '-')}" if name not in ("data", "weights") else name.upper()
        for name, value in others.items()
        if value
    ]
    if options.out is not None:
        set_too.append("--out")
    if set_too:
        raise VitrailError(f"--resume continues {run} with its own recipe and dataset; leave out {' and '.join(set_too)}")
    if not (run / "recipe.json").is_file():
        raise VitrailError(f"--resume must be a run folder with a recipe.json, got {run}; a run is resumed by its folder")
    return read_recipe(run / "recipe.json"), replace(options, out=run)


def run_recipe(recipe: "Recipe", options: RunOptions, notes: Sequence[str] = ()) -> None:
    """Print the recipe, or run it and print the result."""
    from vitrail.config import to_json

    if options.print_recipe:
        if options.minutes is not None or options.find_lr:
            raise VitrailError("--print-recipe runs nothing, and --minutes and --find-lr need measurements; leave them out")
        if os.environ.get("RANK", "0") == "0":
            typer.echo(to_json(recipe))
        return

    from vitrail.training.process_group import process_group

    if options.out is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")):
        raise VitrailError("a run that torchrun may restart needs a named folder to resume from; try --out runs/mine")
    if not options.json and os.environ.get("RANK", "0") == "0":
        for note in notes:
            typer.echo(f"note      {note}", err=True)
    with process_group() as group:
        result = _fit_and_report(recipe, options, group)
    if not group.is_main:
        return
    if options.json:
        print_json(result)
    else:
        _print_result(result)


def recipe_context(data: str, model: str | None, image: tuple[int, int] | None, labelled: bool = True) -> "RecipeContext":
    """Open the dataset and return what a recipe needs to know about it."""
    import numpy as np

    from vitrail.data.batch_transforms import image_sizes
    from vitrail.data.sources.open import open_dataset
    from vitrail.recipes.context import RecipeContext

    with _local_main_first(), progress_bars() as on_progress:
        dataset = open_dataset(data, labelled=labelled, progress=on_progress)
    if not len(dataset.train):
        raise VitrailError(f"{data} has no training images; name a folder with train/{'CLASS/' if labelled else ''}*.jpg")
    sizes = image_sizes(dataset.train, np.arange(len(dataset.train)))
    same_size = sizes is not None and bool((sizes == sizes[0]).all())
    native_size = (int(sizes[0, 0]), int(sizes[0, 1])) if sizes is not None and same_size else None
    pixels = dataset.train.read(0) if same_size else None
    channels = pixels.shape[2] if isinstance(pixels, np.ndarray) else 3
    return RecipeContext(
        data,
        len(dataset.train),
        len(dataset.class_names),
        native_size,
        channels,
        model,
        image,
        class_names=tuple(dataset.class_names),
    )


@contextmanager
def _local_main_first() -> Iterator[None]:
    """Let the first process of each node read or download the data before the others."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield
        return
    from vitrail.training.process_group import process_group

    with process_group() as group, group.local_main_first():
        yield


def _fit_and_report(recipe: "Recipe", options: RunOptions, group: "ProcessGroup") -> dict[str, Any]:
    from vitrail.report.html import atomic_write
    from vitrail.report.run_page import run_page
    from vitrail.training.autotune import AutoTune
    from vitrail.training.callbacks import CallbackList, NullCallback
    from vitrail.training.loop import Hardware, fit
    from vitrail.training.signals import TrainingStopped
    from vitrail.training.tensorboard import TensorBoardCallback

    folder = options.out or Path(group.broadcast_str(lambda: str(_next_free_folder(Path("runs") / recipe.name))))
    report = folder / "report.html"
    report_exists = (
        report.is_file() and (folder / "result.json").is_file()
    )  # of a finished run, whose dataset may have changed since
    quiet = options.json or not group.is_main
    with (
        TensorBoardCallback(folder) if options.tensorboard and group.is_main else nullcontext(NullCallback()) as tensorboard,
        ProgressDisplay(recipe, quiet) as display,
    ):
        try:
            hardware = Hardware(options.device, options.threads, options.workers)
            result = fit(
                recipe, folder, hardware, CallbackList(display, tensorboard), AutoTune(options.minutes, options.find_lr)
            )
        except TrainingStopped as stop:
            out_option = "" if options.out else f" with --out {folder}"
            with suppress(OSError):  # the terminal may have been closed, which then stopped it
                if group.is_main:
                    typer.echo(f"{stop}; the same command{out_option} resumes from there", err=True)
            raise typer.Exit(stop.code) from None
    if not report_exists and group.is_main:
        atomic_write(report, run_page(folder).encode())
    return {**result, "report": str(report)}


def _next_free_folder(wanted: Path) -> Path:
    """Return runs/demo, else runs/demo-2 ...: an earlier run is never overwritten; --out resumes one that was stopped."""
    number, folder = 1, wanted
    while folder.exists():
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder


def _print_result(result: dict[str, Any]) -> None:
    split = result["reported_on"]
    sheet = make_table("metric", "#value")
    for name, value in result[split].items():
        add_row(sheet, f"{split} {name}", format_score(name, value))
        if name == "top1" and "majority_class" in result:
            add_row(sheet, "always predicting the largest class", format_score("top1", result["majority_class"]))
    selected_on = result.get("selected_on", "validation")  # missing in older runs
    for name, value in result["best"].items():
        if name != "step":
            add_row(sheet, f"best {selected_on} {name}, at step {result['best']['step']}", format_score(name, value))
    add_row(sheet, "training time in seconds", f"{result['seconds']:,.0f}")
    add_row(sheet, "images per second", f"{result['images_per_second']:,.0f}")
    screen = make_console()
    screen.print(sheet)
    screen.print(f"model: {result['run']}/best", soft_wrap=True)
    screen.print(f"report: {result['report']}", soft_wrap=True)
