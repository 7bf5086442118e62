"""Read a mask file: one whole number per pixel, never interpolated. h high, w wide.

Indices are as stored, with 8 or 16 bits; of a palette, too, whose colours are only colours. A colour is the number 0xRRGGBB.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, UInt8
from numpy import ndarray
from PIL import Image, UnidentifiedImageError

from vitrail.data.bad_image import BadImage
from vitrail.data.decode import EXIF_TRANSPOSES, MAX_IMAGE_PIXELS, SIDEWAYS_ORIENTATIONS, ImageSize, stored_size
from vitrail.errors import VitrailError, first_line

FORMATS = ("PNG", "TIFF", "BMP", "GIF", "PPM", "WEBP", "JPEG")
MAX_VALUE = 65535  # of 16 bits
INDEX_MODES = ("1", "L", "P", "LA", "PA", "I", "I;16", "I;16B", "I;16L")


@dataclass(frozen=True)
class MaskValues:
    """The numbers of a mask: indices, or colours if ``is_colour``; ``palette`` has the colour of each index, if it has one."""

    values: Int32[ndarray, "h w"]
    is_colour: bool
    palette: UInt8[ndarray, "256 3"] | None = None
    is_lossy: bool = False  # a JPEG

    def colours(self) -> Int32[ndarray, "h w"]:
        """Return the colours of the pixels, of indices those of the palette, else greys."""
        if self.is_colour:
            return self.values
        palette = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1) if self.palette is None else self.palette
        return pack_colours(palette)[np.minimum(self.values, 255)]

    def indices(self) -> Int32[ndarray, "h w"] | None:
        """Return the indices, of a colour mask that is grey its greys; None if it has colours."""
        if not self.is_colour:
            return self.values
        return self.values & 255 if (self.values % 0x10101 == 0).all() else None


def decode_mask(content: bytes) -> MaskValues:
    """Decode a mask; an error says what is wrong with it, after the name of its file."""
    try:
        return _decode(content)
    except (BadImage, MemoryError):
        raise
    except UnidentifiedImageError:
        reason = "it is empty" if not content else f"it is none of {', '.join(FORMATS[:-1])}"
        raise BadImage(f"cannot be decoded: {reason}") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise BadImage(f"has more than the {MAX_IMAGE_PIXELS:,} pixels allowed") from None
    except Exception as error:  # a damaged file can fail its decoder in any way
        raise BadImage(f"cannot be decoded: {first_line(error)}") from None


def _decode(content: bytes) -> MaskValues:
    image = Image.open(io.BytesIO(content), formats=FORMATS)
    if image.width * image.height > MAX_IMAGE_PIXELS:
        raise BadImage(f"has {image.width} x {image.height} pixels, more than the {MAX_IMAGE_PIXELS:,} allowed")
    image.load()
    lossy = image.format == "JPEG"
    if image.mode in INDEX_MODES:
        palette = _palette(image) if image.mode in ("P", "PA") else None
        values = np.asarray(image)
        values = np.ascontiguousarray(values if values.ndim == 2 else values[..., 0]).astype(np.int32)
        if values.size and (values.min() < 0 or values.max() > MAX_VALUE):
            outside = values.min() if values.min() < 0 else values.max()
            raise BadImage(f"has the value {outside}, and a mask may have 0 to {MAX_VALUE}; write its classes as 0, 1, 2 ...")
        return MaskValues(values, False, palette, lossy)
    if image.mode in ("RGB", "RGBA", "RGBX", "CMYK"):
        return MaskValues(pack_colours(np.asarray(image.convert("RGB"))), True, None, lossy)
    raise BadImage(f"has pixels of the kind {image.mode}, and a mask has whole numbers or colours; save it as 8-bit PNG")


def _palette(image: Image.Image) -> UInt8[ndarray, "256 3"]:
    colours = np.zeros((256, 3), np.uint8)
    listed = np.array(image.getpalette("RGB") or [], np.uint8).reshape(-1, 3)
    colours[: len(listed)] = listed
    return colours


def pack_colours(colours: UInt8[ndarray, "*n 3"]) -> Int32[ndarray, "*n"]:
    """Return 0xRRGGBB of each colour."""
    wide = colours.astype(np.int32)
    return (wide[..., 0] << 16) | (wide[..., 1] << 8) | wide[..., 2]


def colour_text(colour: int) -> str:
    return f"#{colour:06x}"


def as_its_image(mask: ndarray, image: bytes) -> ndarray:
    """Return a mask as the upright image is: one that was drawn on the image as it is stored is turned as its EXIF says."""
    (height, width), orientation = stored_size(image)
    sideways = orientation in SIDEWAYS_ORIENTATIONS
    upright: ImageSize = (width, height) if sideways else (height, width)
    if mask.shape == upright:
        return mask
    if sideways and mask.shape == (height, width):
        return np.asarray(Image.fromarray(mask.astype(np.int32)).transpose(EXIF_TRANSPOSES[orientation])).astype(mask.dtype)
    raise BadImage(f"is {mask.shape[1]} x {mask.shape[0]} pixels, and its image {upright[1]} x {upright[0]}")


@contextmanager
def naming_mask(kind: str, name: object) -> Iterator[None]:
    """A context whose errors name the mask."""
    try:
        yield
    except OSError as error:
        raise VitrailError(f"its {kind} {name} cannot be read: {error.strerror or first_line(error)}") from None
    except VitrailError as error:
        raise BadImage(f"its {kind} {name} {error}") from None
