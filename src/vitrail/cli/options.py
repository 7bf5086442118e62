"""Options that several commands share, each declared once, and what is asked of a file that is named to be written."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from vitrail.errors import VitrailError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for a program to read.")]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change a setting; repeatable.")]

RunsAndData = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN... DATA",
        help="Runs, or any weights: folders, files, hf:owner/name; then pictures in a folder a class, or any other data.",
    ),
]
Split = Annotated[
    Literal["test", "validation", "train", "all"] | None,
    typer.Option(help="The pictures to take; else test, else validation, else all."),
]


def pair(text: str, option: str) -> tuple[int, int]:
    """``224`` or ``224x448``: height, then width."""
    sides = text.lower().split("x")
    if not all(side.isdecimal() and len(side) < 7 for side in sides) or len(sides) > 2:
        raise VitrailError(
            f"{option} must be a number or HEIGHTxWIDTH, got {text[:20]!r}; try {option} 224 or {option} 224x448"
        )
    return int(sides[0]), int(sides[-1])


def check_out(path: Path, option: str, source: str, endings: tuple[str, ...] | None = None) -> None:
    """Before the work: where it would be written can be, and is not what is read."""
    if path.is_dir():
        raise VitrailError(f"{option} must be a file, got the folder {path}; try {path / 'mine'}{path.suffix}")
    if not path.parent.is_dir():
        raise VitrailError(f"{option} must be a file in a folder that exists, got {path}; try {path.name or 'mine'}")
    if endings and path.suffix.lower() not in endings:
        raise VitrailError(f"{option} must end in {' or '.join(endings)}, got {path}; try {path.stem}{endings[0]}")
    if path.exists() and (not path.is_file() or (Path(source).exists() and path.samefile(source))):
        raise VitrailError(f"{option} must not be the data itself or a device, got {path}; name another file")


@contextmanager
def whole(out: Path) -> Iterator[Path]:
    """Where to write a file that appears under its name whole or not at all."""
    half = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        yield half
        half.replace(out)
    finally:
        half.unlink(missing_ok=True)
