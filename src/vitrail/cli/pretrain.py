"""``vitrail pretrain``: self-supervised pre-training on images without labels, for ``vitrail finetune`` and ``probe``."""

from typing import Annotated

import typer

from vitrail.cli.options import JsonOption, parse_size
from vitrail.cli.panels import model_option, optimisation_option
from vitrail.cli.run_recipe import (
    AugmentOption,
    BatchSizeOption,
    CompileOption,
    DeviceOption,
    EpochsOption,
    FindLrOption,
    FitOption,
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
    TensorboardOption,
    ThreadsOption,
    WandbOption,
    WeightDecayOption,
    WorkersOption,
    resume_command,
    run_command,
)
from vitrail.errors import VitrailError


def pretrain(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA", help="Folder with images at any depth, or any other dataset; required unless --resume is given."
        ),
    ] = None,
    image: InputSizeOption = None,
    fit: FitOption = None,
    augment: AugmentOption = None,
    model: Annotated[
        str | None, model_option(metavar="NAME", help="Encoder variant, such as B/16, with its paper's settings.")
    ] = None,
    method: Annotated[str, optimisation_option(help="Self-supervised method: masked-patch, mae or simmim.")] = "mae",
    target: Annotated[
        str | None,
        optimisation_option(
            metavar="TARGET", help="Prediction target of masked-patch: mean-colour (default), downsampled or pixels."
        ),
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
    """Pre-train a model without labels by predicting masked patches."""
    from vitrail.training.prepare import RecipeOptions, prepare_pretraining

    if epochs is not None and minutes is not None:
        raise VitrailError("--epochs and --minutes both set the number of steps; leave one of them out")
    options = RunOptions(out, print_recipe, device, threads, workers, json, minutes, find_lr, tensorboard, wandb, mlflow)
    fields = RecipeOptions(tuple(overrides or ()), epochs, batch_size, lr, weight_decay, seed, precision, compile, augment, fit)
    if resume is not None:
        resume_command(resume, fields, options, data=data, model=model, image_size=image, target=target)
        return
    if data is None:
        raise VitrailError("pretrain needs a dataset, such as a folder of images; try vitrail pretrain photos --method mae")
    size = parse_size(image, "--image-size") if image else None
    run_command(
        lambda progress, group: prepare_pretraining(data, method, model, size, fields, progress, group, target), options
    )
