"""An image of a dataset as a file of its own: the bytes that were stored, or a new file of its pixels."""

import io

import numpy as np
from numpy import ndarray

from vitrail.data.band_files import array_format
from vitrail.data.decode import image_format, to_pil
from vitrail.errors import VitrailError

FORMAT_EXTENSIONS = {
    "JPEG": "jpg",
    "PNG": "png",
    "GIF": "gif",
    "WEBP": "webp",
    "TIFF": "tiff",
    "BMP": "bmp",
    "PPM": "ppm",
    ".npy": "npy",
}


def encode_image_file(content: bytes | ndarray) -> tuple[str, bytes]:
    """Return extension and bytes of a file: an encoded image as it is, pixels as PNG, other bands as .npy."""
    if isinstance(content, bytes):
        return FORMAT_EXTENSIONS[image_format(content).split()[0]], content
    stream = io.BytesIO()
    if array_format(content) is not None:
        np.save(stream, content, allow_pickle=False)
        return "npy", stream.getvalue()
    to_pil(content).save(stream, "PNG")
    return "png", stream.getvalue()


def explain_unusable(description: str, error: Exception) -> str:
    """Return a sentence that says why the image of this description cannot be used."""
    if isinstance(error, OSError):
        return f"{description} cannot be read: {error.strerror or error}"
    if isinstance(error, VitrailError):
        return str(error) if description in str(error) else f"{description} {str(error).removeprefix('the image ')}"
    return f"{description} cannot be decoded: {error or type(error).__name__}"
