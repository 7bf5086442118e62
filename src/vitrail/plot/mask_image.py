"""Masks as images that any viewer shows: the index of its class for each pixel, and a palette of the colours of the classes.

h high, w wide.
"""

import io
import struct
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int, Int16
from numpy import ndarray
from PIL import Image

from vitrail.plot.class_colours import class_colour, class_colours

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_LEVEL = 4  # of compression: masks are large areas, which any level compresses well
MAX_PALETTE = 256  # classes of an image with a palette; more need 16 bits, and are grey


def mask_image(mask: Int16[ndarray, "h w"], classes: int) -> Image.Image:
    """Return the image of a mask without ignored pixels, whose values are the classes."""
    if classes > MAX_PALETTE:
        return Image.fromarray(mask.astype(np.uint16))
    image = Image.fromarray(mask.astype(np.uint8)).convert("P")
    image.putpalette(class_colours(classes).tobytes())
    return image


def encode_mask(mask: Int16[ndarray, "h w"], classes: int) -> bytes:
    """Return the PNG file of a mask."""
    stream = io.BytesIO()
    mask_image(mask, classes).save(stream, "PNG")
    return stream.getvalue()


def write_mask(bands: Iterable[Int[ndarray, "rows w"]], size: tuple[int, int], classes: int) -> bytes:
    """Return the PNG file of a mask that comes as bands of its rows, so that it need not be in memory as a whole."""
    has_palette = classes <= MAX_PALETTE
    compressor, data = zlib.compressobj(PNG_LEVEL), []
    for band in bands:
        values = np.ascontiguousarray(band.astype(np.uint8 if has_palette else ">u2")).view(np.uint8)
        data.append(compressor.compress(np.pad(values, ((0, 0), (1, 0))).tobytes()))  # 0 before each row: it is not filtered
    data.append(compressor.flush())
    depth, colour_type = (8, 3) if has_palette else (16, 0)
    chunks = [_chunk(b"IHDR", struct.pack(">IIBBBBB", size[1], size[0], depth, colour_type, 0, 0, 0))]
    if has_palette:
        chunks.append(_chunk(b"PLTE", class_colours(classes).tobytes()))
    return b"".join([PNG_SIGNATURE, *chunks, _chunk(b"IDAT", b"".join(data)), _chunk(b"IEND", b"")])


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def mask_legend(names: Sequence[str]) -> list[dict[str, int | str]]:
    """Return value, name and colour of each class, for a ``classes.json`` beside the masks."""
    return [{"value": label, "name": name, "colour": class_colour(label)} for label, name in enumerate(names)]
