"""Folders of images of several bands for tests, as TIFF and .npy files."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy import ndarray


def tiff_bytes(image: ndarray, **options: Any) -> bytes:
    """Encode by tifffile; by default the bands (h w c) of each pixel are next to each other, as GDAL writes them."""
    stream = io.BytesIO()
    defaults: dict[str, Any] = {"photometric": "minisblack", "planarconfig": "contig"} if image.ndim == 3 else {}
    tifffile.imwrite(stream, image, **(defaults | options))
    return stream.getvalue()


def npy_bytes(image: ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, image)
    return stream.getvalue()


def make_bands(number: int, size: tuple[int, int] = (13, 11), bands: int = 5, dtype: str = "uint16") -> ndarray:
    """Return noise around another mean in each band, different for each number."""
    values = np.random.default_rng(number).normal(100 * np.arange(1, bands + 1), 20, (*size, bands))
    return values.astype(dtype)


def write_band_folders(root: Path, count: int = 12, *, suffix: str = ".tif", shown_by: int = 4, **options: Any) -> Path:
    """Write ``root/dry/0.tif`` ... and ``root/wet/0.tif`` ..., which differ only in one band, whose mean is higher if wet."""
    number = 0
    for name in ("dry", "wet"):
        (root / name).mkdir(parents=True)
        for index in range(count):
            image = make_bands(number, **options)
            image[..., shown_by] += 150 if name == "wet" else 0
            encode = tiff_bytes if suffix == ".tif" else npy_bytes
            (root / name / f"{index}{suffix}").write_bytes(encode(image))
            number += 1
    return root
