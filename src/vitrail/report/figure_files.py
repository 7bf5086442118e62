"""A figure inline in a page and as PNG and SVG files alongside."""

from collections.abc import Callable

from vitrail.plot.canvas import Figure
from vitrail.plot.markup import escape
from vitrail.report.contact_sheet import encode_image

WriteFile = Callable[[str, bytes], None]  # file name, content


def write_figure(figure: Figure, name: str, write_file: WriteFile, note: str = "") -> str:
    """Write a figure as PNG and SVG, and return it as HTML."""
    write_file(f"{name}.png", encode_image(figure.to_image(), ".png"))
    write_file(f"{name}.svg", figure.to_svg().encode())
    note_html = f' <span class="soft">{escape(note)}</span>' if note else ""
    caption = f"<figcaption>{escape(figure.title)}{note_html}</figcaption>"
    return f'<figure style="margin-top:1rem">{caption}{figure.to_svg(standalone=False)}</figure>'
