"""Options that several commands share, each declared once."""

from typing import Annotated

import typer

from vitrail.errors import VitrailError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for a program to read.")]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change a setting; repeatable.")]


def pair(text: str, option: str) -> tuple[int, int]:
    """``224`` or ``224x448``: height, then width."""
    sides = text.lower().split("x")
    if not all(side.isdecimal() and len(side) < 7 for side in sides) or len(sides) > 2:
        raise VitrailError(
            f"{option} must be a number or HEIGHTxWIDTH, got {text[:20]!r}; try {option} 224 or {option} 224x448"
        )
    return int(sides[0]), int(sides[-1])
