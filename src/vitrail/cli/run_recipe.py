"""Options, run folder and final table that the commands running a recipe share."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitrail.cli.console import add_row, make_console, make_table, print_json, progress_bars
from vitrail.cli.options import column_options
from vitrail.cli.panels import data_option, model_option, optimisation_option, run_option
from vitrail.cli.training_progress import ProgressDisplay, format_score
from vitrail.data.preprocess import Fit
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.data.sources.dataset import Progress
    from vitrail.recipes.recipe import Recipe
    from vitrail.training.cross_validation import CrossValidation
    from vitrail.training.prepare import PreparedRun, RecipeOptions
    from vitrail.training.process_group import ProcessGroup
    from vitrail.training.trained_run import TrainedRun

InputSizeOption = Annotated[
    str | None, data_option("--image-size", metavar="H[xW]", help="Height and width of the input images in pixels.")
]
OverridesOption = Annotated[
    list[str] | None,
    optimisation_option(
        "--set", metavar="FIELD=VALUE", help="Override a field of the recipe, such as steps=1000 or optim.lr=1e-3; repeatable."
    ),
]
EpochsOption = Annotated[
    float | None, optimisation_option(metavar="N", help="Number of passes over the training images; sets steps.")
]
BatchSizeOption = Annotated[int | None, optimisation_option(metavar="B", help="Number of images per step; sets batch_size.")]
LrOption = Annotated[float | None, optimisation_option("--lr", metavar="LR", help="Peak learning rate; sets optim.lr.")]
WeightDecayOption = Annotated[float | None, optimisation_option(metavar="WD", help="Weight decay; sets optim.weight_decay.")]
AugmentOption = Annotated[
    str | None, data_option(metavar="NAME", help="Augmentation policy, such as none, light1, medium1 or pad.")
]
FitOption = Annotated[
    Fit | None,
    data_option(
        help="How an image of another aspect ratio becomes the input: its centre, the whole image padded with the mean colour, "
        "or stretched; sets preprocess.fit."
    ),
]
TaskOption = Annotated[
    str | None,
    model_option(
        "--task",
        metavar="NAME",
        help="What to learn: classify, multi-label, regress or segment; default: what the targets of the dataset are for.",
    ),
]
HeadOption = Annotated[
    Literal["linear", "eomt", "segmenter"] | None,
    model_option(
        help="Head of a segmentation model: one linear layer from each patch to its pixels, queries in the last blocks (EoMT), "
        "or a transformer with a token for each class (Segmenter); sets task.head."
    ),
]
SeedOption = Annotated[
    int | None, run_option(metavar="N", help="Seed of the initial weights, the data order and the augmentation; sets seed.")
]
PrecisionOption = Annotated[
    Literal["float32", "bfloat16"] | None, run_option(help="Number format of the computation; sets precision.")
]
CompileOption = Annotated[bool, run_option("--compile", help="Compile the model with torch.compile; sets compile.")]
ResumeOption = Annotated[
    Path | None,
    run_option(
        metavar="RUN",
        help="Run folder to resume, with its own recipe and dataset; with changed options it continues in a new folder.",
    ),
]
FoldsOption = Annotated[
    int | None,
    data_option("--folds", metavar="K", help="Cross-validate: K runs, each tested on the images that it does not train on."),
]
OutOption = Annotated[Path | None, run_option(metavar="DIR", help="Run folder; an interrupted run in it is resumed.")]
PrintRecipeOption = Annotated[bool, run_option("--print-recipe", help="Print the full recipe and exit.")]
DeviceOption = Annotated[str, run_option(help="Device to compute on: auto, cpu, cuda, cuda:1 or mps.")]
ThreadsOption = Annotated[int | None, run_option(min=1, help="Number of CPU threads for compute.")]
WorkersOption = Annotated[int | None, run_option(min=0, help="Number of threads that load and decode images.")]
MinutesOption = Annotated[
    float | None, optimisation_option(metavar="N", help="Train for as many steps as fit into N minutes on this machine.")
]
FindLrOption = Annotated[bool, optimisation_option("--find-lr", help="Choose the learning rate by an LR range test first.")]
TensorboardOption = Annotated[bool, run_option("--tensorboard", help="Also write TensorBoard event files into the run.")]
WandbOption = Annotated[bool, run_option("--wandb", help="Also log the run to Weights & Biases.")]
MlflowOption = Annotated[bool, run_option("--mlflow", help="Also log the run to MLflow.")]


@dataclass(frozen=True)
class RunOptions:
    """Options for how a recipe is run and reported."""

    out: Path | None
    print_recipe: bool
    device: str
    threads: int | None
    workers: int | None
    json: bool
    minutes: float | None = None
    find_lr: bool = False
    tensorboard: bool = False
    wandb: bool = False
    mlflow: bool = False

    @property
    def trackers(self) -> list[str]:
        """Names of the experiment trackers to log to."""
        return [name for name in ("tensorboard", "wandb", "mlflow") if getattr(self, name)]


OPTION_NAMES = (
    "epochs", "batch_size", "lr", "weight_decay", "seed", "precision", "augment", "fit", "model", "recipe", "image_size",
    "method", "folds", "trainable", "task", "head", "labels_column", "separator", "target", "ignore",
    "resume", "recipe_from", "out", "minutes", "device", "threads", "workers",
)  # fmt: skip
MAX_CLASS_ROWS = 20  # classes whose scores are printed
Prepare = Callable[["Progress", "ProcessGroup"], "PreparedRun"]  # opens the dataset, and makes the recipe


def run_command(prepare: Prepare, options: RunOptions) -> None:
    """Prepare a run; then print its recipe, or train it and print the result."""
    from vitrail.config import to_json
    from vitrail.training.process_group import process_group
    from vitrail.training.run import choose_folder

    if options.print_recipe and (options.minutes is not None or options.find_lr):
        raise VitrailError("--print-recipe runs nothing, and --minutes and --find-lr need measurements; leave them out")
    if options.out is None and not options.print_recipe and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")):
        raise VitrailError("a run that torchrun may restart needs a named folder to resume from; try --out runs/mine")
    with _option_names(), process_group() as group:
        with progress_bars() as on_progress:
            prepared = prepare(on_progress, group)
        if options.print_recipe:
            if group.is_main:
                typer.echo(to_json(prepared.recipe))
            return
        if not options.json and group.is_main:
            for note in (*prepared.notes, *_budget_notes(prepared, options)):
                typer.echo(f"note      {typed_options(column_options(note))}", err=True)
        folder = choose_folder(prepared.with_out(options.out).folder, prepared.recipe.name, group)
        with _stopped(folder, options, group):
            train = _train if prepared.folds is None else _cross_validate
            trained = train(prepared.in_folder(folder), options, group)
    if not group.is_main:
        return
    result = {**trained.result, "report": str(trained.report)}
    if options.json:
        print_json(result)
    elif prepared.folds is None:
        _print_result(result, trained.run.recipe())
    else:
        _print_folds(result, trained.run.recipe())


def _budget_notes(prepared: "PreparedRun", options: RunOptions) -> list[str]:
    if prepared.folds is None or options.minutes is None:
        return []
    return [f"the {options.minutes:g} minutes are for all folds: {options.minutes / prepared.folds:.3g} minutes each"]


def resume_command(run: Path, fields: "RecipeOptions", options: RunOptions, **others: object) -> None:
    """Resume a run by its folder or, if fields of its recipe are changed, continue it in a new folder."""
    from vitrail.training.continue_run import prepare_resumption
    from vitrail.training.run import Run

    set_too = [
        f"--{name.replace('_', '-')}" if name not in ("data", "weights") else name.upper()
        for name, value in others.items()
        if value
    ]
    if set_too:
        raise VitrailError(f"--resume continues {run} with its own recipe and dataset; leave out {' and '.join(set_too)}")
    run_command(
        lambda progress, group: prepare_resumption(Run(run), fields, options.out, progress, group), replace(options, out=run)
    )


def _train(prepared: "PreparedRun", options: RunOptions, group: "ProcessGroup") -> "TrainedRun":
    from vitrail.runs import run_prepared
    from vitrail.training.autotune import AutoTune
    from vitrail.training.trackers import open_trackers
    from vitrail.training.trainer import Hardware

    assert prepared.folder is not None
    with (
        open_trackers(options.trackers if group.is_main else (), prepared.folder) as callbacks,
        ProgressDisplay(prepared.recipe, options.json or not group.is_main) as display,
    ):
        return run_prepared(
            prepared,
            hardware=Hardware(options.device, options.threads, options.workers),
            callbacks=[display, *callbacks],  # type: ignore[list-item]  # inheriting would import torch for --help
            autotune=AutoTune(options.minutes, options.find_lr),
            group=group,
        )


def _cross_validate(prepared: "PreparedRun", options: RunOptions, group: "ProcessGroup") -> "CrossValidation":
    from vitrail.runs import run_folds
    from vitrail.training.autotune import AutoTune

    def train_fold(fold: "PreparedRun", autotune: AutoTune) -> "TrainedRun":
        return _train(fold, replace(options, minutes=autotune.minutes, find_lr=autotune.find_lr), group)

    def on_message(message: str) -> None:
        if group.is_main and not options.json:
            typer.echo(message, err=True)

    return run_folds(prepared, train_fold, AutoTune(options.minutes, options.find_lr), None, group, on_message)


@contextmanager
def _stopped(folder: Path, options: RunOptions, group: "ProcessGroup") -> Iterator[None]:
    """Exit with the code of a stop signal, after saying how the run is resumed."""
    from vitrail.training.signals import TrainingStopped

    try:
        yield
    except TrainingStopped as stop:
        how = "the same command" if options.out == folder else f"vitrail train --resume {folder}"
        with suppress(OSError):  # the terminal may have been closed, which then stopped it
            if group.is_main:
                typer.echo(f"{stop}; {how} resumes from there", err=True)
        raise typer.Exit(stop.code) from None


@contextmanager
def _option_names() -> Iterator[None]:
    """Name the options in an error as they are typed: what Python knows as ``epochs=10`` is ``--epochs 10`` here."""
    try:
        yield
    except VitrailError as error:
        error.args = (typed_options(str(error)),)
        raise


def typed_options(message: str) -> str:
    """Return a message about the options of ``vitrail.train`` with those of the command."""
    message = re.sub(r"settings\['([\w.]+)'\]", r"--set \1", message)
    names = "|".join(OPTION_NAMES)
    message = re.sub(rf"(?<![\w.])({names})=(?!=)", lambda match: f"--{match[1].replace('_', '-')} ", message)
    return re.sub(rf"^({names}|compile)(?= must be | and --set )", lambda match: f"--{match[1].replace('_', '-')}", message)


def _print_result(result: dict[str, Any], recipe: "Recipe") -> None:
    from vitrail.tasks.registry import build_task

    task = build_task(recipe.task, recipe.model, recipe.preprocess)
    fractions, split = task.fractions, result["reported_on"]
    sheet = make_table("metric", "#value")
    for name, value in result[split].items():
        if name == "top5" and recipe.model.classes <= 5:  # always correct
            continue
        title = f"{split} {task.metric_titles.get(name, name)}"
        if isinstance(value, dict):  # by class
            for class_name, of_class in list(value.items())[:MAX_CLASS_ROWS]:
                add_row(sheet, f"{title} of {class_name}", format_score(of_class, name in fractions))
            continue
        add_row(sheet, title, format_score(value, name in fractions))
        if name == "top1" and "majority_class" in result:
            add_row(sheet, "always predicting the largest class", format_score(result["majority_class"], True))
        if name == task.primary_metric and "mean_prediction" in result:
            add_row(sheet, "always predicting the mean", format_score(result["mean_prediction"], False))
    selected_on = result.get("selected_on", "validation")  # missing in older runs
    for name, value in result["best"].items():
        if name != "step":
            add_row(
                sheet, f"best {selected_on} {name}, at step {result['best']['step']}", format_score(value, name in fractions)
            )
    add_row(sheet, "training time in seconds", f"{result['seconds']:,.0f}")
    add_row(sheet, "images per second", f"{result['images_per_second']:,.0f}")
    screen = make_console()
    screen.print(sheet)
    screen.print(f"model: {result['run']}/best", soft_wrap=True)
    screen.print(f"report: {result['report']}", soft_wrap=True)


def _print_folds(result: dict[str, Any], recipe: "Recipe") -> None:
    from vitrail.tasks.registry import build_task
    from vitrail.training.cross_validation import BASELINE_TITLES

    task = build_task(recipe.task, recipe.model, recipe.preprocess)
    fractions = task.fractions
    sheet = make_table("metric", "#mean of the folds", "#95 % interval", "#all predictions together")
    for name, mean in result["mean"].items():
        if name == "top5" and recipe.model.classes <= 5:  # always correct
            continue
        low, high = (format_score(value, name in fractions) for value in result["intervals"][name])
        pooled = result.get("pooled", {})
        together = format_score(pooled[name], name in fractions) if name in pooled else ""
        title = task.metric_titles.get(name, name)
        add_row(sheet, title, format_score(mean, name in fractions), f"{low} to {high}", together)
    for name, title in BASELINE_TITLES.items():
        if name in result:
            add_row(sheet, title, format_score(result[name], True), "", "")
    screen = make_console()
    screen.print(sheet)
    if "out_of_fold" in result:
        screen.print(f"predictions: {result['out_of_fold']}", soft_wrap=True)
    screen.print(f"report: {result['report']}", soft_wrap=True)
    screen.print(f"a model to use: vitrail train --recipe-from {result['run']} (the folds only measure)", soft_wrap=True)
