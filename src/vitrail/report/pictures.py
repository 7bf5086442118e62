"""Contact sheets: a grid of captioned images. n images, c channels."""

import base64
import io
import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from vitrail.data.decode import as_picture
from vitrail.errors import printable
from vitrail.report.drawing import NEAREST

GAP, LINE = 8, 16
INK, PAPER = (40, 40, 46), (250, 249, 246)


def sheet(
    pictures: Sequence[Image.Image], captions: Sequence[str], *, columns: int | None = None, side: int = 128
) -> Image.Image:
    """Arrange images in rows, each within a square of this side; small ones are enlarged pixel by pixel."""
    columns = columns or max(1, min(len(pictures), math.ceil(math.sqrt(len(pictures) * 1.6))))
    rows = -(-len(pictures) // columns)
    cell = side + GAP, side + LINE + GAP
    page = Image.new("RGB", (columns * cell[0] + GAP, rows * cell[1] + GAP), PAPER)
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(11)
    for number, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        left, top = GAP + number % columns * cell[0], GAP + number // columns * cell[1]
        small = _within(picture.convert("RGB"), side)
        page.paste(small, (left + (side - small.width) // 2, top + (side - small.height) // 2))
        pen.text((left, top + side + 2), _short(caption, font, side), INK, font)
    return page


def _within(picture: Image.Image, side: int) -> Image.Image:
    scale = side / max(picture.size)
    if max(picture.size) <= NEAREST and scale >= 2:
        scale, how = float(int(scale)), Image.Resampling.NEAREST
    else:
        how = Image.Resampling.BICUBIC
    return picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))), how)


def _short(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, room: int) -> str:
    text = printable(text)
    while text and font.getlength(text) > room:
        text = text[:-2].rstrip("…") + "…" if len(text) > 2 else ""
    return text


def restored(images: Float[Tensor, "n c h w"], mean: Sequence[float], std: Sequence[float]) -> list[Image.Image]:
    """Invert the normalisation: return the images behind a model's input."""
    scale, middle = torch.tensor(std)[:, None, None], torch.tensor(mean)[:, None, None]
    values = ((images * scale + middle) * 255).round().clamp(0, 255).byte()
    return [as_picture(np.ascontiguousarray(one.permute(1, 2, 0).numpy())) for one in values]


def as_file(picture: Image.Image, ending: str) -> bytes:
    """Encode an image as JPEG or PNG, by its file extension."""
    stream = io.BytesIO()
    picture.save(stream, "JPEG" if ending.lower() in (".jpg", ".jpeg") else "PNG")
    return stream.getvalue()


def data_address(picture: Image.Image, *, lossless: bool = False) -> str:
    """Return an image as a data URI, inlined in a page."""
    stream = io.BytesIO()
    picture.save(stream, "WEBP", quality=90, lossless=lossless)
    return f"data:image/webp;base64,{base64.b64encode(stream.getvalue()).decode()}"
