"""Decode an image file. A file that is no image is refused by name; every format becomes 8-bit RGB in one defined way, or
the bands that it stores (``band_files.py``).

Rotated as its EXIF says; the first frame or page; transparency over white; 16 bits and floats scaled, never clipped. A JPEG
is decoded at no higher resolution than needed (libjpeg scales by 1/2, 1/4 or 1/8 at a lower cost), by simplejpeg where it is
installed: the same library with less overhead, to the same pixels.
"""

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Num
from numpy import ndarray
from PIL import Image, JpegImagePlugin, UnidentifiedImageError

from vitrail.data.bad_image import BadImage
from vitrail.data.band_files import NPY_MAGIC, BandFormat, array_format, may_have_bands, read_bands
from vitrail.errors import first_line

try:
    import simplejpeg  # type: ignore[import-untyped]
except ImportError:
    simplejpeg = None

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM")
UNKNOWN_FORMAT = "it is none of JPEG, PNG, GIF, WebP, TIFF, BMP, PPM and .npy"
MAX_IMAGE_PIXELS = 2**26  # pixels: 64 million, more than a camera takes and less than fills the memory
ORIENTATION_TAG = 0x0112
EXIF_TRANSPOSES = {  # the transpose that makes an image of this EXIF orientation upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS_ORIENTATIONS = (5, 6, 7, 8)
ImageSize = tuple[int, int]  # height, width
T = TypeVar("T")

# Pillow warns of images that are too large, which are refused here, and of odd tags, which do no harm.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", module=r"PIL\.")


def decode(source: Path | bytes, *, min_size: ImageSize | None = None, max_pixels: int = MAX_IMAGE_PIXELS) -> Image.Image:
    """Decode to an upright RGB image. ``min_size``: the height and width needed, so that a JPEG need not be decoded in full."""
    decoded = _decode(source, None if min_size is None else lambda _: min_size, max_pixels)
    return decoded if isinstance(decoded, Image.Image) else Image.fromarray(decoded)


def decode_array(
    source: Path | bytes, *, min_size: Callable[[ImageSize], ImageSize] | None = None, max_pixels: int = MAX_IMAGE_PIXELS
) -> ndarray:
    """Decode to an array (h w 3, uint8). ``min_size`` maps the upright image's size to the size needed."""
    decoded = _decode(source, min_size, max_pixels)
    return np.asarray(decoded) if isinstance(decoded, Image.Image) else decoded


def decode_bands(source: Path | bytes | ndarray, *, max_pixels: int = MAX_IMAGE_PIXELS) -> Num[ndarray, "h w c"]:
    """Decode to the bands as they are stored, in their own data type; of an 8-bit image, RGB."""
    if isinstance(source, ndarray):
        return source
    bands = _read_bands(source, max_pixels)
    return decode_array(source, max_pixels=max_pixels) if bands is None else bands


def band_format(content: bytes | ndarray) -> BandFormat | None:
    """Return the bands of an image; None if it is an 8-bit grey or RGB image, whatever its format."""
    bands = content if isinstance(content, ndarray) else _read_bands(content, MAX_IMAGE_PIXELS)
    return None if bands is None else array_format(bands)


def _read_bands(source: Path | bytes, max_pixels: int) -> ndarray | None:
    return _named(source, lambda content: read_bands(content, max_pixels) if may_have_bands(content) else None)


def _decode(source: Path | bytes, min_size: Callable[[ImageSize], ImageSize] | None, max_pixels: int) -> Image.Image | ndarray:
    return _named(source, lambda content: _decode_content(content, min_size, max_pixels))


def _decode_content(
    content: bytes, min_size: Callable[[ImageSize], ImageSize] | None, max_pixels: int
) -> Image.Image | ndarray:
    try:
        image, orientation = _open(content)
    except BadImage:
        bands = read_bands(content, max_pixels)
        if bands is None:
            raise
        decoded = to_pil(bands).convert("RGB")
    else:
        if image.width * image.height > max_pixels:
            raise BadImage(f"has {image.width} x {image.height} pixels, more than the {max_pixels:,} allowed")
        if isinstance(image, JpegImagePlugin.JpegImageFile):
            return _decode_jpeg(image, content, orientation, min_size)
        image.load()
        decoded = to_upright_rgb(image)  # only now, since a PNG may store its orientation after its pixels
    if min_size is not None:
        min_size((decoded.height, decoded.width))
    return decoded


def _named(source: Path | bytes, decode_content: Callable[[bytes], T]) -> T:
    """Decode the content of a file; whatever is wrong with it is an error that names it."""
    name = source if isinstance(source, Path) else "the image"
    try:
        return decode_content(source.read_bytes() if isinstance(source, Path) else source)
    except BadImage as error:
        raise error if str(name) in str(error) else BadImage(f"{name} {error}") from None
    except MemoryError:  # transient
        raise
    except Exception as error:  # a damaged image can fail its decoder in any way
        raise BadImage(f"{name} cannot be decoded: {first_line(error).replace(str(name), 'it')}") from None


def to_upright_rgb(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation and convert to 8-bit RGB, over white where it is transparent."""
    return _to_rgb(_apply_orientation(image, _orientation(image)))


def to_pil(content: bytes | ndarray) -> Image.Image:
    """Convert what a dataset returns, encoded or as pixels (h w c), to a PIL image in its own channels."""
    if isinstance(content, bytes):
        return decode(content)
    if (bands := array_format(content)) is not None:
        raise BadImage(f"has {bands}, and 8-bit RGB or grey is needed; try a model of such bands, or convert it to RGB")
    return Image.fromarray(content[..., 0] if content.shape[2] == 1 else content)


def image_format(content: bytes) -> str:
    """Return format and mode as stored, such as ``JPEG RGB``, or of bands ``TIFF 5 bands of uint16``."""
    if (bands := band_format(content)) is not None:
        return f"{'.npy' if content.startswith(NPY_MAGIC) else 'TIFF'} {bands}"
    if content.startswith(NPY_MAGIC):
        return ".npy RGB"
    image, _ = _open(content)
    return f"{image.format} {image.mode}"


def stored_size(content: bytes) -> tuple[ImageSize, int]:
    """Return height and width as stored, before the EXIF orientation, which is returned as well."""
    try:
        image, _ = _open(content)  # only its header is read
    except BadImage:  # bands that Pillow does not know
        height, width = decode_bands(content).shape[:2]
        return (height, width), 1
    return (image.height, image.width), _orientation(image)


def _open(content: bytes) -> tuple[Image.Image, int]:
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError:
        raise BadImage(f"cannot be decoded: {'it is empty' if not content else UNKNOWN_FORMAT}") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise BadImage(f"has more than the {MAX_IMAGE_PIXELS:,} pixels allowed") from None
    return image, _orientation(image) if isinstance(image, JpegImagePlugin.JpegImageFile) else 1


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION_TAG, 1))
    except Exception:  # unreadable tags rotate nothing
        return 1


def _apply_orientation(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(EXIF_TRANSPOSES[orientation]) if orientation in EXIF_TRANSPOSES else image


def _decode_jpeg(
    image: JpegImagePlugin.JpegImageFile, content: bytes, orientation: int, min_size: Callable[[ImageSize], ImageSize] | None
) -> Image.Image | ndarray:
    mode, shrink = image.mode, 1
    if min_size is not None:
        height, width = min_size(
            (image.width, image.height) if orientation in SIDEWAYS_ORIENTATIONS else (image.height, image.width)
        )
        height, width = (width, height) if orientation in SIDEWAYS_ORIENTATIONS else (height, width)
        shrink = max(
            [factor for factor in (1, 2, 4, 8) if image.height >= factor * height and image.width >= factor * width] or [1]
        )
    if simplejpeg is not None and mode in ("RGB", "L") and image.layer:
        try:
            size = {"min_height": -(-image.height // shrink), "min_width": -(-image.width // shrink)}
            decoded = simplejpeg.decode_jpeg(content, colorspace="RGB", **size)
            return (
                decoded
                if orientation not in EXIF_TRANSPOSES
                else np.asarray(_apply_orientation(Image.fromarray(decoded), orientation))
            )
        except ValueError:  # it is stricter than Pillow
            pass
    if shrink > 1:
        image.draft(mode, (image.width // shrink, image.height // shrink))
    image.load()
    return _to_rgb(_apply_orientation(image, orientation))


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_eight_bits(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _to_eight_bits(values: np.ndarray) -> np.ndarray:
    """Scale grey values of more than eight bits by the range they are in: up to 1 (floats), 255 or 65535."""
    numbers = values.astype(np.float32)
    if not np.isfinite(numbers).all() or numbers.min() < 0 or numbers.max() > 65535:
        raise BadImage("has grey values that are not finite or not from 0 to 65535")
    is_integer = np.issubdtype(values.dtype, np.integer)
    maximum = (
        65535 if values.dtype.itemsize == 2 or numbers.max() > 255 else 1 if not is_integer and numbers.max() <= 1 else 255
    )
    return np.rint(np.multiply(numbers, np.float32(255 / maximum), out=numbers)).astype(np.uint8)
