"""Read the bands of TIFF and ``.npy`` files as they are stored: any number of them, in their own data type. h w c.

An image has bands if it is not what a camera or a screen has: grey, RGB or RGBA of 8 bits. Satellites, microscopes and
spectrometers give such files. A TIFF of one band is read by Pillow, others by tifffile, the extra ``bands``. No header is
believed before the file has as many bytes as it claims, and nothing is unpickled.
"""

import ast
import io
import logging
import math
import zlib
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from jaxtyping import Num
from numpy import ndarray
from PIL import Image, TiffImagePlugin

from vitrail.data.bad_image import BadImage

NPY_MAGIC = b"\x93NUMPY"
BIG_TIFF_MAGICS = (b"II+\0", b"MM\0+")
TIFF_MAGICS = (b"II*\0", b"MM\0*", *BIG_TIFF_MAGICS)
MAX_BANDS = 1024
VALUES_PER_PIXEL = 4  # bands of an image with the most pixels allowed; smaller images may have more
MAX_NPY_HEADER = 10_000  # bytes
BITS, PHOTOMETRIC, DESCRIPTION, SAMPLES, EXTRA_SAMPLES = 258, 262, 270, 277, 338
GEO_KEYS, NODATA = 34735, 42113  # GeoTIFF's, and GDAL's value of pixels without data
TAGS = (BITS, PHOTOMETRIC, DESCRIPTION, SAMPLES, EXTRA_SAMPLES, GEO_KEYS, NODATA)
COLOURS = {0: 1, 1: 1, 2: 3}  # samples of an image's colours by its photometric interpretation: grey and RGB
ALPHA = (1, 2)
COMPRESSIONS = {1: "none", 5: "LZW", 8: "DEFLATE", 32773: "PackBits", 32946: "DEFLATE"}
DEFLATE = (8, 32946)


@dataclass(frozen=True)
class BandFormat:
    """The bands of an image: how many of which data type."""

    bands: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.bands} band{'s' * (self.bands != 1)} of {self.dtype}"


def array_format(image: Num[ndarray, "h w c"]) -> BandFormat | None:
    """Return the bands of pixels in memory; None if they are 8-bit grey or RGB."""
    if image.dtype == np.uint8 and image.shape[2] in (1, 3):
        return None
    return BandFormat(image.shape[2], image.dtype.name)


def may_have_bands(content: bytes) -> bool:
    """Whether a file has a format that can have bands, by its first bytes."""
    return content.startswith((NPY_MAGIC, *TIFF_MAGICS))


def read_bands(content: bytes, max_pixels: int) -> Num[ndarray, "h w c"] | None:
    """Return the bands of a file; None if it has another format, or is an 8-bit image that Pillow reads."""
    if content.startswith(NPY_MAGIC):
        return check_values(_read_npy(content, max_pixels))
    if not content.startswith(TIFF_MAGICS):
        return None
    tags = _read_tags(content)
    if not _is_band_tiff(tags):
        return None
    image = _read_tiff(content, tags, max_pixels)
    stacked = _stacked_shape(tags)
    if len(stacked) > 2 and math.prod(stacked) != image.size:
        raise BadImage("is a truncated TIFF")
    return check_values(image, tags.get(NODATA))


def to_bands_last(image: ndarray, description: str = "an array") -> Num[ndarray, "h w c"]:
    """Return an array with its bands as the last axis. They may be the first one if it is clearly the shortest."""
    if image.ndim == 2:
        return image[..., None]
    if image.ndim != 3:
        shape = " x ".join(map(str, image.shape)) or "no axes"
        raise BadImage(f"is {description} of {shape}; it must be height x width, or that x bands")
    first, second, third = image.shape
    if 2 * first <= min(second, third) or (second == third and first < second):
        image = np.moveaxis(image, 0, -1)
    return image


def check_values(image: ndarray, nodata: str | None = None) -> Num[ndarray, "h w c"]:
    """Return the values in a type of this machine; refuse those that nothing can be learned from."""
    image = image.astype(image.dtype.newbyteorder("="), copy=False)
    if image.dtype.kind == "b":
        return image.astype(np.uint8)
    if image.dtype.kind not in "iuf" or image.dtype.itemsize > 8:
        raise BadImage(f"has values of {image.dtype.name}; they must be integers or floats")
    if image.dtype.kind != "f" and image.dtype.itemsize < 8:
        return image
    with np.errstate(over="ignore"):
        image = image.astype(np.float32) if image.dtype != np.float32 else image
    finite = np.isfinite(image).reshape(-1, image.shape[2]).all(axis=0)
    if not finite.all():
        band = int(np.argmin(finite)) + 1
        raise BadImage(f"has values that are not finite (NaN/Inf) in band {band}; fill them, or leave the file out")
    missing = _number(nodata)
    if missing is not None and (image == np.float32(missing)).any():
        raise BadImage(f"has pixels without data (nodata {missing:g}); fill them, or leave the file out")
    return image


def _number(text: Any) -> float | None:
    try:
        return float(str(text).strip("\0 "))
    except ValueError:
        return None


def check_num_pixels(height: int, width: int, bands: int, max_pixels: int) -> None:
    if min(height, width, bands) < 1:
        raise BadImage(f"has no pixels: {height} x {width} of {bands} bands")
    if height * width > max_pixels or height * width * bands > VALUES_PER_PIXEL * max_pixels:
        raise BadImage(f"has {width} x {height} pixels of {bands} bands, more than the {max_pixels:,} pixels allowed")
    if bands > MAX_BANDS:
        raise BadImage(f"has {bands:,} bands, more than the {MAX_BANDS:,} allowed; are they the last axis?")


def _read_npy(content: bytes, max_pixels: int) -> ndarray:
    """Read an array without unpickling, and without memory for more values than the file has."""
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran_order, dtype = read_header(stream, MAX_NPY_HEADER)
    except Exception:  # numpy parses a header as Python code, and a damaged one can fail in any way
        raise BadImage("is a damaged .npy file: its header cannot be read") from None
    if dtype.hasobject:
        raise BadImage("holds pickled objects, which are never read; save numbers: numpy.save(file, array)")
    if dtype.fields is not None or dtype.kind not in "biuf":
        raise BadImage(f"has values of {dtype}; they must be integers or floats")
    length = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or length != len(content) - stream.tell():
        raise BadImage(
            f"is a damaged .npy file: its header says {length:,} bytes of values, and it has {len(content) - stream.tell():,}"
        )
    image = np.frombuffer(content, dtype, offset=stream.tell()).reshape(shape, order="F" if fortran_order else "C")
    image = to_bands_last(image)
    height, width, bands = image.shape
    check_num_pixels(height, width, bands, max_pixels)
    return np.ascontiguousarray(image)


def _read_tags(content: bytes) -> dict[int, Any]:
    """Return the tags of a TIFF's first page."""
    stream = io.BytesIO(content)
    try:
        header = stream.read(16 if content.startswith(BIG_TIFF_MAGICS) else 8)
        directory = TiffImagePlugin.ImageFileDirectory_v2(header)
        stream.seek(directory.next)
        directory.load(stream)
        return {tag: directory[tag] for tag in TAGS if tag in directory}
    except Exception as error:  # a damaged header can fail its reader in any way
        raise BadImage(f"is a damaged TIFF: {type(error).__name__} in its header") from None


def _is_band_tiff(tags: dict[int, Any]) -> bool:
    """Whether a TIFF has more than 8 bits, or samples besides grey or RGB and an alpha channel."""
    bits, extra = tags.get(BITS, 1), tags.get(EXTRA_SAMPLES, ())
    if max(bits if isinstance(bits, tuple) else (bits,)) > 8 or len(_stacked_shape(tags)) > 2:
        return True
    colours = COLOURS.get(tags.get(PHOTOMETRIC, 1))
    if colours is None:  # a palette, CMYK and the like
        return False
    spare = int(tags.get(SAMPLES, 1)) - colours
    is_alpha = any(sample in ALPHA for sample in (extra if isinstance(extra, tuple) else (extra,)))
    # GDAL calls the fourth of four bands alpha, also if it is near infrared
    return spare > 1 or (spare == 1 and (not is_alpha or (colours == 3 and GEO_KEYS in tags)))


def _stacked_shape(tags: dict[int, Any]) -> tuple[int, ...]:
    """Return the shape of an array that tifffile has written band by band, or row by row, each as a page; () otherwise."""
    description = tags.get(DESCRIPTION)
    if not isinstance(description, str) or not description.startswith('{"shape": [') or tags.get(PHOTOMETRIC) == 2:
        return ()
    try:
        shape = ast.literal_eval(description.partition("[")[2].partition("]")[0] + ",")
        return tuple(int(side) for side in shape)
    except (ValueError, SyntaxError, TypeError):
        return ()


def _read_tiff(content: bytes, tags: dict[int, Any], max_pixels: int) -> ndarray:
    if int(tags.get(SAMPLES, 1)) == 1 and len(_stacked_shape(tags)) <= 2:
        try:
            with Image.open(io.BytesIO(content), formats=["TIFF"]) as image:
                check_num_pixels(image.height, image.width, 1, max_pixels)
                if getattr(image, "n_frames", 1) == 1 and (image.mode.startswith("I;16") or image.mode == "F"):
                    return np.asarray(image)[..., None]
        except BadImage:
            raise
        except Exception:  # it has no mode for every data type; what is damaged, tifffile says
            pass
    return _read_by_tifffile(content, max_pixels)


def _read_by_tifffile(content: bytes, max_pixels: int) -> ndarray:
    try:
        tifffile: Any = import_module("tifffile")
    except ImportError:
        raise BadImage(
            "has several bands or more than 8 bits, which needs tifffile; try pip install 'vitrail[bands]'"
        ) from None
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what it warns of is refused here
    # Files of several files are not followed: they would name others on this machine.
    with tifffile.TiffFile(io.BytesIO(content), _multifile=False, is_ome=False) as file:
        series = file.series[0]
        shape = tuple(side for side in series.shape if side != 1) or (1,)
        if len(shape) > 3:
            raise BadImage(f"has the axes {series.axes} of {series.shape}; it must be one image of several bands")
        sides = sorted(shape)[-2:] if len(shape) > 1 else [1, *shape]
        check_num_pixels(sides[0], sides[1], math.prod(shape) // math.prod(sides), max_pixels)
        for page in series.pages:
            _check_page(page, len(content))
        image = series.asarray(maxworkers=1)
        if series.axes.endswith("YXS"):
            return np.ascontiguousarray(image.reshape(image.shape[-3:]))
        if series.axes.endswith("SYX"):
            return np.ascontiguousarray(np.moveaxis(image.reshape(image.shape[-3:]), 0, -1))
        return np.ascontiguousarray(to_bands_last(image, "a TIFF"))


def _check_page(page: Any, length: int) -> None:
    """Refuse a page whose data is not in the file, or whose data may inflate to more than the header says."""
    page = page.aspage()
    if int(page.compression) not in COMPRESSIONS:
        raise BadImage(f"is compressed by {page.compression.name}; write it uncompressed or with DEFLATE")
    segments = list(zip(page.dataoffsets, page.databytecounts, strict=True))
    if not segments or any(start + count > length for start, count in segments):
        raise BadImage("is a truncated TIFF")
    if int(page.compression) in DEFLATE:
        limit = math.prod(page.chunks) * page.dtype.itemsize
        for start, count in segments:
            inflater = zlib.decompressobj()
            inflated = inflater.decompress(page.parent.filehandle.read_array(np.uint8, count, start).tobytes(), limit + 1)
            if len(inflated) > limit or (not inflater.eof and inflater.unconsumed_tail):
                raise BadImage("is a damaged TIFF: its data inflates to more than its header says")
