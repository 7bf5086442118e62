"""Masks as images that any viewer shows: the index of its class for each pixel, and a palette of the colours of the classes.

h high, w wide.
"""

import io
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int16
from numpy import ndarray
from PIL import Image

from vitrail.plot.class_colours import class_colour, class_colours

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


def mask_legend(names: Sequence[str]) -> list[dict[str, int | str]]:
    """Return value, name and colour of each class, for a ``classes.json`` beside the masks."""
    return [{"value": label, "name": name, "colour": class_colour(label)} for label, name in enumerate(names)]
