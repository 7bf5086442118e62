"""``vitrail train``: train a model from a dataset, with a report, in a run folder that can be resumed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.options import JsonOption, parse_size
from vitrail.cli.run_recipe import (
    AugmentOption,
    BatchSizeOption,
    CompileOption,
    DeviceOption,
    EpochsOption,
    FindLrOption,
    InputSizeOption,
    LrOption,
    MinutesOption,
    OutOption,
    OverridesOption,
    PrecisionOption,
    PrintRecipeOption,
    RecipeOptions,
    ResumeOption,
    RunOptions,
    SeedOption,
    TensorboardOption,
    ThreadsOption,
    WeightDecayOption,
    WorkersOption,
    recipe_context,
    resume_recipe,
    run_recipe,
)
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.training.recipe import Recipe


def train(
    data: Annotated[
        str | None,
        typer.Argument(metavar="[DATA]", help="Image folder or any other dataset; default: the embedded fashion images."),
    ] = None,
    image: InputSizeOption = None,
    augment: AugmentOption = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", rich_help_panel="Model", help="Model variant, such as S/16, if the recipe allows it."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Optimisation",
            help="Recipe to train with: demo, small, plain, augreg, textbook, resnet, paper-...",
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
    recipe_from: Annotated[
        Path | None,
        typer.Option(metavar="RUN", rich_help_panel="Run", help="Run folder or recipe.json whose recipe is used."),
    ] = None,
    print_recipe: PrintRecipeOption = False,
    seed: SeedOption = None,
    precision: PrecisionOption = None,
    compile: CompileOption = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    workers: WorkersOption = None,
    tensorboard: TensorboardOption = False,
    json: JsonOption = False,
) -> None:
    """Train a Vision Transformer on your images, or without an argument on the embedded ones in a few minutes."""
    from vitrail.recipes.registry import SSL_METHODS, get_recipe

    if recipe in SSL_METHODS:
        raise VitrailError(f"{recipe} trains without labels; try vitrail pretrain {data or 'fashion'} --method {recipe}")
    options = RunOptions(out, print_recipe, device, threads, workers, json, tensorboard, minutes, find_lr)
    fields = RecipeOptions(overrides, epochs, batch_size, lr, weight_decay, seed, precision, compile, augment)
    if epochs is not None and minutes is not None:
        raise VitrailError("--epochs and --minutes both set the number of steps; leave one of them out")
    notes: list[str] = []
    if resume is not None:
        others = {
            "data": data,
            "recipe": recipe,
            "model": model,
            "image_size": image,
            "recipe_from": recipe_from,
            "augment": augment,
        }
        selected, options = resume_recipe(resume, options, **others)
        selected = fields.apply(selected, None, notes)
    elif recipe_from is not None:
        if any(option is not None for option in (data, recipe, model, image)):
            raise VitrailError(
                "--recipe-from sets the dataset, recipe, model and size; change them by --set, as in --set data=DIR"
            )
        selected = fields.apply(_read_recipe(recipe_from), None, notes)
    else:
        context = recipe_context(data or "fashion", model, parse_size(image, "--image-size") if image else None)
        default = "demo" if context.data == "fashion" and model is None and image is None else "small"
        selected = fields.apply(get_recipe(recipe or default, context), context.num_images, notes)
        if data is not None and context.data != "fashion":
            notes.append(
                f"training from scratch on {context.num_images:,} images; with a few thousand images, pre-trained weights "
                f"reach far higher accuracy in minutes: vitrail finetune WEIGHTS {data}"
            )
    run_recipe(selected, options, notes)


def _read_recipe(path: Path) -> "Recipe":
    from vitrail.training.run import read_recipe

    file = path / "recipe.json" if path.is_dir() else path
    if not file.is_file():
        raise VitrailError(f"--recipe-from must be a run or its recipe.json, got {path}; vitrail train writes one")
    return read_recipe(file)
