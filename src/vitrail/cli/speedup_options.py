"""Options that speed up inference, declared once for every command that has them."""

from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.options import parse_size
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.models.speedups import Speedups

CompileOption = Annotated[
    bool,
    typer.Option("--compile", rich_help_panel="Model", help="Compile the model with torch.compile (about a minute)."),
]
MergeTokensOption = Annotated[
    str | None,
    typer.Option(
        "--merge-tokens",
        metavar="N|N/3|1.5x",
        rich_help_panel="Model",
        help="Merge N similar tokens in every (third) layer, or as many as give this speedup.",
    ),
]
DropPatchesOption = Annotated[
    float,
    typer.Option(
        "--drop-patches",
        metavar="FRACTION",
        rich_help_panel="Model",
        help="Drop this fraction of the patches, those with the least contrast first.",
    ),
]
ImageSizeOption = Annotated[
    str | None,
    typer.Option(
        "--image-size", metavar="S|HxW", rich_help_panel="Model", help="Resize images to another input size, such as 160."
    ),
]


def parse_merge_tokens(text: str | None) -> tuple[int | str, int]:
    """Parse ``8``, ``30/3`` (in every third layer) or ``1.5x`` into the tokens to merge and the layer interval."""
    tokens, _, interval = (text or "0").partition("/")
    if interval and not (interval.isdecimal() and len(interval) < 7):
        raise VitrailError(
            f"--merge-tokens must be N, N/LAYERS or a speedup such as 1.5x, got {(text or '')[:20]!r}; try 8, 30/3 or 1.5x"
        )
    return int(tokens) if tokens.isdecimal() and len(tokens) < 7 else tokens, int(interval or 1)


def select_speedups(
    compile: bool, merge_tokens: str | None, drop_patches: float, image: str | None, device: str = "cpu"
) -> "Speedups | None":
    """Return the speedups that are switched on, or None. Checks for a compiler and warns how long compiling takes."""
    from vitrail.models.speedups import Speedups

    speedups = Speedups(
        compile, *parse_merge_tokens(merge_tokens), drop_patches, None if image is None else parse_size(image, "--image-size")
    )
    if compile:
        from vitrail.training.hardware_check import compiler_fault

        if fault := compiler_fault(device):
            raise VitrailError(f"--compile does not work here ({fault}); install a C++ compiler, or leave it out")
        typer.echo("compiling: the first batch takes about a minute, which pays off for thousands of images", err=True)
    return None if speedups == Speedups() else speedups
