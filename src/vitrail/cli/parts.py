"""Part files of ``vitrail predict`` and ``vitrail embed``: an output folder that several processes may write to."""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.naming import Tell
from vitrail.cli.screen import progress
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.evaluate.parts import Note, Parts

Part = Annotated[
    int | None,
    typer.Option(
        "--rows-per-file",
        metavar="N",
        min=1,
        rich_help_panel="Output",
        help="Number of images per part file, if the output is a folder.",
    ),
]


def in_parts(out: Path | None, endings: tuple[str, ...], option: str, part: int | None) -> bool:
    """Return whether the output is a folder of part files: a name without a suffix, or an existing folder."""
    folder = out is not None and out.suffix.lower() not in endings and (out.is_dir() or not out.suffix)
    if not folder and os.environ.get("WORLD_SIZE", "1") != "1":
        got = "none" if out is None else out
        raise VitrailError(f"several processes need a folder for part files, got {got}; try {option} predictions")
    if not folder and part is not None:
        raise VitrailError(f"--rows-per-file is for a folder of part files, got {out or 'none'}; try {option} predictions")
    return folder


def bar() -> AbstractContextManager[Tell]:
    """Return a progress bar for rank 0, and a silent one for the other ranks."""
    return progress() if os.environ.get("RANK", "0") == "0" else nullcontext(lambda what, done, total: None)


def opened_parts(
    out: Path, ending: str, pictures: int, part: int | None, asked: dict[str, Any], tolerated: float = 1.0
) -> "Parts":
    from vitrail.evaluate.parts import Parts, size
    from vitrail.models.device import place

    parts = Parts(out, ending, pictures, size(out, pictures, part), *place(), tolerated)
    parts.begin({**asked, "images": pictures})
    return parts


class Share:
    """Progress of this process on its own parts; helping others counts beyond the total."""

    def __init__(self, parts: "Parts", what: str, tell: Tell) -> None:
        mine = [part for part in parts.own if parts.note(part) is None]
        self.total, self.done = sum(len(parts.numbers(part)) for part in mine), 0
        self.what, self.tell = what, tell

    def more(self, pictures: int = 1) -> None:
        self.done += pictures
        self.tell(self.what, self.done, max(self.total, self.done))


def concluded(parts: "Parts", made: int) -> "Note | None":
    """Return the summary of all parts to the one process that reports it: the first to find all parts complete."""
    found = parts.finish()
    if found is None:
        if parts.rank == 0:
            there = f"{sum(parts.note(part) is not None for part in range(parts.count)):,} of {parts.count:,} parts so far"
            typer.echo(f"{there}; if no other process is writing the rest, rerun the command: {parts.folder}", err=True)
        return None
    done, first = found
    return done if first or (parts.rank == 0 and not made) else None
