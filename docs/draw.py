"""Draws the pictures of the README anew: ``.venv/bin/python docs/draw.py``. A test checks that they are up to date."""

import io
import re
from pathlib import Path

import numpy as np
from PIL import Image
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from vitrail.cli.inspect import show
from vitrail.data.sources.panes import panes
from vitrail.models.cost import cost
from vitrail.models.variants import variant
from vitrail.report.pictures import sheet

PICTURES = Path(__file__).parent / "pictures"


def inspect_svg() -> str:
    """The terminal after ``vitrail inspect B/16``, with the reader's own fonts: a picture must not fetch anything."""
    screen = Console(record=True, width=104, file=io.StringIO(), force_terminal=True, highlight=False)
    show(screen, "B/16", cost(variant("B/16")))
    offline = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    offline = offline.replace("font-family: Fira Code, monospace", "font-family: monospace")
    svg = screen.export_svg(title="vitrail inspect B/16", code_format=offline, unique_id="inspect")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def panes_sheet() -> Image.Image:
    """Four scenes of each class of ``panes``."""
    source = panes("train", 200)
    shown = [np.flatnonzero(source.labels == label)[:4] for label in range(len(source.names))]
    chosen = np.stack(shown, 1).ravel().tolist()
    pictures = [Image.fromarray(source.content(index)) for index in chosen]
    return sheet(pictures, [source.names[source.labels[index]] for index in chosen], columns=10, side=64)


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "inspect.svg").write_text(inspect_svg())
    panes_sheet().save(PICTURES / "panes.png", optimize=True)
