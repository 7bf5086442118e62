"""A figure described once and rendered as a PNG, as a standalone SVG or inline in a page.

Images, lines, dots and text at pixel coordinates, y downwards. Inline, colours are those of the page, light or dark.
"""

import base64
import io
import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from PIL import Image, ImageColor, ImageDraw, ImageFont

from vitrail.plot.markup import escape

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, width, height
COLOURS = {"ink": "#28282e", "paper": "#faf9f6", "line": "#d9d6cd", "soft": "#6b6960", "mark": "#1d5f8a", "bad": "#a8321e",
           "good": "#2c6e49"}  # fmt: skip
ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}  # Pillow's names
MARGIN, TITLE_HEIGHT, LETTER_WIDTH = 12, 20, 6.2  # pixels around a standalone figure, of its title, and of a letter's width
MAX_NEAREST_SIDE = 64  # images up to this side are enlarged in whole pixels
PNG_SCALE, SUPERSAMPLING = 2, 2  # PNG pixels per pixel of the figure, and the supersampling before that


@dataclass(frozen=True)
class ImageShape:
    """An image; unless ``smooth`` its pixels stay square."""

    box: Box
    image: Image.Image
    smooth: bool = False
    opacity: float = 1.0


@dataclass(frozen=True)
class Line:
    points: Sequence[Point]
    colour: str = "line"
    width: float = 1.0
    dashed: bool = False
    opacity: float = 1.0


@dataclass(frozen=True)
class Dot:
    position: Point
    colour: str = "mark"
    tooltip: str = ""  # on hover
    opacity: float = 0.7
    radius: float = 3.4


@dataclass(frozen=True)
class Text:
    position: Point  # on the baseline
    text: str
    anchor: str = "start"  # or middle, end
    colour: str = "soft"


@dataclass(frozen=True)
class Tooltip:
    """An invisible area with text shown on hover."""

    box: Box
    text: str


Shape = ImageShape | Line | Dot | Text | Tooltip


@dataclass(frozen=True)
class Figure:
    title: str
    size: tuple[int, int]  # width, height
    shapes: tuple[Shape, ...]

    def to_svg(self, standalone: bool = True) -> str:
        """Return the figure as SVG. ``standalone``: a file with title, colours and background, else inline in a page."""
        content = "".join(_shape_to_svg(shape, standalone) for shape in self.shapes)
        (width, height), font = self.size, ""
        style = f'style="width:{width}px;max-width:100%;--wide:{width}px"'  # a phone scrolls it before its text gets too small
        if standalone:
            width, height = self.framed_size
            style, font = f'width="{width}" height="{height}"', ' font-family="system-ui,sans-serif"'
            title = _shape_to_svg(self._title_text, standalone)
            content = (
                f'<rect width="{width}" height="{height}" fill="{COLOURS["paper"]}"/>{title}'
                f'<g transform="translate({MARGIN} {MARGIN + TITLE_HEIGHT})">{content}</g>'
            )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {style} role="img" '
            f'aria-label="{escape(self.title)}"{font}><title>{escape(self.title)}</title>{content}</svg>'
        )

    def to_image(self, scale: int = PNG_SCALE, standalone: bool = True) -> Image.Image:
        resolution = scale * SUPERSAMPLING
        page = Image.new("RGB", (self.size[0] * resolution, self.size[1] * resolution), COLOURS["paper"])
        for shape in self.shapes:
            _draw_shape(page, shape, resolution)
        if standalone:
            inner, (width, height) = page, self.framed_size
            page = Image.new("RGB", (width * resolution, height * resolution), COLOURS["paper"])
            page.paste(inner, (MARGIN * resolution, (MARGIN + TITLE_HEIGHT) * resolution))
            _draw_shape(page, self._title_text, resolution)
        return page.reduce(SUPERSAMPLING)

    @property
    def framed_size(self) -> tuple[int, int]:
        """Size with a margin and a line for the title."""
        title_width = round(LETTER_WIDTH * len(self.title))
        return max(self.size[0], title_width) + 2 * MARGIN, self.size[1] + TITLE_HEIGHT + 2 * MARGIN

    @property
    def _title_text(self) -> "Text":
        return Text((MARGIN, MARGIN + 10), self.title, colour="ink")


def to_ascii(text: str) -> str:
    """Reduce text to the letters of the PNG font: accents are dropped, other scripts become question marks."""
    letters = (letter for letter in unicodedata.normalize("NFKD", text.replace("…", "\0")) if not unicodedata.combining(letter))
    return "".join(letter if letter.isascii() else "?" for letter in letters).replace("\0", "…")


def _shape_to_svg(shape: Shape, standalone: bool) -> str:
    def css_colour(colour: str) -> str:
        return (COLOURS[colour] if standalone else f"var(--{colour})") if colour in COLOURS else colour

    match shape:
        case ImageShape(box, image, smooth, opacity):
            attributes = "" if smooth else ' style="image-rendering:pixelated"'
            return (
                f'<image {_box_attributes(box)} href="{_data_uri(image, smooth)}" preserveAspectRatio="none" '
                f'opacity="{opacity:g}"{attributes}/>'
            )
        case Line(points, colour, width, dashed, opacity):
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            dash = ' stroke-dasharray="5 4"' if dashed else ""
            return (
                f'<polyline points="{path}" fill="none" style="stroke:{css_colour(colour)}" stroke-width="{width:g}" '
                f'stroke-opacity="{opacity:g}"{dash}/>'
            )
        case Dot((x, y), colour, tooltip, opacity, radius):
            attributes = f'r="{radius:g}" style="fill:{css_colour(colour)}" fill-opacity="{opacity:g}"'
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" {attributes}><title>{escape(tooltip)}</title></circle>'
        case Text((x, y), content, anchor, colour):
            attributes = f'text-anchor="{anchor}" style="font-size:11px;fill:{css_colour(colour)}"'
            return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(content)}</text>'
        case Tooltip(box, tooltip):
            return f'<rect {_box_attributes(box)} fill-opacity="0"><title>{escape(tooltip)}</title></rect>'


def _box_attributes(box: Box) -> str:
    left, top, width, height = box
    return f'x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}"'


def _data_uri(image: Image.Image, smooth: bool) -> str:
    """Encode photographs as JPEG, and colours that stand for numbers losslessly."""
    stream, encoding = io.BytesIO(), "jpeg" if smooth else "png"
    image.save(stream, encoding, **({"quality": 90} if smooth else {"optimize": True}))
    return f"data:image/{encoding};base64,{base64.b64encode(stream.getvalue()).decode()}"


def _draw_shape(page: Image.Image, shape: Shape, scale: int) -> None:
    pen = ImageDraw.Draw(page, "RGBA")
    match shape:
        case ImageShape(box, image, smooth, opacity):
            left, top, width, height = (round(value * scale) for value in box)
            resampling = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
            resized = image.convert("RGBA").resize((max(width, 1), max(height, 1)), resampling)
            page.paste(resized, (left, top), resized.getchannel("A").point(lambda value: round(value * opacity)))
        case Line(points, colour, width, dashed, opacity):
            rgba = _rgba(colour, opacity)
            for part in _dashes(points) if dashed else [points] if points else []:
                pen.line([(x * scale, y * scale) for x, y in part], rgba, max(round(width * scale), 1), joint="curve")
        case Dot((x, y), colour, _, opacity, radius):
            rgba = _rgba(colour, opacity)
            pen.ellipse([value * scale for value in (x - radius, y - radius, x + radius, y + radius)], rgba)
        case Text((x, y), content, anchor, colour):
            rgba = _rgba(colour)
            pen.text(
                (x * scale, y * scale), to_ascii(content), rgba, ImageFont.load_default(11 * scale), anchor=ANCHORS[anchor]
            )


def _rgba(colour: str, opacity: float = 1.0) -> tuple[int, int, int, int]:
    red, green, blue = ImageColor.getrgb(COLOURS.get(colour, colour))[:3]
    return red, green, blue, round(255 * opacity)


def _dashes(points: Sequence[Point], on: float = 5, off: float = 4) -> Iterator[list[Point]]:
    """Yield the dashes along a line."""
    offset = 0.0
    for (x, y), (to_x, to_y) in pairwise(points):
        length = math.hypot(to_x - x, to_y - y)
        start = -(offset % (on + off))
        while start < length:
            first, last = max(start, 0.0), min(start + on, length)
            if last > first:
                yield [(x + (to_x - x) * distance / length, y + (to_y - y) * distance / length) for distance in (first, last)]
            start += on + off
        offset += length
