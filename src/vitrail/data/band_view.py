"""Draw bands for people: three of them as red, green and blue, or one as grey, between robust percentiles. n images h w c."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Num
from numpy import ndarray
from PIL import Image

from vitrail.data.band_files import array_format
from vitrail.data.decode import ImageSize, band_format, decode, decode_bands, to_pil
from vitrail.errors import VitrailError

PERCENTILES = (2, 98)  # drawn as black and white
MAX_SAMPLED_VALUES = 2**20  # per band, for the percentiles


def draw_bands(images: Num[ndarray, "n h w c"], bands: Sequence[int] = ()) -> list[Image.Image]:
    """Draw bands, numbered from 1 as by GDAL and rasterio, with one scale for all images; by default the first three, or the
    first one of fewer."""
    selected = images[..., [band - 1 for band in check_bands(bands, images.shape[3])]].astype(np.float32)
    values = selected.reshape(-1, selected.shape[3])
    low, high = np.percentile(values[:: -(-len(values) // MAX_SAMPLED_VALUES)], PERCENTILES, axis=0)
    scaled = (selected - low) / np.maximum(high - low, np.finfo(np.float32).tiny)
    pixels = np.rint(255 * scaled.clip(0, 1)).astype(np.uint8)
    return [to_pil(np.ascontiguousarray(one)) for one in pixels]


def check_bands(bands: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the numbers of the bands to draw, one or three of ``count``."""
    selected = tuple(bands) or (tuple(range(1, 4)) if count >= 3 else (1,))
    if len(selected) not in (1, 3) or not all(1 <= band <= count for band in selected):
        raise VitrailError(
            f"bands must be one or three numbers from 1 to {count}, the image's bands, got {','.join(map(str, selected))}; try "
            f"{'3,2,1' if count >= 3 else '1'}"
        )
    return selected


def to_view(content: bytes | ndarray, min_size: ImageSize | None = None, bands: Sequence[int] = ()) -> Image.Image:
    """Return any image as people can look at it. ``min_size``: the size needed, so that a JPEG need not be decoded in full."""
    if bands or band_format(content) is not None:
        return draw_bands(decode_bands(content)[None], bands)[0]
    return decode(content, min_size=min_size) if isinstance(content, bytes) else to_pil(content)


def pixels_to_view(pixels: Num[ndarray, "h w c"], bands: Sequence[int] = ()) -> Image.Image:
    """Return a resized image, as a predictor takes it, as people can look at it."""
    return draw_bands(pixels[None], bands)[0] if bands or array_format(pixels) is not None else to_pil(pixels)
