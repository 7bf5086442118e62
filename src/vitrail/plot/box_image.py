"""Boxes as people look at them: frames in the colours of their classes, with labels where there is room. k boxes.

A frame is drawn around its box, so that none of a small object is covered; labels neither overlap nor leave the image, and one
that finds no place is left out.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from PIL import Image, ImageColor, ImageDraw, ImageFont

from vitrail.errors import printable
from vitrail.plot.canvas import MAX_NEAREST_SIDE, to_ascii
from vitrail.plot.class_colours import class_colour
from vitrail.plot.colormap import rgb_to_oklab

LINE_WIDTH, LINE_FRACTION, MAX_LINE = 0.9, 1 / 350, 12  # pixels of a line: least, more with the longer side, and most
TEXT_FRACTION, TEXT_RANGE = 1 / 44, (10, 72)  # height of a letter likewise
PADDING = 0.2  # around the text of a label, as a fraction of its height
HALO = (255, 255, 255, 140), (0, 0, 0, 140)  # a line of one pixel around a frame and one in it, so that it is seen on any image
DASH = 5  # lengths of the dashes and the gaps, in widths of a line
INSIDE = 1.3, 3.0  # how much wider and higher than its label a frame is that has it inside
LIGHT = 0.64  # of OKLab, from which a colour has dark text
INK, PAPER = (20, 20, 24), (255, 255, 255)
Rectangle = tuple[int, int, int, int]  # left, top, right, bottom; right and bottom exclusive


def draw_boxes(
    image: Image.Image,
    boxes: Float[ndarray, "k 4"],
    labels: Int[ndarray, " k"],
    names: Sequence[str] | None = None,
    *,
    scores: Float[ndarray, " k"] | None = None,
    dashed: Bool[ndarray, " k"] | None = None,
    colours: Sequence[str] | None = None,
    scale: float = 1.0,
) -> Image.Image:
    """Draw boxes (left, top, right, bottom in pixels of the image) on a copy of the image that is ``scale`` times as large.

    ``names``: of the classes, written at each box, with its score; without them only frames are drawn. ``dashed``: boxes of
    another kind, such as crowds. ``colours``: one per box, as ``#rrggbb``, instead of that of its class.
    """
    size = max(round(image.width * scale), 1), max(round(image.height * scale), 1)
    page = image.convert("RGB")
    if size != image.size:
        is_small = scale == int(scale) and max(image.size) <= MAX_NEAREST_SIDE
        page = page.resize(size, Image.Resampling.NEAREST if is_small else Image.Resampling.BICUBIC)
    width = min(round(LINE_WIDTH + max(size) * LINE_FRACTION), MAX_LINE)
    pen = ImageDraw.Draw(page, "RGBA")
    order = np.argsort(-_areas(boxes) if scores is None else -scores, kind="stable").tolist()
    frames = [_frame(box, scale, width, size) for box in boxes.tolist()]
    own = [class_colour(label) for label in labels.tolist()] if colours is None else list(colours)
    for place in reversed(order):  # the largest, or those with the highest score, above the others
        _draw_frame(pen, frames[place], own[place], width, bool(dashed is not None and dashed[place]))
    if names is not None:
        texts = [names[label] for label in labels.tolist()]
        if scores is not None:
            texts = [f"{text} {score:.2f}" for text, score in zip(texts, scores.tolist(), strict=True)]
        _draw_labels(pen, [(frames[place], texts[place], own[place]) for place in order], size)
    return page


def _areas(boxes: Float[ndarray, "k 4"]) -> Float[ndarray, " k"]:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _frame(box: Sequence[float], scale: float, width: int, size: tuple[int, int]) -> Rectangle:
    """Return the outer edge of a frame, which at the border of the image is drawn inside of the box."""
    left, top, right, bottom = (value * scale for value in box)
    columns = _outer_edge(left, right, width, size[0])
    rows = _outer_edge(top, bottom, width, size[1])
    return columns[0], rows[0], columns[1], rows[1]


def _outer_edge(low: float, high: float, width: int, size: int) -> tuple[int, int]:
    first = min(max(round(low) - width, 0), max(size - 2 * width - 1, 0))
    return first, max(min(round(high) + width, size), min(first + 2 * width + 1, size))


def _draw_frame(pen: ImageDraw.ImageDraw, frame: Rectangle, colour: str, width: int, is_dashed: bool) -> None:
    left, top, right, bottom = frame
    if is_dashed:
        for part in _dashes(frame, width):
            pen.rectangle(_inclusive(part), colour)
        return
    pen.rectangle((left - 1, top - 1, right, bottom), outline=HALO[0])
    if min(right - left, bottom - top) > 2 * width + 2:
        pen.rectangle((left + width, top + width, right - width - 1, bottom - width - 1), outline=HALO[1])
    pen.rectangle(_inclusive(frame), outline=colour, width=width)


def _dashes(frame: Rectangle, width: int) -> Iterator[Rectangle]:
    """Yield the dashes of the four sides."""
    left, top, right, bottom = frame
    length = DASH * width
    for start in range(left, right, 2 * length):
        stop = min(start + length, right)
        yield start, top, stop, top + width
        yield start, bottom - width, stop, bottom
    for start in range(top, bottom, 2 * length):
        stop = min(start + length, bottom)
        yield left, start, left + width, stop
        yield right - width, start, right, stop


def _inclusive(frame: Rectangle) -> Rectangle:
    return frame[0], frame[1], frame[2] - 1, frame[3] - 1


def _draw_labels(pen: ImageDraw.ImageDraw, entries: Sequence[tuple[Rectangle, str, str]], size: tuple[int, int]) -> None:
    """Draw the texts of frames, the first ones first, each where it overlaps no other."""
    letter = min(max(round(max(size) * TEXT_FRACTION), TEXT_RANGE[0]), TEXT_RANGE[1])
    font = ImageFont.load_default(letter)
    padding = max(round(letter * PADDING), 1)
    ascent = -font.getbbox("Ag", anchor="ls")[1]
    height = round(font.getbbox("Ag", anchor="ls")[3] + ascent) + 2 * padding
    placed = np.zeros((len(entries), 4), np.int64)
    for number, (frame, name, colour) in enumerate(entries):
        text = to_ascii(printable(name))
        width = round(font.getlength(text)) + 2 * padding
        spot = next((each for each in _spots(frame, (width, height), size) if not _overlaps(each, placed[:number])), None)
        if spot is None:
            continue
        placed[number] = spot
        pen.rectangle(_inclusive(spot), colour)
        pen.text((spot[0] + padding, spot[1] + padding + ascent), text, _text_colour(colour), font, anchor="ls")


def _spots(frame: Rectangle, label: tuple[int, int], size: tuple[int, int]) -> Iterator[Rectangle]:
    """Yield the places of a label that are in the image: above the frame, in it if it is large, below it, beside it."""
    (left, top, right, bottom), (width, height) = frame, label
    above = [(left, top - height), (right - width, top - height)]
    inside = [(left, top), (right - width, top), (left, bottom - height), (right - width, bottom - height)]
    outside = [(left, bottom), (right - width, bottom), (right, top), (left - width, top)]
    is_large = right - left >= INSIDE[0] * width and bottom - top >= INSIDE[1] * height
    for x, y in above + inside * is_large + outside:
        if 0 <= x <= size[0] - width and 0 <= y <= size[1] - height:
            yield x, y, x + width, y + height


def _overlaps(spot: Rectangle, placed: Int[ndarray, "k 4"]) -> bool:
    left, top, right, bottom = spot
    apart = (placed[:, 2] <= left) | (placed[:, 0] >= right) | (placed[:, 3] <= top) | (placed[:, 1] >= bottom)
    return not apart.all()


def _text_colour(colour: str) -> tuple[int, int, int]:
    lightness = rgb_to_oklab(np.array([ImageColor.getrgb(colour)[:3]], np.uint8))[0, 0]
    return INK if lightness > LIGHT else PAPER
