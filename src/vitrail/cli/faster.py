"""Options that speed up inference, declared once for every command that has them."""

from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.options import pair
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.models.faster import Faster

Compile = Annotated[
    bool,
    typer.Option("--compile", rich_help_panel="Model", help="Compile the model with torch.compile (about a minute)."),
]
Merge = Annotated[
    str | None,
    typer.Option(
        "--merge-tokens",
        metavar="N|N/3|1.5x",
        rich_help_panel="Model",
        help="Merge N similar tokens in every (third) layer, or as many as give this speedup.",
    ),
]
Drop = Annotated[
    float,
    typer.Option(
        "--drop-patches",
        metavar="FRACTION",
        rich_help_panel="Model",
        help="Drop this fraction of the patches, those with the least contrast first.",
    ),
]
Image = Annotated[
    str | None,
    typer.Option(metavar="S|HxW", rich_help_panel="Model", help="Resize images to another input size, such as 160."),
]


def merging(word: str | None) -> tuple[int | str, int]:
    """Parse ``8``, ``30/3`` (in every third layer) or ``1.5x`` into the tokens to merge and the layer interval."""
    tokens, _, every = (word or "0").partition("/")
    if every and not (every.isdecimal() and len(every) < 7):
        raise VitrailError(
            f"--merge-tokens must be N, N/LAYERS or a speedup such as 1.5x, got {(word or '')[:20]!r}; try 8, 30/3 or 1.5x"
        )
    return int(tokens) if tokens.isdecimal() and len(tokens) < 7 else tokens, int(every or 1)


def switches(compile: bool, merge: str | None, drop: float, image: str | None, device: str = "cpu") -> "Faster | None":
    """Return the speedups that are switched on, or None. Checks for a compiler and warns how long compiling takes."""
    from vitrail.models.faster import Faster

    how = Faster(compile, *merging(merge), drop, None if image is None else pair(image, "--image"))
    if compile:
        from vitrail.train.precision import compiler_fault

        if fault := compiler_fault(device):
            raise VitrailError(f"--compile does not work here ({fault}); install a C++ compiler, or leave it out")
        typer.echo("compiling: the first batch takes about a minute, which pays off for thousands of images", err=True)
    return None if how == Faster() else how
