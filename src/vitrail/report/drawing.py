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

from vitrail.report.markup import text

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, width, height
COLOURS = {"ink": "#28282e", "paper": "#faf9f6", "line": "#d9d6cd", "soft": "#6b6960", "mark": "#1d5f8a", "bad": "#a8321e",
           "good": "#2c6e49"}  # fmt: skip
ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}  # Pillow's names
MARGIN, HEADING, LETTER = 12, 20, 6.2  # pixels around a standalone figure, of its title, and of a letter's width
NEAREST = 64  # images up to this side are enlarged in whole pixels
SCALE, FINER = 2, 2  # PNG pixels per pixel of the figure, and the supersampling before that


@dataclass(frozen=True)
class Shown:
    """An image; unless ``smooth`` its pixels stay square."""

    box: Box
    image: Image.Image
    smooth: bool = False
    share: float = 1.0


@dataclass(frozen=True)
class Line:
    points: Sequence[Point]
    colour: str = "line"
    wide: float = 1.0
    dashed: bool = False
    share: float = 1.0


@dataclass(frozen=True)
class Dot:
    at: Point
    colour: str = "mark"
    said: str = ""  # on hover
    share: float = 0.7
    radius: float = 3.4


@dataclass(frozen=True)
class Words:
    at: Point  # on the baseline
    words: str
    anchor: str = "start"  # or middle, end
    colour: str = "soft"


@dataclass(frozen=True)
class Area:
    """An invisible area with text shown on hover."""

    box: Box
    said: str


Shape = Shown | Line | Dot | Words | Area


@dataclass(frozen=True)
class Drawing:
    title: str
    size: tuple[int, int]  # width, height
    shapes: tuple[Shape, ...]

    def svg(self, alone: bool = True) -> str:
        """Return the figure as SVG. ``standalone``: a file with title, colours and background, else inline in a page."""
        inside = "".join(_svg(shape, alone) for shape in self.shapes)
        (wide, high), font = self.size, ""
        look = f'style="width:{wide}px;max-width:100%;--wide:{wide}px"'  # a phone scrolls it before its text gets too small
        if alone:
            wide, high = self.framed
            look, font = f'width="{wide}" height="{high}"', ' font-family="system-ui,sans-serif"'
            inside = (
                f'<rect width="{wide}" height="{high}" fill="{COLOURS["paper"]}"/>{_svg(self._heading, alone)}'
                f'<g transform="translate({MARGIN} {MARGIN + HEADING})">{inside}</g>'
            )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" {look} role="img" '
            f'aria-label="{text(self.title)}"{font}><title>{text(self.title)}</title>{inside}</svg>'
        )

    def picture(self, scale: int = SCALE, alone: bool = True) -> Image.Image:
        fine = scale * FINER
        page = Image.new("RGB", (self.size[0] * fine, self.size[1] * fine), COLOURS["paper"])
        for shape in self.shapes:
            _paint(page, shape, fine)
        if alone:
            inner, page = page, Image.new("RGB", (self.framed[0] * fine, self.framed[1] * fine), COLOURS["paper"])
            page.paste(inner, (MARGIN * fine, (MARGIN + HEADING) * fine))
            _paint(page, self._heading, fine)
        return page.reduce(FINER)

    @property
    def framed(self) -> tuple[int, int]:
        """Size with a margin and a line for the title."""
        needed = round(LETTER * len(self.title))
        return max(self.size[0], needed) + 2 * MARGIN, self.size[1] + HEADING + 2 * MARGIN

    @property
    def _heading(self) -> "Words":
        return Words((MARGIN, MARGIN + 10), self.title, colour="ink")


def known(words: str) -> str:
    """Reduce text to the letters of the PNG font: accents are dropped, other scripts become question marks."""
    apart = (letter for letter in unicodedata.normalize("NFKD", words.replace("…", "\0")) if not unicodedata.combining(letter))
    return "".join(letter if letter.isascii() else "?" for letter in apart).replace("\0", "…")


def _svg(shape: Shape, alone: bool) -> str:
    def ink(colour: str) -> str:
        return (COLOURS[colour] if alone else f"var(--{colour})") if colour in COLOURS else colour

    match shape:
        case Shown(box, image, smooth, opacity):
            look = "" if smooth else ' style="image-rendering:pixelated"'
            return (
                f'<image {_place(box)} href="{_address(image, smooth)}" preserveAspectRatio="none" '
                f'opacity="{opacity:g}"{look}/>'
            )
        case Line(points, colour, width, dashed, opacity):
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            dash = ' stroke-dasharray="5 4"' if dashed else ""
            return (
                f'<polyline points="{path}" fill="none" style="stroke:{ink(colour)}" stroke-width="{width:g}" '
                f'stroke-opacity="{opacity:g}"{dash}/>'
            )
        case Dot((x, y), colour, tooltip, opacity, radius):
            look = f'r="{radius:g}" style="fill:{ink(colour)}" fill-opacity="{opacity:g}"'
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" {look}><title>{text(tooltip)}</title></circle>'
        case Words((x, y), content, anchor, colour):
            look = f'text-anchor="{anchor}" style="font-size:11px;fill:{ink(colour)}"'
            return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{text(content)}</text>'
        case Area(box, tooltip):
            return f'<rect {_place(box)} fill-opacity="0"><title>{text(tooltip)}</title></rect>'


def _place(box: Box) -> str:
    left, top, wide, high = box
    return f'x="{left:g}" y="{top:g}" width="{wide:g}" height="{high:g}"'


def _address(image: Image.Image, smooth: bool) -> str:
    """Encode photographs as JPEG, and colours that stand for numbers losslessly."""
    stream, kind = io.BytesIO(), "jpeg" if smooth else "png"
    image.save(stream, kind, **({"quality": 90} if smooth else {"optimize": True}))
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"


def _paint(page: Image.Image, shape: Shape, scale: int) -> None:
    pen = ImageDraw.Draw(page, "RGBA")
    match shape:
        case Shown(box, image, smooth, opacity):
            left, top, wide, high = (round(value * scale) for value in box)
            how = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
            large = image.convert("RGBA").resize((max(wide, 1), max(high, 1)), how)
            page.paste(large, (left, top), large.getchannel("A").point(lambda value: round(value * opacity)))
        case Line(points, colour, wide, dashed, opacity):
            ink = _ink(colour, opacity)
            for part in _dashes(points) if dashed else [points] if points else []:
                pen.line([(x * scale, y * scale) for x, y in part], ink, max(round(wide * scale), 1), joint="curve")
        case Dot((x, y), colour, _, opacity, radius):
            ink = _ink(colour, opacity)
            pen.ellipse([value * scale for value in (x - radius, y - radius, x + radius, y + radius)], ink)
        case Words((x, y), content, anchor, colour):
            ink = _ink(colour)
            pen.text((x * scale, y * scale), known(content), ink, ImageFont.load_default(11 * scale), anchor=ANCHORS[anchor])


def _ink(colour: str, share: float = 1.0) -> tuple[int, int, int, int]:
    red, green, blue = ImageColor.getrgb(COLOURS.get(colour, colour))[:3]
    return red, green, blue, round(255 * share)


def _dashes(points: Sequence[Point], on: float = 5, off: float = 4) -> Iterator[list[Point]]:
    """Yield the dashes along a line."""
    walked = 0.0
    for (x, y), (to_x, to_y) in pairwise(points):
        long = math.hypot(to_x - x, to_y - y)
        start = -(walked % (on + off))
        while start < long:
            first, last = max(start, 0.0), min(start + on, long)
            if last > first:
                yield [(x + (to_x - x) * way / long, y + (to_y - y) * way / long) for way in (first, last)]
            start += on + off
        walked += long
