"""``vitrail pretrain``: self-supervised pre-training on images without labels, for ``vitrail finetune`` and ``probe``."""

from typing import Annotated

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
from vitrail.errors import VitrailError, did_you_mean


def pretrain(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Folder with images at any depth, or any other dataset.")],
    image: InputSizeOption = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", rich_help_panel="Model", help="Encoder variant, such as B/16, with its paper's settings."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(rich_help_panel="Optimisation", help="Self-supervised method: masked-patch, mae or simmim."),
    ] = "mae",
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            rich_help_panel="Optimisation",
            help="Prediction target of masked-patch: mean-colour (default), downsampled or pixels.",
        ),
    ] = None,
    overrides: OverridesOption = None,
    out: OutOption = None,
    print_recipe: PrintRecipeOption = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    workers: WorkersOption = None,
    minutes: MinutesOption = None,
    find_lr: FindLrOption = False,
    tensorboard: TensorboardOption = False,
    json: JsonOption = False,
) -> None:
    """Pre-train a model without labels by predicting masked patches."""
    from vitrail.config import override
    from vitrail.recipes.registry import SSL_METHODS, get_recipe

    if method not in SSL_METHODS:
        raise VitrailError(f"--method must be {', '.join(SSL_METHODS)}, got {method!r}{did_you_mean(method, SSL_METHODS)}")
    selected = get_recipe(method, recipe_context(data, model, parse_size(image, "--image") if image else None, labelled=False))
    options = RunOptions(out, print_recipe, device, threads, workers, json, tensorboard, minutes, find_lr)
    target_overrides = [] if target is None else [f"masking.target={target}"]
    run_recipe(override(selected, [*target_overrides, *(overrides or [])]), options)
