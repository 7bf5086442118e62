"""``vitrail finetune``: fine-tune weights of any origin on your classes.

Images have the size that the weights were trained at unless ``--image-size`` says otherwise: a laptop can bear that cost, and
the position embedding stays as it is. The paper's 384 pixels are three times the work of 224; ``--recipe paper-finetune``
takes them.
"""

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.options import IgnoreOption, JsonOption, LabelsColumnOption, SeparatorOption, TargetOption, parse_size
from vitrail.cli.panels import data_option, model_option, optimisation_option
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

if TYPE_CHECKING:
    from vitrail.data.sources.dataset import Progress
    from vitrail.models.build import Model
    from vitrail.recipes.recipe import Recipe
    from vitrail.training.prepare import PreparedRun
    from vitrail.training.process_group import ProcessGroup


def finetune(
    weights: Annotated[
        str | None,
        typer.Argument(
            metavar="WEIGHTS",
            help="Weights to start from: a published model such as dinov2-s14 (vitrail models), a run, a file, hf:owner/name; "
            "required unless --resume is given.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="Image folder or any other labelled dataset; required unless --resume is given."),
    ] = None,
    image: Annotated[
        str | None,
        data_option(
            "--image-size",
            metavar="H[xW]",
            help="Height and width of the input images in pixels; default: the size the weights were trained at.",
        ),
    ] = None,
    fit: FitOption = None,
    labels_column: LabelsColumnOption = None,
    separator: SeparatorOption = None,
    target: TargetOption = None,
    ignore: IgnoreOption = None,
    augment: AugmentOption = None,
    folds: FoldsOption = None,
    task: TaskOption = None,
    head: HeadOption = None,
    trainable: Annotated[
        str,
        model_option(
            metavar="all|last:N|head", help="Parameters to train: all, the last N blocks with the head, or the head alone."
        ),
    ] = "all",
    recipe: Annotated[
        str | None,
        optimisation_option(help="Recipe to train with: finetune, segment or paper-finetune; default: the task's."),
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
    """Fine-tune pretrained weights on the classes of your images."""
    from vitrail.data.sources.columns import choose_columns
    from vitrail.recipes.task_config import named_task
    from vitrail.training.prepare import RecipeOptions, prepare_finetuning
    from vitrail.weights.catalogue import is_available

    if epochs is not None and minutes is not None:
        raise VitrailError("--epochs and --minutes both set the number of steps; leave one of them out")
    options = RunOptions(out, print_recipe, device, threads, workers, json, minutes, find_lr, tensorboard, wandb, mlflow)
    columns, assignments = choose_columns(labels_column, separator, target, ignore), tuple(overrides or ())
    fields = RecipeOptions(
        assignments, epochs, batch_size, lr, weight_decay, seed, precision, compile, augment, fit, columns, folds, head
    )
    learned = None if task is None else named_task(task)
    if resume is not None:
        resume_command(
            resume, fields, options, weights=weights, data=data, task=task, image_size=image, folds=folds is not None
        )
        return
    if weights is None or data is None:
        raise VitrailError(
            "finetune needs weights and a dataset; try vitrail finetune dinov2-s14 photos, "
            "with any name of `vitrail models`, published ViT file, model folder or run of yours as the weights"
        )
    size = parse_size(image, "--image-size") if image else None
    if out is not None and (out / "recipe.json").is_file() and not is_available(weights):
        raise VitrailError(f"{weights} does not exist; {out} resumes without it: vitrail finetune --resume {out}")

    def prepare(progress: "Progress", group: "ProcessGroup") -> "PreparedRun":
        prepared, model = prepare_finetuning(weights, data, recipe, size, trainable, fields, progress, group, learned)
        if group.is_main and not json:
            _print_init(weights, model, prepared.recipe)
        return prepared

    run_command(prepare, options)


def _print_init(weights: str, model: "Model", recipe: "Recipe") -> None:
    new_head = f"with a new head for {recipe.task.describe_outputs(recipe.model)}"
    head = "with their head, since the classes are the same" if recipe.keep_head else new_head
    typer.echo(f"init      {weights}: {model.load_report.origin} weights {head}", err=True)
    logger, summary = logging.getLogger("vitrail"), model.load_report.summary()
    if logger.isEnabledFor(logging.INFO):  # --verbose
        for line in model.load_report.lines()[1:]:
            typer.echo(f"          {line}", err=True)
    elif summary and logger.isEnabledFor(logging.WARNING):  # not --quiet
        typer.echo(f"          {summary} (--verbose gives the reasons)", err=True)
