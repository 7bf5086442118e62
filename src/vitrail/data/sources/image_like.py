"""Images as Python code has them: paths, bytes, PIL images, uint8 arrays (h w c, h w) and uint8 tensors (c h w, h w).

Arrays of bands, as satellites have them, have integers of more than 8 bits, or floats in two or in five and more bands: a
float image of one, three or four channels is more likely one that somebody has normalised.
"""

import os
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy import ndarray
from PIL import Image

from vitrail.data.bad_image import BadImage
from vitrail.data.band_files import check_num_pixels, check_values
from vitrail.data.decode import MAX_IMAGE_PIXELS, to_upright_rgb
from vitrail.data.sources.dataset import read_image_file
from vitrail.errors import VitrailError

BAND_TYPES, FLOAT_TYPES = ("uint16", "int16", "uint32", "int32"), ("float16", "float32", "float64")
_pil_locks = [Lock() for _ in range(64)]  # by the image's id: an image may be listed twice, and loading changes it


def read_image_like(image: Any) -> bytes | ndarray:
    """Return the encoded file, or the pixels (h w c) upright and in plain RGB or grey, as if read from a file; or bands."""
    if isinstance(image, str | os.PathLike):
        return _read_file(os.fsdecode(image))
    if isinstance(image, bytes):
        return image
    if isinstance(image, Image.Image):
        return _pil_to_array(image)
    check_image_like(image)
    pixels = np.moveaxis(image.detach().cpu().numpy(), 0, -1) if is_tensor(image) and image.ndim == 3 else np.asarray(image)
    if pixels.dtype != np.uint8:
        pixels = pixels if pixels.ndim == 3 else pixels[..., None]
        height, width, bands = pixels.shape
        check_num_pixels(height, width, bands, MAX_IMAGE_PIXELS)
        return np.ascontiguousarray(check_values(pixels))
    if pixels.ndim == 3 and pixels.shape[2] == 4:
        return _pil_to_array(Image.fromarray(np.ascontiguousarray(pixels)))
    _check_num_pixels(pixels.shape[1], pixels.shape[0])
    return np.ascontiguousarray(pixels if pixels.ndim == 3 else pixels[..., None])


def is_image_like(value: Any) -> bool:
    """Whether a value has the type of an image; it may still be a bad one."""
    return isinstance(value, str | os.PathLike | bytes | Image.Image | ndarray) or is_tensor(value)


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor. Asked without torch, which takes seconds to import."""
    return hasattr(value, "detach") and hasattr(value, "numpy")


def check_image_like(image: Any) -> None:
    """Raise unless the image has a type, and an array or a tensor a shape, that can be read."""
    if not is_image_like(image):
        raise BadImage(f"is {describe_value(image)}; it must be a path, bytes, a PIL image, a uint8 array or a uint8 tensor")
    if not isinstance(image, ndarray) and not is_tensor(image):
        return
    tensor, shape, dtype = is_tensor(image), tuple(image.shape), str(image.dtype).removeprefix("torch.")
    channels = 1 if len(shape) == 2 else shape[0 if tensor else -1] if len(shape) == 3 else 0
    if (dtype == "uint8" and channels in (1, 3, 4)) or (dtype in BAND_TYPES and channels):
        return
    if dtype in FLOAT_TYPES and channels not in (0, 1, 3, 4):
        return
    sides = "channels x height x width" if tensor else "height x width, or that x 1, 3 or 4"
    hint = ""
    if dtype.startswith(("float", "bfloat")):
        to_uint8 = "to(torch.uint8)" if tensor else 'astype("uint8")'
        hint = f"; try (255 * image).round().{to_uint8} for values from 0 to 1, and leave normalisation to Vitrail"
    raise BadImage(f"is {describe_value(image)}; it must be uint8, {sides}{hint}")


def describe_value(value: Any) -> str:
    """Return type and shape of a value for a message, never its content."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        kind = "a tensor" if is_tensor(value) else "an array"
        return f"{kind} of {str(value.dtype).removeprefix('torch.')}, {' x '.join(map(str, shape)) or 'a single value'}"
    if isinstance(value, dict):
        return f"a dict with the keys {', '.join(map(str, list(value)[:5]))}"
    name = type(value).__name__
    length = f" of length {len(value)}" if isinstance(value, tuple | list) else ""
    return "None" if value is None else f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}{length}"


def _read_file(path: str) -> bytes:
    try:
        return read_image_file(Path(path))
    except OSError as error:
        raise BadImage(f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a null byte in the name
        raise BadImage(f"cannot be read: {error}") from None


def _pil_to_array(image: Image.Image) -> ndarray:
    _check_num_pixels(image.width, image.height)
    try:
        with _pil_locks[id(image) % len(_pil_locks)]:
            image.load()
            pixels = np.asarray(to_upright_rgb(image))
            return np.ascontiguousarray(pixels[..., :1]) if image.mode in ("1", "L") else pixels
    except (VitrailError, MemoryError):
        raise
    except Exception as error:  # a damaged image can fail its decoder in any way
        raise BadImage(f"cannot be decoded: {error}") from None


def _check_num_pixels(width: int, height: int) -> None:
    if not 0 < width * height <= MAX_IMAGE_PIXELS:
        raise BadImage(f"has {width} x {height} pixels; 1 to {MAX_IMAGE_PIXELS:,} are allowed")
