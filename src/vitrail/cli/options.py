"""Options that several commands share, each declared once, and checks of output files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from vitrail.errors import VitrailError

JsonOption = Annotated[bool, typer.Option("--json", rich_help_panel="Run", help="Print the result as one JSON object.")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", rich_help_panel="Model", help="Override a configuration field; repeatable."),
]

RunsAndDataArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN... DATA",
        help="One or more runs or weights (folders, files, hf:owner/name), then a labelled dataset.",
    ),
]
SplitOption = Annotated[
    Literal["test", "validation", "train", "all"] | None,
    typer.Option(
        rich_help_panel="Data", help="Split to evaluate on; default: test if there is one, else validation, else all."
    ),
]

BatchOption = Annotated[
    int, typer.Option("--batch-size", metavar="B", min=1, rich_help_panel="Run", help="Number of images per batch.")
]


def parse_size(text: str, option: str) -> tuple[int, int]:
    """Parse ``224`` or ``224x448`` into height and width."""
    sides = text.lower().split("x")
    if not all(side.isdecimal() and len(side) < 7 for side in sides) or len(sides) > 2:
        raise VitrailError(
            f"{option} must be a number or HEIGHTxWIDTH, got {text[:20]!r}; try {option} 224 or {option} 224x448"
        )
    return int(sides[0]), int(sides[-1])


def check_output_file(path: Path, option: str, source: str, endings: tuple[str, ...] | None = None) -> None:
    """Check before the work that the output file can be written and is not the input."""
    if path.is_dir():
        raise VitrailError(f"{option} must be a file, got the folder {path}; try {path / 'mine'}{path.suffix}")
    if not path.parent.is_dir():
        raise VitrailError(f"{option} must be a file in a folder that exists, got {path}; try {path.name or 'mine'}")
    if endings and path.suffix.lower() not in endings:
        raise VitrailError(f"{option} must end in {' or '.join(endings)}, got {path}; try {path.stem}{endings[0]}")
    if path.exists() and (not path.is_file() or (Path(source).exists() and path.samefile(source))):
        raise VitrailError(f"{option} must not be the dataset itself or a device, got {path}; name another file")


@contextmanager
def atomic_path(out: Path) -> Iterator[Path]:
    """Yield a temporary path; on success it is renamed to ``out``, which so appears whole or not at all."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        yield temporary
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
