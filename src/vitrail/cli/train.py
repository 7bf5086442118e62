"""``vitrail train``: train a model from a dataset, with a report, in a run folder that can be resumed."""

from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.options import IgnoreOption, JsonOption, LabelsColumnOption, SeparatorOption, TargetOption, parse_size
from vitrail.cli.panels import model_option, optimisation_option, run_option
from vitrail.cli.run_recipe import (
    AugmentOption,
    BatchSizeOption,
    CompileOption,
    DeviceOption,
    EpochsOption,
    FindLrOption,
    FitOption,
    FoldsOption,
    HeadOption,
    InputSizeOption,
    LrOption,
    MinutesOption,
    MlflowOption,
    OutOption,
    OverridesOption,
    PrecisionOption,
    PrintRecipeOption,
    ResumeOption,
    RunOptions,
    SeedOption,
    TaskOption,
    TensorboardOption,
    ThreadsOption,
    WandbOption,
    WeightDecayOption,
    WorkersOption,
    resume_command,
    run_command,
)
from vitrail.errors import VitrailError


def train(
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="Image folder or any other dataset; default: the embedded fashion images."),
    ] = None,
    image: InputSizeOption = None,
    fit: FitOption = None,
    labels_column: LabelsColumnOption = None,
    separator: SeparatorOption = None,
    target: TargetOption = None,
    ignore: IgnoreOption = None,
    augment: AugmentOption = None,
    folds: FoldsOption = None,
    task: TaskOption = None,
    head: HeadOption = None,
    model: Annotated[
        str | None, model_option(metavar="NAME", help="Model variant, such as S/16, if the recipe allows it.")
    ] = None,
    recipe: Annotated[
        str | None, optimisation_option(help="Recipe to train with: demo, small, plain, augreg, textbook, resnet, paper-...")
    ] = None,
    epochs: EpochsOption = None,
    batch_size: BatchSizeOption = None,
    lr: LrOption = None,
    weight_decay: WeightDecayOption = None,
    minutes: MinutesOption = None,
    find_lr: FindLrOption = False,
    overrides: OverridesOption = None,
    out: OutOption = None,
    resume: ResumeOption = None,
    recipe_from: Annotated[
        Path | None, run_option(metavar="RUN", help="Run folder or recipe.json to take the recipe from.")
    ] = None,
    print_recipe: PrintRecipeOption = False,
    seed: SeedOption = None,
    precision: PrecisionOption = None,
    compile: CompileOption = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    workers: WorkersOption = None,
    tensorboard: TensorboardOption = False,
    wandb: WandbOption = False,
    mlflow: MlflowOption = False,
    json: JsonOption = False,
) -> None:
    """Train a Vision Transformer from scratch: on your images, or without an argument on the embedded ones in minutes."""
    from vitrail.data.sources.columns import choose_columns
    from vitrail.recipes.task_config import named_task
    from vitrail.training.prepare import RecipeOptions, prepare_recipe, prepare_training
    from vitrail.training.run import find_recipe

    options = RunOptions(out, print_recipe, device, threads, workers, json, minutes, find_lr, tensorboard, wandb, mlflow)
    columns, assignments = choose_columns(labels_column, separator, target, ignore), tuple(overrides or ())
    fields = RecipeOptions(
        assignments, epochs, batch_size, lr, weight_decay, seed, precision, compile, augment, fit, columns, folds, head
    )
    learned = None if task is None else named_task(task)
    if epochs is not None and minutes is not None:
        raise VitrailError("--epochs and --minutes both set the number of steps; leave one of them out")
    if resume is not None:
        others = {"data": data, "task": task, "recipe": recipe, "model": model, "image_size": image, "recipe_from": recipe_from}
        resume_command(resume, fields, options, **others, folds=folds is not None)
    elif recipe_from is not None:
        if any(option is not None for option in (data, task, recipe, model, image)):
            raise VitrailError(
                "--recipe-from sets the dataset, task, recipe, model and size; change them by --set, as in --set data=DIR"
            )
        run_command(lambda progress, group: prepare_recipe(find_recipe(recipe_from), fields, progress, group), options)
    else:
        size = parse_size(image, "--image-size") if image else None
        run_command(
            lambda progress, group: prepare_training(data or "fashion", recipe, model, size, fields, progress, group, learned),
            options,
        )
