"""``vitrail train``: train a model from a dataset, with a report, in a run folder that can be resumed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.fitting import (
    Asked,
    Device,
    FindLr,
    ImageSize,
    Minutes,
    Out,
    Overrides,
    Show,
    Tensorboard,
    Threads,
    Workers,
    carry_out,
    given,
)
from vitrail.cli.options import Json, pair
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.train.recipe import Recipe


def train(
    data: Annotated[
        str | None,
        typer.Argument(metavar="[DATA]", help="Image folder or any other dataset; default: the embedded fashion images."),
    ] = None,
    image: ImageSize = None,
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
    settings: Overrides = None,
    out: Out = None,
    recipe_from: Annotated[
        Path | None,
        typer.Option(metavar="RUN", rich_help_panel="Run", help="Run folder or recipe.json whose recipe is used."),
    ] = None,
    show: Show = False,
    device: Device = "auto",
    threads: Threads = None,
    workers: Workers = None,
    minutes: Minutes = None,
    find_lr: FindLr = False,
    tensorboard: Tensorboard = False,
    json: Json = False,
) -> None:
    """Train a Vision Transformer on your images, or without an argument on the embedded ones in a few minutes."""
    from vitrail.config import override
    from vitrail.recipes.book import METHODS
    from vitrail.recipes.book import recipe as by_name

    if recipe in METHODS:
        raise VitrailError(f"{recipe} trains without labels; try vitrail pretrain {data or 'fashion'} --method {recipe}")
    if recipe_from is not None:
        if any(word is not None for word in (data, recipe, model, image)):
            raise VitrailError(
                "--recipe-from sets the dataset, recipe, model and size; change them by --set, as in --set data=DIR"
            )
        chosen = _noted(recipe_from)
    else:
        known = given(data or "fashion", model, pair(image, "--image") if image else None)
        chosen = by_name(recipe or ("demo" if known.data == "fashion" else "small"), known)
    asked = Asked(out, show, device, threads, workers, json, tensorboard, minutes, find_lr)
    carry_out(override(chosen, settings or []), asked)


def _noted(path: Path) -> "Recipe":
    from vitrail.train.run import read_recipe

    file = path / "recipe.json" if path.is_dir() else path
    if not file.is_file():
        raise VitrailError(f"--recipe-from must be a run or its recipe.json, got {path}; vitrail train writes one")
    return read_recipe(file)
