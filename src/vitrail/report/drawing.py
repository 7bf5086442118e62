"""A drawing that is said once and can be a PNG, an SVG of its own or a part of a page.

Pictures, lines, dots and words at places in pixels, y downwards. In a page, colours are the page's own, in light and in dark.
"""

import base64
import io
import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from PIL import Image, ImageColor, ImageDraw, ImageFont

from vitrail.report.page import text

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, wide, high
COLOURS = {"ink": "#28282e", "paper": "#faf9f6", "line": "#d9d6cd", "soft": "#6b6960", "mark": "#1d5f8a", "bad": "#a8321e",
           "good": "#2c6e49"}  # fmt: skip
ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}  # as Pillow calls them
MARGIN, HEADING, LETTER = 12, 20, 6.2  # around a drawing that stands alone, above it, and of a letter's width
SCALE, FINER = 2, 2  # pixels of a PNG to one of the drawing, and how much finer it is drawn first


@dataclass(frozen=True)
class Shown:
    """A picture; one that is not ``smooth`` keeps its pixels square. ``share``: how much of what is below it covers."""

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
    said: str = ""  # when pointed at
    share: float = 0.7
    radius: float = 3.4


@dataclass(frozen=True)
class Words:
    at: Point  # on the line of writing
    words: str
    anchor: str = "start"  # or middle, end
    colour: str = "soft"


@dataclass(frozen=True)
class Area:
    """Nothing to see, but something to be told when it is pointed at."""

    box: Box
    said: str


Shape = Shown | Line | Dot | Words | Area


@dataclass(frozen=True)
class Drawing:
    title: str
    size: tuple[int, int]  # wide, high
    shapes: tuple[Shape, ...]

    def svg(self, alone: bool = True) -> str:
        """``alone``: a file of its own, with its title, its own colours and paper, and not a part of a page."""
        inside = "".join(_svg(shape, alone) for shape in self.shapes)
        (wide, high), font = self.size, ""
        look = f'style="width:{wide}px;max-width:100%;--wide:{wide}px"'  # on a phone it scrolls before its words are too small
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
        """With a margin and a line for the title."""
        needed = round(LETTER * len(self.title))
        return max(self.size[0], needed) + 2 * MARGIN, self.size[1] + HEADING + 2 * MARGIN

    @property
    def _heading(self) -> "Words":
        return Words((MARGIN, MARGIN + 10), self.title, colour="ink")


def known(words: str) -> str:
    """In the letters that the font of PNGs has: accents fall away, and of other scripts a question mark is left."""
    apart = (letter for letter in unicodedata.normalize("NFKD", words.replace("…", "\0")) if not unicodedata.combining(letter))
    return "".join(letter if letter.isascii() else "?" for letter in apart).replace("\0", "…")


def _svg(shape: Shape, alone: bool) -> str:
    def ink(colour: str) -> str:
        return (COLOURS[colour] if alone else f"var(--{colour})") if colour in COLOURS else colour

    match shape:
        case Shown(box, image, smooth, share):
            look = "" if smooth else ' style="image-rendering:pixelated"'
            return (
                f'<image {_place(box)} href="{_address(image, smooth)}" preserveAspectRatio="none" opacity="{share:g}"{look}/>'
            )
        case Line(points, colour, wide, dashed, share):
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            dash = ' stroke-dasharray="5 4"' if dashed else ""
            return (
                f'<polyline points="{path}" fill="none" style="stroke:{ink(colour)}" stroke-width="{wide:g}" '
                f'stroke-opacity="{share:g}"{dash}/>'
            )
        case Dot((x, y), colour, said, share, radius):
            look = f'r="{radius:g}" style="fill:{ink(colour)}" fill-opacity="{share:g}"'
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" {look}><title>{text(said)}</title></circle>'
        case Words((x, y), words, anchor, colour):
            look = f'text-anchor="{anchor}" style="font-size:11px;fill:{ink(colour)}"'
            return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{text(words)}</text>'
        case Area(box, said):
            return f'<rect {_place(box)} fill-opacity="0"><title>{text(said)}</title></rect>'


def _place(box: Box) -> str:
    left, top, wide, high = box
    return f'x="{left:g}" y="{top:g}" width="{wide:g}" height="{high:g}"'


def _address(image: Image.Image, smooth: bool) -> str:
    """Photographs as JPEG, colours that mean a number exactly as they are."""
    stream, kind = io.BytesIO(), "jpeg" if smooth else "png"
    image.save(stream, kind, **({"quality": 90} if smooth else {"optimize": True}))
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"


def _paint(page: Image.Image, shape: Shape, scale: int) -> None:
    pen = ImageDraw.Draw(page, "RGBA")
    match shape:
        case Shown(box, image, smooth, share):
            left, top, wide, high = (round(value * scale) for value in box)
            how = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
            large = image.convert("RGBA").resize((max(wide, 1), max(high, 1)), how)
            page.paste(large, (left, top), large.getchannel("A").point(lambda value: round(value * share)))
        case Line(points, colour, wide, dashed, share):
            ink = _ink(colour, share)
            for part in _dashes(points) if dashed else [points] if points else []:
                pen.line([(x * scale, y * scale) for x, y in part], ink, max(round(wide * scale), 1), joint="curve")
        case Dot((x, y), colour, _, share, radius):
            ink = _ink(colour, share)
            pen.ellipse([value * scale for value in (x - radius, y - radius, x + radius, y + radius)], ink)
        case Words((x, y), words, anchor, colour):
            ink = _ink(colour)
            pen.text((x * scale, y * scale), known(words), ink, ImageFont.load_default(11 * scale), anchor=ANCHORS[anchor])


def _ink(colour: str, share: float = 1.0) -> tuple[int, int, int, int]:
    red, green, blue = ImageColor.getrgb(COLOURS.get(colour, colour))[:3]
    return red, green, blue, round(255 * share)


def _dashes(points: Sequence[Point], on: float = 5, off: float = 4) -> Iterator[list[Point]]:
    """The pieces of a line that is walked along."""
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
