"""Number, mean and standard deviation of the bands of a dataset. The same images give the same numbers on every machine.

c bands.
"""

import hashlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from vitrail.data import cache
from vitrail.data.band_files import BandFormat
from vitrail.data.decode import band_format, decode_bands
from vitrail.data.sources.dataset import Dataset, Progress, evenly_spaced
from vitrail.errors import VitrailError
from vitrail.system import available_cores

NUM_FORMATS = 16  # images whose bands are counted
MAX_MEASURED = 1000  # images whose values are measured, evenly spaced
CHUNK = 32  # images decoded at a time
DIGITS = 6  # significant digits that are kept; sums may differ beyond them from machine to machine


@dataclass(frozen=True)
class BandStatistics:
    """Mean and standard deviation of each band, over all pixels of ``num_images`` images."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_images: int


def find_bands(dataset: Dataset) -> BandFormat | None:
    """Return the bands that most of a few images have; None if those are 8-bit grey or RGB images, or cannot be read."""
    formats: Counter[BandFormat | None] = Counter()
    for index in evenly_spaced(len(dataset), NUM_FORMATS).tolist():
        try:
            formats[band_format(dataset.read(index))] += 1
        except (OSError, VitrailError):  # the dataset check reports it
            continue
    return formats.most_common(1)[0][0] if formats else None


def measure_bands(dataset: Dataset, bands: int, progress: Progress | None = None) -> BandStatistics:
    """Measure the images that have so many bands, at most some thousand of them; a result is cached."""
    cache_key = dataset.cache_key()
    key = None if cache_key is None else f"{bands} {MAX_MEASURED} {hashlib.sha256(cache_key).hexdigest()}"
    cached = None if key is None else cache.load_cached("band_statistics", key)
    if cached is None:
        cached = _measure(dataset, bands, progress)
        if key is not None:
            cache.store_cached("band_statistics", key, cached)
    mean, std = (tuple(float(f"{value:.{DIGITS}g}") for value in cached[name].tolist()) for name in ("mean", "std"))
    return BandStatistics(mean, tuple(value or 1.0 for value in std), int(cached["num_images"]))


def _measure(dataset: Dataset, bands: int, progress: Progress | None) -> dict[str, ndarray]:
    """Merge the means and squared deviations of one image after the other (Chan et al. 1983), in order."""
    indices = evenly_spaced(len(dataset), MAX_MEASURED).tolist()
    count, mean, squares, num_images = 0, np.zeros(bands), np.zeros(bands), 0
    with ThreadPoolExecutor(available_cores()) as pool:
        for start in range(0, len(indices), CHUNK):
            for moments in pool.map(lambda index: _moments(dataset, index, bands), indices[start : start + CHUNK]):
                if moments is None:
                    continue
                pixels, image_mean, image_squares = moments
                total, shift = count + pixels, image_mean - mean
                mean = mean + shift * (pixels / total)
                squares = squares + image_squares + shift**2 * (count * pixels / total)
                count, num_images = total, num_images + 1
            if progress:
                progress("measuring bands", min(start + CHUNK, len(indices)), len(indices))
    if not num_images:
        raise VitrailError("the mean of the bands cannot be measured: no image can be read; `vitrail data check` says why")
    return {"mean": mean, "std": np.sqrt(squares / count), "num_images": np.array(num_images)}


def _moments(dataset: Dataset, index: int, bands: int) -> tuple[int, Float[ndarray, " c"], Float[ndarray, " c"]] | None:
    """Return number of pixels, mean and squared deviation of each band; None for an image that cannot be used."""
    try:
        image = decode_bands(dataset.read(index))
    except (OSError, VitrailError):
        return None
    if image.shape[2] != bands:
        return None
    values = image.reshape(-1, bands).astype(np.float64)
    mean = values.mean(axis=0)
    return len(values), mean, np.square(values - mean).sum(axis=0)
