"""Draws the pictures of the README anew: ``.venv/bin/python docs/draw.py``. A test checks that they are up to date."""

import io
import re
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from vitrail.cli.inspect import show
from vitrail.models.cost import cost
from vitrail.models.variants import variant

PICTURES = Path(__file__).parent / "pictures"


def inspect_svg() -> str:
    """The terminal after ``vitrail inspect B/16``, with the reader's own fonts: a picture must not fetch anything."""
    screen = Console(record=True, width=104, file=io.StringIO(), force_terminal=True, highlight=False)
    show(screen, "B/16", cost(variant("B/16")))
    offline = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    offline = offline.replace("font-family: Fira Code, monospace", "font-family: monospace")
    svg = screen.export_svg(title="vitrail inspect B/16", code_format=offline, unique_id="inspect")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "inspect.svg").write_text(inspect_svg())
