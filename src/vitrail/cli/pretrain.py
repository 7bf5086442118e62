"""``vitrail pretrain``: learn from pictures without labels, for weights that ``vitrail finetune`` and ``probe`` start from."""

from typing import Annotated

import typer

from vitrail.cli.fitting import Asked, Device, FindLr, Minutes, Out, Show, Tensorboard, Threads, Workers, carry_out, given
from vitrail.cli.options import Json, Settings, pair
from vitrail.errors import VitrailError, suggestion


def pretrain(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A folder with pictures below it, or any other data set.")],
    method: Annotated[str, typer.Option(help="masked-patch, mae or simmim.")] = "mae",
    target: Annotated[
        str | None, typer.Option(metavar="WHAT", help="Of masked-patch: colour, shrunken or pixels; else colour.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Such as B/16, with its paper's settings.")] = None,
    image: Annotated[str | None, typer.Option(metavar="H[xW]", help="Height and width of the pictures.")] = None,
    settings: Settings = None,
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
    """Learn from pictures alone: hide patches and predict them; labels are not needed, and never learnt from."""
    from vitrail.config import override
    from vitrail.recipes.book import METHODS
    from vitrail.recipes.book import recipe as by_name

    if method not in METHODS:
        raise VitrailError(f"no method is named {method!r}, there are {', '.join(METHODS)}{suggestion(method, METHODS)}")
    chosen = by_name(method, given(data, model, pair(image, "--image") if image else None, labelled=False))
    asked = Asked(out, show, device, threads, workers, json, tensorboard, minutes, find_lr)
    wanted = [] if target is None else [f"masking.target={target}"]
    carry_out(override(chosen, [*wanted, *(settings or [])]), asked)
