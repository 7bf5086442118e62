"""Masks as people look at them: drawn over their images, with a legend of the colours. h high, w wide."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Int16
from numpy import ndarray
from PIL import Image, ImageDraw, ImageFont

from vitrail.data.sources.dataset import IGNORED
from vitrail.errors import printable
from vitrail.plot.class_colours import class_colour, overlay
from vitrail.plot.markup import escape
from vitrail.report.contact_sheet import GAP, INK, PAPER, contact_sheet, stack_sheets

MAX_SIDE = 512  # pixels that are drawn
MAX_LISTED = 40  # classes of a legend
MAX_CAPTIONED = 3  # classes of a caption
WRONG_COLOUR, WRONG_OPACITY = (200, 30, 30), 0.8
SWATCH, ROW_HEIGHT = 12, 18  # pixels of a drawn legend
IGNORED_NAME = "ignored"


def mask_view(image: Image.Image, mask: Int16[ndarray, "h w"]) -> Image.Image:
    """Draw a mask over its image, at the size of a thumbnail."""
    small, (reduced,) = _reduce(image, [mask])
    return Image.fromarray(overlay(np.asarray(small), reduced))


def masked_sheet(
    images: Sequence[Image.Image],
    masks: Sequence[Int16[ndarray, "h w"]],
    captions: Sequence[str],
    names: Sequence[str],
    columns: int | None = None,
) -> Image.Image:
    """Draw images with their masks over them, and a legend of the classes that occur."""
    sheet = contact_sheet([mask_view(*pair) for pair in zip(images, masks, strict=True)], captions, columns=columns)
    labels = sorted({label for mask in masks for label in np.unique(mask).tolist()})
    legend = draw_legend(names, [label for label in labels if label != IGNORED], IGNORED in labels, sheet.width)
    return stack_sheets(sheet, legend)


def mask_caption(names: Sequence[str], mask: Int16[ndarray, "h w"]) -> str:
    """Return the largest classes of a mask with their fraction of the pixels."""
    labels, counts = np.unique(mask, return_counts=True)
    largest = np.argsort(-counts, kind="stable")[:MAX_CAPTIONED]
    name_of = [IGNORED_NAME if label == IGNORED else names[label] for label in labels.tolist()]
    return ", ".join(f"{name_of[place]}: {counts[place] / mask.size:.0%}" for place in largest.tolist())


def error_view(image: Image.Image, mask: Int16[ndarray, "h w"], predicted: Int16[ndarray, "h w"]) -> Image.Image:
    """Draw the pixels whose class is predicted wrongly in red, over a faint grey copy of the image."""
    small, (true, found) = _reduce(image, [mask, predicted])
    grey = np.asarray(small.convert("L").convert("RGB")).astype(np.float32)
    drawn = 0.5 * grey + 100
    wrong = (true != found) & (true != IGNORED)
    drawn[wrong] = (1 - WRONG_OPACITY) * drawn[wrong] + WRONG_OPACITY * np.array(WRONG_COLOUR, np.float32)
    return Image.fromarray(drawn.round().astype(np.uint8))


def _reduce(image: Image.Image, masks: Sequence[Int16[ndarray, "h w"]]) -> tuple[Image.Image, list[Int16[ndarray, "h2 w2"]]]:
    """Reduce an image and masks of its size to a thumbnail; of a mask, pixels are left out."""
    height, width = masks[0].shape
    scale = min(MAX_SIDE / max(height, width), 1.0)
    size = max(round(height * scale), 1), max(round(width * scale), 1)
    rows, columns = (
        (np.arange(small) * 2 + 1) * full // (2 * small) for small, full in zip(size, (height, width), strict=True)
    )
    colours = image.convert("RGB")
    resized = colours if colours.size == size[::-1] else colours.resize(size[::-1], Image.Resampling.BICUBIC)
    return resized, [mask[np.ix_(rows, columns)] for mask in masks]


def html_legend(names: Sequence[str], labels: Iterable[int], has_ignored: bool = False) -> str:
    """Return the colours of some classes as HTML."""
    entries = [
        f'<span><i class="swatch" style="background:{class_colour(label)}"></i>{escape(name)}</span>'
        for label, name in _entries(names, labels, has_ignored)
    ]
    return f'<p class="legend">{"".join(entries)}</p>'


def swatch(label: int) -> str:
    """Return the colour of a class as HTML."""
    return f'<i class="swatch" style="background:{class_colour(label)}"></i>'


def draw_legend(names: Sequence[str], labels: Iterable[int], has_ignored: bool, width: int) -> Image.Image:
    """Draw the colours of some classes, in as many rows as they need."""
    font = ImageFont.load_default(11)
    placed: list[tuple[int, int, int, str]] = []
    left, top = GAP, GAP
    for label, name in _entries(names, labels, has_ignored):
        length = SWATCH + 5 + int(font.getlength(printable(name))) + 2 * GAP
        if left > GAP and left + length > width:
            left, top = GAP, top + ROW_HEIGHT
        placed.append((left, top, label, printable(name)))
        left += length
    page = Image.new("RGB", (width, top + ROW_HEIGHT + GAP), PAPER)
    pen = ImageDraw.Draw(page)
    for left, top, label, name in placed:
        pen.rectangle((left, top, left + SWATCH, top + SWATCH), class_colour(label))
        pen.text((left + SWATCH + 5, top - 1), name, INK, font)
    return page


def _entries(names: Sequence[str], labels: Iterable[int], has_ignored: bool) -> Iterator[tuple[int, str]]:
    listed = list(labels)
    yield from ((label, names[label]) for label in listed[:MAX_LISTED])
    if len(listed) > MAX_LISTED:
        yield listed[MAX_LISTED], f"and {len(listed) - MAX_LISTED:,} more"
    if has_ignored:
        yield IGNORED, IGNORED_NAME
