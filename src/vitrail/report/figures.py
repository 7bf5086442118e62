"""A figure inline in a page and as PNG and SVG files alongside."""

from collections.abc import Callable

from vitrail.report.drawing import Drawing
from vitrail.report.markup import text
from vitrail.report.pictures import as_file

Put = Callable[[str, bytes], None]  # file name, content


def figure(drawing: Drawing, name: str, put: Put, soft: str = "") -> str:
    """Write a figure as PNG and SVG, and return it as HTML."""
    put(f"{name}.png", as_file(drawing.picture(), ".png"))
    put(f"{name}.svg", drawing.svg().encode())
    more = f' <span class="soft">{text(soft)}</span>' if soft else ""
    caption = f"<figcaption>{text(drawing.title)}{more}</figcaption>"
    return f'<figure style="margin-top:1rem">{caption}{drawing.svg(alone=False)}</figure>'
