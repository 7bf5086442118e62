"""``vitrail train``: train a model from a dataset, with a report, in a run folder that can be resumed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.options import JsonOption, parse_size
from vitrail.cli.run_recipe import (
    DeviceOption,
    FindLrOption,
    InputSizeOption,
    MinutesOption,
    OutOption,
    OverridesOption,
    PrintRecipeOption,
    RunOptions,
    TensorboardOption,
    ThreadsOption,
    WorkersOption,
    recipe_context,
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
    overrides: OverridesOption = None,
    out: OutOption = None,
    recipe_from: Annotated[
        Path | None,
        typer.Option(metavar="RUN", rich_help_panel="Run", help="Run folder or recipe.json whose recipe is used."),
    ] = None,
    print_recipe: PrintRecipeOption = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    workers: WorkersOption = None,
    minutes: MinutesOption = None,
    find_lr: FindLrOption = False,
    tensorboard: TensorboardOption = False,
    json: JsonOption = False,
) -> None:
    """Train a Vision Transformer on your images, or without an argument on the embedded ones in a few minutes."""
    from vitrail.config import override
    from vitrail.recipes.registry import SSL_METHODS, get_recipe

    if recipe in SSL_METHODS:
        raise VitrailError(f"{recipe} trains without labels; try vitrail pretrain {data or 'fashion'} --method {recipe}")
    if recipe_from is not None:
        if any(option is not None for option in (data, recipe, model, image)):
            raise VitrailError(
                "--recipe-from sets the dataset, recipe, model and size; change them by --set, as in --set data=DIR"
            )
        selected = _read_recipe(recipe_from)
    else:
        context = recipe_context(data or "fashion", model, parse_size(image, "--image") if image else None)
        selected = get_recipe(recipe or ("demo" if context.data == "fashion" else "small"), context)
    options = RunOptions(out, print_recipe, device, threads, workers, json, tensorboard, minutes, find_lr)
    run_recipe(override(selected, overrides or []), options)


def _read_recipe(path: Path) -> "Recipe":
    from vitrail.training.run import read_recipe

    file = path / "recipe.json" if path.is_dir() else path
    if not file.is_file():
        raise VitrailError(f"--recipe-from must be a run or its recipe.json, got {path}; vitrail train writes one")
    return read_recipe(file)
