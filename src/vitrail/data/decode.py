"""From a file to a picture. What is no picture is refused by name; every kind of picture becomes plain RGB in one defined way.

Turned as its EXIF says; the first frame or page; transparency over white; 16 bits and floats scaled, never clipped.
"""

import io
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from vitrail.errors import VitrailError

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM")
LARGEST = 2**26  # pixels: 64 million, more than a camera takes and less than a machine's memory


class BadPicture(VitrailError):
    """A file that cannot be used as a picture, named with its reason."""


def decode(source: Path | bytes, *, least: tuple[int, int] | None = None, largest: int = LARGEST) -> Image.Image:
    """An upright RGB picture. ``least``: the height and width that are needed, so that a JPEG need not be decoded in full."""
    where = source if isinstance(source, Path) else "the picture"
    try:
        # Pillow only warns of a picture that is too large, and of a file with odd tags; the first is refused below.
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        with warnings.catch_warnings(action="ignore"), Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > largest:
                raise BadPicture(f"{where} has {image.width} x {image.height} pixels, more than the {largest:,} allowed")
            if least is not None:
                image.draft("RGB", (least[1], least[0]))
            image.load()
            return _plain(_upright(image))
    except BadPicture as error:
        raise error if str(where) in str(error) else BadPicture(f"{where} {error}") from None
    except Exception as error:  # a damaged picture can fail its decoder in any way
        reason = str(error).strip().splitlines()[0].replace(str(where), "it") if str(error).strip() else type(error).__name__
        raise BadPicture(f"{where} is no picture that can be read: {reason}") from None


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # tags that cannot be read turn nothing
        return image


def _plain(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """Grey values of more than eight bits, by the range they are in: up to 1 (floats), 255 or 65535."""
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all() or numbers.min() < 0 or numbers.max() > 65535:
        raise BadPicture("has grey values that are no numbers from 0 to 65535")
    whole = np.issubdtype(values.dtype, np.integer)
    top = 65535 if values.dtype.itemsize == 2 or numbers.max() > 255 else 1 if not whole and numbers.max() <= 1 else 255
    return np.rint(numbers * (255 / top)).astype(np.uint8)
