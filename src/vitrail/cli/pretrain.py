"""``vitrail pretrain``: self-supervised pre-training on images without labels, for ``vitrail finetune`` and ``probe``."""

from typing import Annotated

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
from vitrail.errors import VitrailError, suggestion


def pretrain(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Folder with images at any depth, or any other dataset.")],
    image: ImageSize = None,
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
    settings: Overrides = None,
    out: Out = None,
    show: Show = False,
    device: Device = "auto",
    threads: Threads = None,
    workers: Workers = None,
    minutes: Minutes = None,
    find_lr: FindLr = False,
    tensorboard: Tensorboard = False,
    json: Json = False,
) -> None:
    """Pre-train a model without labels by predicting masked patches."""
    from vitrail.config import override
    from vitrail.recipes.book import METHODS
    from vitrail.recipes.book import recipe as by_name

    if method not in METHODS:
        raise VitrailError(f"--method must be {', '.join(METHODS)}, got {method!r}{suggestion(method, METHODS)}")
    chosen = by_name(method, given(data, model, pair(image, "--image") if image else None, labelled=False))
    asked = Asked(out, show, device, threads, workers, json, tensorboard, minutes, find_lr)
    wanted = [] if target is None else [f"masking.target={target}"]
    carry_out(override(chosen, [*wanted, *(settings or [])]), asked)
