"""``vitrail train``: from pictures to a model, a report and a run that can be gone on with."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.fitting import Asked, Device, FindLr, Minutes, Out, Show, Tensorboard, Threads, Workers, carry_out, given
from vitrail.cli.options import Json, Settings, pair
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.train.recipe import Recipe


def train(
    data: Annotated[str | None, typer.Argument(metavar="[DATA]", help="A folder of pictures or any other data set.")] = None,
    recipe: Annotated[str | None, typer.Option(help="demo, small, plain, augreg, textbook, resnet, paper-...")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Such as S/16, where the recipe leaves it open.")] = None,
    image: Annotated[str | None, typer.Option(metavar="H[xW]", help="Height and width of the pictures.")] = None,
    settings: Settings = None,
    out: Out = None,
    again: Annotated[Path | None, typer.Option(metavar="RUN", help="A run or its recipe.json, to run it once more.")] = None,
    show: Show = False,
    device: Device = "auto",
    threads: Threads = None,
    workers: Workers = None,
    minutes: Minutes = None,
    find_lr: FindLr = False,
    tensorboard: Tensorboard = False,
    json: Json = False,
) -> None:
    """Train a Vision Transformer on your pictures, or without an argument on the embedded ones in a few minutes."""
    from vitrail.config import override
    from vitrail.recipes.book import METHODS
    from vitrail.recipes.book import recipe as by_name

    if recipe in METHODS:
        raise VitrailError(f"{recipe} learns without labels; try vitrail pretrain {data or 'fashion'} --method {recipe}")
    if again is not None:
        if any(word is not None for word in (data, recipe, model, image)):
            raise VitrailError(
                "--again brings its own data, recipe, model and size; change them by --set, as in --set data=DIR"
            )
        chosen = _noted(again)
    else:
        known = given(data or "fashion", model, pair(image, "--image") if image else None)
        chosen = by_name(recipe or ("demo" if known.data == "fashion" else "small"), known)
    asked = Asked(out, show, device, threads, workers, json, tensorboard, minutes, find_lr)
    carry_out(override(chosen, settings or []), asked)


def _noted(path: Path) -> "Recipe":
    from vitrail.train.run import read_recipe

    file = path / "recipe.json" if path.is_dir() else path
    if not file.is_file():
        raise VitrailError(f"--again must be a run or its recipe.json, got {path}; vitrail train writes one")
    return read_recipe(file)
