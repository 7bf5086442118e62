"""Text as safe HTML and SVG."""

import html

from vitrail.errors import printable


def escape(text: object) -> str:
    """Escape text for HTML, without control characters: names that come from files can hold anything."""
    return html.escape(printable(str(text)))
