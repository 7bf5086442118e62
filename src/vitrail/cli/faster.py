"""The switches that make a model answer sooner, declared once for every command that has them."""

from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.options import pair
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.models.faster import Faster

Compile = Annotated[bool, typer.Option("--compile", help="Compile the model, which takes about a minute first.")]
Merge = Annotated[
    str | None,
    typer.Option(metavar="N|N/3|1.5x", help="Merge N alike tokens in every (third) layer, or as many as make it so fast."),
]
Drop = Annotated[float, typer.Option(metavar="SHARE", help="Leave out this share of the patches: where least happens.")]
Image = Annotated[str | None, typer.Option(metavar="S|HxW", help="Show pictures at another size, such as 160.")]


def merging(word: str | None) -> tuple[int | str, int]:
    """``8``, ``30/3`` (in every third layer) or ``1.5x``: how many, and in every how many layers."""
    tokens, _, every = (word or "0").partition("/")
    if every and not (every.isdecimal() and len(every) < 7):
        raise VitrailError(f"--merge must be N, N/LAYERS or a speed as 1.5x, got {(word or '')[:20]!r}; try 8, 30/3 or 1.5x")
    return int(tokens) if tokens.isdecimal() and len(tokens) < 7 else tokens, int(every or 1)


def switches(compile: bool, merge: str | None, drop: float, image: str | None, device: str = "cpu") -> "Faster | None":
    """What was switched on; none: nothing. Says what compiling takes, and whether it can be done here at all."""
    from vitrail.models.faster import Faster

    how = Faster(compile, *merging(merge), drop, None if image is None else pair(image, "--image"))
    if compile:
        from vitrail.train.precision import compiler_fault

        if fault := compiler_fault(device):
            raise VitrailError(f"--compile does not work here ({fault}); install a C++ compiler, or leave it out")
        typer.echo("compiling: the first pictures take about a minute, and pay where there are thousands", err=True)
    return None if how == Faster() else how
