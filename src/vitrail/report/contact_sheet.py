"""Contact sheets: a grid of captioned images. n images, c channels."""

import base64
import io
import math
import re
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from vitrail.data.band_view import draw_bands
from vitrail.data.decode import to_pil
from vitrail.data.preprocess import Preprocess
from vitrail.errors import printable
from vitrail.plot.canvas import MAX_NEAREST_SIDE

GAP, CAPTION_HEIGHT, LINE_HEIGHT = 8, 16, 13
MAX_LINES = 3  # of a caption
INK, PAPER = (40, 40, 46), (250, 249, 246)


def contact_sheet(
    images: Sequence[Image.Image], captions: Sequence[str], *, columns: int | None = None, side: int = 128
) -> Image.Image:
    """Arrange images in rows, each within a square of this side; small ones are enlarged pixel by pixel. A caption of several
    labels takes up to three lines."""
    columns = columns or max(1, min(len(images), math.ceil(math.sqrt(len(images) * 1.6))))
    rows = -(-len(images) // columns)
    font = ImageFont.load_default(11)
    wrapped = [_wrap(caption, font, side) for caption in captions]
    extra = LINE_HEIGHT * (max(map(len, wrapped), default=1) - 1)
    drawn = [_fit(image.convert("RGB"), side) for image in images]
    height = max((round(side * image.height / max(image.size)) for image in images), default=side)  # of the tallest
    cell = side + GAP, height + CAPTION_HEIGHT + extra + GAP
    page = Image.new("RGB", (columns * cell[0] + GAP, rows * cell[1] + GAP), PAPER)
    pen = ImageDraw.Draw(page)
    for number, (image, lines) in enumerate(zip(drawn, wrapped, strict=True)):
        left, top = GAP + number % columns * cell[0], GAP + number // columns * cell[1]
        page.paste(image, (left + (side - image.width) // 2, top + (height - image.height) // 2))
        for row, line in enumerate(lines):
            pen.text((left, top + height + 2 + row * LINE_HEIGHT), _truncate(line, font, side), INK, font)
    return page


def stack_sheets(*sheets: Image.Image) -> Image.Image:
    """Return sheets one below the other."""
    page = Image.new("RGB", (max(sheet.width for sheet in sheets), sum(sheet.height for sheet in sheets)), PAPER)
    top = 0
    for sheet in sheets:
        page.paste(sheet, (0, top))
        top += sheet.height
    return page


def _wrap(caption: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, max_width: int) -> list[str]:
    """Break a caption after commas; the last line is as long as it is."""
    lines = [""]
    for part in re.split(r"(?<=,) ", printable(caption)):
        longer = f"{lines[-1]} {part}".lstrip()
        if lines[-1] and len(lines) < MAX_LINES and font.getlength(longer) > max_width:
            lines.append(part)
        else:
            lines[-1] = longer
    return lines


def fit_scale(size: tuple[int, int], side: int) -> float:
    """Return the factor by which an image is resized into a square of this side, a whole one for small images."""
    scale = side / max(size)
    return float(int(scale)) if max(size) <= MAX_NEAREST_SIDE and scale >= 2 else scale


def _fit(image: Image.Image, side: int) -> Image.Image:
    scale = fit_scale(image.size, side)
    is_small = max(image.size) <= MAX_NEAREST_SIDE and scale >= 2
    resampling = Image.Resampling.NEAREST if is_small else Image.Resampling.BICUBIC
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), resampling)


def _truncate(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, max_width: int) -> str:
    text = printable(text)
    while text and font.getlength(text) > max_width:
        text = text[:-2].rstrip("…") + "…" if len(text) > 2 else ""
    return text


def denormalise(images: Float[Tensor, "n c h w"], preprocess: Preprocess, bands: Sequence[int] = ()) -> list[Image.Image]:
    """Invert the normalisation: return the images behind a model's input. ``bands``: those that are drawn, numbered from 1."""
    scale, shift = torch.tensor(preprocess.std)[:, None, None], torch.tensor(preprocess.mean)[:, None, None]
    if preprocess.raw or bands:
        return draw_bands(((images * scale + shift) * preprocess.scale).permute(0, 2, 3, 1).numpy(), bands)
    values = ((images * scale + shift) * 255).round().clamp(0, 255).byte()
    return [to_pil(np.ascontiguousarray(one.permute(1, 2, 0).numpy())) for one in values]


def encode_image(image: Image.Image, extension: str) -> bytes:
    """Encode an image as JPEG or PNG, by its file extension."""
    stream = io.BytesIO()
    image.save(stream, "JPEG" if extension.lower() in (".jpg", ".jpeg") else "PNG")
    return stream.getvalue()


def data_uri(image: Image.Image, *, lossless: bool = False) -> str:
    """Return an image as a data URI, inlined in a page."""
    stream = io.BytesIO()
    image.save(stream, "WEBP", quality=90, lossless=lossless)
    return f"data:image/webp;base64,{base64.b64encode(stream.getvalue()).decode()}"
