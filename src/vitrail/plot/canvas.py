"""A figure described once and rendered as a PNG, as a standalone SVG or as part of a page.

Images, lines, dots, bars and text at pixel coordinates, y downwards. In a page, colours are those of the page, light or dark,
which no plotting library does; Pillow is enough for the rest.
"""

import base64
import io
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from PIL import Image, ImageColor, ImageDraw, ImageFont

from vitrail.plot.markup import escape

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, width, height
WriteFile = Callable[[str, bytes], None]  # file name, content
COLOURS = {"ink": "#28282e", "paper": "#faf9f6", "line": "#d9d6cd", "soft": "#6b6960", "mark": "#1d5f8a", "bad": "#a8321e",
           "good": "#2c6e49", "bar": "#7aa7c7"}  # fmt: skip
ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}  # Pillow's names
MARGIN, TITLE_HEIGHT, LETTER_WIDTH = 12, 20, 6.2  # pixels around a standalone figure, of its title, and of a letter's width
LEGEND_LINE_WIDTH = 42  # pixels of a legend entry without its name
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
    tooltip: str = ""  # on hover


@dataclass(frozen=True)
class Bar:
    box: Box
    colour: str = "bar"
    opacity: float = 1.0
    tooltip: str = ""


@dataclass(frozen=True)
class Dot:
    position: Point
    colour: str = "mark"
    tooltip: str = ""
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


Shape = ImageShape | Line | Bar | Dot | Text | Tooltip


@dataclass(frozen=True)
class LegendEntry:
    name: str
    colour: str
    dashed: bool = False


@dataclass(frozen=True)
class Figure:
    """``fluid``: in a page as wide as its column, with larger text on a phone, which scrolls other figures instead."""

    title: str
    size: tuple[int, int]  # width, height
    shapes: tuple[Shape, ...]
    legend: tuple[LegendEntry, ...] = ()  # next to the title
    fluid: bool = False

    def to_svg(self, standalone: bool = True) -> str:
        """Return the figure as SVG. ``standalone``: a file with title, colours and background, else inline in a page."""
        content = "".join(_shape_to_svg(shape, standalone, self.fluid) for shape in self.shapes)
        (width, height), font = self.size, ""
        # --wide: a phone scrolls it before its text gets too small
        style = "" if self.fluid else f' style="width:{width}px;max-width:100%;--wide:{width}px"'
        if standalone:
            width, height = self.framed_size
            style, font = f' width="{width}" height="{height}"', ' font-family="system-ui,sans-serif"'
            title = "".join(_shape_to_svg(shape, standalone) for shape in self._title_shapes)
            content = (
                f'<rect width="{width}" height="{height}" fill="{COLOURS["paper"]}"/>{title}'
                f'<g transform="translate({MARGIN} {MARGIN + TITLE_HEIGHT})">{content}</g>'
            )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"{style} role="img" '
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
            for shape in self._title_shapes:
                _draw_shape(page, shape, resolution)
        return page.reduce(SUPERSAMPLING)

    def to_png(self) -> bytes:
        stream = io.BytesIO()
        self.to_image().save(stream, "PNG")
        return stream.getvalue()

    def to_html(self, note: str = "") -> str:
        """Return the figure and its caption as part of a page; ``note`` follows the title."""
        notes = " ".join([legend_html(self.legend)] * bool(self.legend) + [escape(note)] * bool(note))
        notes_html = f' <span class="soft">{notes}</span>' if notes else ""
        style = "" if self.fluid else ' style="margin-top:1rem"'
        caption = f"<figcaption>{escape(self.title)}{notes_html}</figcaption>"
        return f"<figure{style}>{caption}{self.to_svg(standalone=False)}</figure>"

    @property
    def framed_size(self) -> tuple[int, int]:
        """Size with a margin and a line for the title."""
        letters = len(self.title) + sum(len(entry.name) for entry in self.legend)
        title_width = round(LETTER_WIDTH * letters) + LEGEND_LINE_WIDTH * len(self.legend)
        return max(self.size[0], title_width) + 2 * MARGIN, self.size[1] + TITLE_HEIGHT + 2 * MARGIN

    @property
    def _title_shapes(self) -> Iterator[Shape]:
        x, y = float(MARGIN), MARGIN + 10
        yield Text((x, y), self.title, colour="ink")
        x += LETTER_WIDTH * len(self.title)
        for entry in self.legend:
            yield Line([(x + 16, y - 4), (x + 36, y - 4)], entry.colour, 1.8, entry.dashed)
            yield Text((x + 42, y), entry.name)
            x += LEGEND_LINE_WIDTH + LETTER_WIDTH * len(entry.name)


def write_figure(figure: Figure, name: str, write_file: WriteFile, note: str = "") -> str:
    """Write a figure as PNG and SVG, and return it as HTML."""
    write_file(f"{name}.png", figure.to_png())
    write_file(f"{name}.svg", figure.to_svg().encode())
    return figure.to_html(note)


def legend_html(entries: Iterable[LegendEntry]) -> str:
    """Return the legend; dashed lines have a hollow marker."""
    return " ".join(  # a marker and its name stay on one line
        f'<span style="white-space:nowrap"><span style="color:{_css_colour(entry.colour)}">'
        f"&#{9633 if entry.dashed else 9632};</span> {escape(entry.name)}</span>"
        for entry in entries
    )


def to_ascii(text: str) -> str:
    """Reduce text to the letters of the PNG font: accents are dropped, other scripts become question marks."""
    letters = (letter for letter in unicodedata.normalize("NFKD", text.replace("…", "\0")) if not unicodedata.combining(letter))
    return "".join(letter if letter.isascii() else "?" for letter in letters).replace("\0", "…")


def _shape_to_svg(shape: Shape, standalone: bool, fluid: bool = False) -> str:
    match shape:
        case ImageShape(box, image, smooth, opacity):
            attributes = "" if smooth else ' style="image-rendering:pixelated"'
            return (
                f'<image {_box_attributes(box)} href="{_data_uri(image, smooth)}" preserveAspectRatio="none" '
                f'opacity="{opacity:g}"{attributes}/>'
            )
        case Line(points, colour, width, dashed, opacity, tooltip):
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            dash = ' stroke-dasharray="5 4"' if dashed else ""
            attributes = (
                f'points="{path}" fill="none" style="stroke:{_css_colour(colour, standalone)}" stroke-width="{width:g}" '
                f'stroke-opacity="{opacity:g}"{dash}'
            )
            return (
                f"<polyline {attributes}><title>{escape(tooltip)}</title></polyline>"
                if tooltip
                else f"<polyline {attributes}/>"
            )
        case Bar(box, colour, opacity, tooltip):
            attributes = f'style="fill:{_css_colour(colour, standalone)}" fill-opacity="{opacity:.2f}"'
            return f"<rect {_box_attributes(box)} {attributes}><title>{escape(tooltip)}</title></rect>"
        case Dot((x, y), colour, tooltip, opacity, radius):
            attributes = f'r="{radius:g}" style="fill:{_css_colour(colour, standalone)}" fill-opacity="{opacity:g}"'
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" {attributes}><title>{escape(tooltip)}</title></circle>'
        case Text((x, y), content, anchor, colour):
            size = "" if fluid and not standalone else "font-size:11px;"  # the page's, which depends on its width
            attributes = f'text-anchor="{anchor}" style="{size}fill:{_css_colour(colour, standalone)}"'
            return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(content)}</text>'
        case Tooltip(box, tooltip):
            return f'<rect {_box_attributes(box)} fill-opacity="0"><title>{escape(tooltip)}</title></rect>'


def _css_colour(colour: str, standalone: bool = False) -> str:
    return (COLOURS[colour] if standalone else f"var(--{colour})") if colour in COLOURS else colour


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
        case Line(points, colour, width, dashed, opacity, _):
            rgba = _rgba(colour, opacity)
            for part in _dashes(points) if dashed else [points] if points else []:
                pen.line([(x * scale, y * scale) for x, y in part], rgba, max(round(width * scale), 1), joint="curve")
        case Bar((x, y, width, height), colour, opacity, _):
            pen.rectangle([value * scale for value in (x, y, x + width, y + height)], _rgba(colour, opacity))
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
