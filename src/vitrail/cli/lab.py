"""``vitrail lab``: experiments of the paper, scaled to a machine that people have."""

from typing import Annotated

import typer

from vitrail.cli.options import Json
from vitrail.cli.screen import add, console, print_json, progress, table

lab = typer.Typer(name="lab", help="Experiments of the paper, scaled down.", no_args_is_help=True)


@lab.callback()
def _group() -> None:
    """Experiments of the paper, scaled down."""


@lab.command()
def masked(
    data: Annotated[str, typer.Option(metavar="DATA", help="Small pictures with labels, such as fashion.")] = "fashion",
    seeds: Annotated[int, typer.Option(min=2, max=5, help="Draws of the labels.")] = 3,
    pretrain: Annotated[int, typer.Option(metavar="N", min=1, help="Steps of pre-training.")] = 2000,
    finetune: Annotated[int, typer.Option(metavar="N", min=1, help="Steps of fine-tuning, the same from every start.")] = 200,
    question: Annotated[list[str] | None, typer.Option(help="few or order; repeatable, else both.")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Of few: masked-patch, mae, simmim, 'masked-patch, pixels' ...; else the first three."),
    ] = None,
    json: Json = False,
) -> None:
    """B.1.2: does learning without labels help where labels are few, and is it worth less than other labels?"""
    from dataclasses import asdict

    from vitrail.errors import VitrailError
    from vitrail.lab.masked import METHODS, Length, masked_lab

    for name in question or ():
        if name not in ("few", "order"):
            raise VitrailError(f"--question must be few or order, got {name!r}")
    for name in method or ():
        if name not in METHODS:
            raise VitrailError(f"--method must be one of {'; '.join(METHODS)}, got {name!r}")
    methods = tuple(method or ("masked-patch", "mae", "simmim"))
    length = Length(pretrain=pretrain, finetune=finetune)
    with progress() as tell:
        found = masked_lab(data, seeds, length, methods, questions=tuple(question or ("few", "order")), progress=tell)
    if json:
        print_json(asdict(found))
        return
    screen = console()
    for asked, title in (("few", "all classes, few labels"), ("order", "pre-trained on other classes than the task's")):
        rows = [arm for arm in found.arms if arm.question == asked]
        if rows:
            sheet = table("start", "#labels", "#lr", "#test", "#beyond nothing", title=f"{data}: {title}")
            for arm in rows:
                sure = "" if arm.error is None or arm.start == "nothing" else f"{arm.gain:+.1%} ± {arm.error:.1%}"
                add(sheet, arm.start, f"{arm.labels:,}", f"{arm.lr:g}", f"{arm.mean:.1%}", sure)
            screen.print(sheet)
