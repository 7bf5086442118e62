"""Decode an image file. A file that is no image is refused by name; every format becomes 8-bit RGB in one defined way.

Rotated as its EXIF says; the first frame or page; transparency over white; 16 bits and floats scaled, never clipped. A JPEG
is decoded at no higher resolution than needed (libjpeg scales by 1/2, 1/4 or 1/8 at a lower cost), by simplejpeg where it is
installed: the same library with less overhead, to the same pixels.
"""

import io
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy import ndarray
from PIL import Image, JpegImagePlugin, UnidentifiedImageError

from vitrail.errors import VitrailError

try:
    import simplejpeg  # type: ignore[import-untyped]
except ImportError:
    simplejpeg = None

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM")
NONE = "it is none of JPEG, PNG, GIF, WebP, TIFF, BMP and PPM"
LARGEST = 2**26  # pixels: 64 million, more than a camera takes and less than fills the memory
ORIENTATION = 0x0112
TURNS = {  # the transpose that makes an image of this EXIF orientation upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)
Size = tuple[int, int]  # height, width

# Pillow warns of images that are too large, which are refused here, and of odd tags, which do no harm.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", module=r"PIL\.")


class BadPicture(VitrailError):
    """A file that cannot be used as an image, named with its reason."""


def decode(source: Path | bytes, *, least: Size | None = None, largest: int = LARGEST) -> Image.Image:
    """Decode to an upright RGB image. ``min_size``: the height and width needed, so that a JPEG need not be decoded in full."""
    made = _read(source, None if least is None else lambda _: least, largest)
    return made if isinstance(made, Image.Image) else Image.fromarray(made)


def pixels(source: Path | bytes, *, least: Callable[[Size], Size] | None = None, largest: int = LARGEST) -> ndarray:
    """Decode to an array (h w 3, uint8). ``min_size`` maps the upright image's size to the size needed."""
    made = _read(source, least, largest)
    return np.asarray(made) if isinstance(made, Image.Image) else made


def _read(source: Path | bytes, least: Callable[[Size], Size] | None, largest: int) -> Image.Image | ndarray:
    where = source if isinstance(source, Path) else "the image"
    try:
        content = source.read_bytes() if isinstance(source, Path) else source
        image, turn = _open(content)
        if image.width * image.height > largest:
            raise BadPicture(f"{where} has {image.width} x {image.height} pixels, more than the {largest:,} allowed")
        if isinstance(image, JpegImagePlugin.JpegImageFile):
            return _jpeg(image, content, turn, least)
        image.load()
        made = upright(image)  # only now, since a PNG may store its orientation after its pixels
        if least is not None:
            least((made.height, made.width))
        return made
    except BadPicture as error:
        raise error if str(where) in str(error) else BadPicture(f"{where} {error}") from None
    except MemoryError:  # transient
        raise
    except Exception as error:  # a damaged image can fail its decoder in any way
        reason = str(error).strip().splitlines()[0].replace(str(where), "it") if str(error).strip() else type(error).__name__
        raise BadPicture(f"{where} cannot be decoded: {reason}") from None


def upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation and convert to 8-bit RGB, over white where it is transparent."""
    return _plain(_turned(image, _orientation(image)))


def as_picture(content: bytes | ndarray) -> Image.Image:
    """Convert what a dataset returns, encoded or as pixels (h w c), to a PIL image in its own channels."""
    if isinstance(content, bytes):
        return decode(content)
    return Image.fromarray(content[..., 0] if content.shape[2] == 1 else content)


def kind(content: bytes) -> str:
    """Return format and mode as stored, such as ``JPEG RGB``."""
    image, _ = _open(content)
    return f"{image.format} {image.mode}"


def _open(content: bytes) -> tuple[Image.Image, int]:
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError:
        raise BadPicture(f"cannot be decoded: {'it is empty' if not content else NONE}") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise BadPicture(f"has more than the {LARGEST:,} pixels allowed") from None
    return image, _orientation(image) if isinstance(image, JpegImagePlugin.JpegImageFile) else 1


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # unreadable tags rotate nothing
        return 1


def _turned(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(TURNS[orientation]) if orientation in TURNS else image


def _jpeg(
    image: JpegImagePlugin.JpegImageFile, content: bytes, turn: int, least: Callable[[Size], Size] | None
) -> Image.Image | ndarray:
    mode, shrink = image.mode, 1
    if least is not None:
        high, wide = least((image.width, image.height) if turn in SIDEWAYS else (image.height, image.width))
        high, wide = (wide, high) if turn in SIDEWAYS else (high, wide)
        shrink = max(
            [factor for factor in (1, 2, 4, 8) if image.height >= factor * high and image.width >= factor * wide] or [1]
        )
    if simplejpeg is not None and mode in ("RGB", "L") and image.layer:
        try:
            size = {"min_height": -(-image.height // shrink), "min_width": -(-image.width // shrink)}
            made = simplejpeg.decode_jpeg(content, colorspace="RGB", **size)
            return made if turn not in TURNS else np.asarray(_turned(Image.fromarray(made), turn))
        except ValueError:  # it is stricter than Pillow
            pass
    if shrink > 1:
        image.draft(mode, (image.width // shrink, image.height // shrink))
    image.load()
    return _plain(_turned(image, turn))


def _plain(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """Scale grey values of more than eight bits by the range they are in: up to 1 (floats), 255 or 65535."""
    numbers = values.astype(np.float32)
    if not np.isfinite(numbers).all() or numbers.min() < 0 or numbers.max() > 65535:
        raise BadPicture("has grey values that are not finite or not from 0 to 65535")
    whole = np.issubdtype(values.dtype, np.integer)
    top = 65535 if values.dtype.itemsize == 2 or numbers.max() > 255 else 1 if not whole and numbers.max() <= 1 else 255
    return np.rint(np.multiply(numbers, np.float32(255 / top), out=numbers)).astype(np.uint8)
