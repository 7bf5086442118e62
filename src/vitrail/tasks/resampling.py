"""Resamples of a split for the percentile bootstrap (Efron 1979): images drawn with replacement, and intervals of scores.

The resamples follow from a fixed seed and the number of images alone: the same command gives the same intervals, and two models
on the same images get the same resamples, so that the differences of their scores are paired. b images, r resamples, c columns.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int, Num
from numpy import ndarray

NUM_RESAMPLES = 1000
CONFIDENCE_LEVEL = 0.95
RESAMPLE_CHUNK_NUMEL = 2**21  # random indices drawn at a time


def bootstrap_means(table: Num[ndarray, "b c"], resamples: int = NUM_RESAMPLES, seed: int = 0) -> Float[ndarray, "r c"]:
    """Return the mean of every column over each resample of the images."""
    return np.concatenate([counts @ table / len(table) for counts in iter_resamples(len(table), resamples, seed)])


def iter_resamples(num_images: int, resamples: int = NUM_RESAMPLES, seed: int = 0) -> Iterator[Int[ndarray, "r b"]]:
    """Yield how often each image occurs in each resample, some resamples at a time."""
    generator, chunk = np.random.default_rng(seed), max(RESAMPLE_CHUNK_NUMEL // num_images, 1)
    for start in range(0, resamples, chunk):
        count_now = min(chunk, resamples - start)
        picked = generator.integers(0, num_images, (count_now, num_images)) + num_images * np.arange(count_now)[:, None]
        yield np.bincount(picked.ravel(), minlength=count_now * num_images).reshape(count_now, num_images)


def percentile_interval(samples: Float[ndarray, " r"]) -> tuple[float, float]:
    low, high = np.quantile(samples, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2])
    return float(low), float(high)


def finite_interval(samples: Float[ndarray, " r"]) -> tuple[float, float]:
    """Return the 95 % interval of a score over the resamples that have one."""
    finite = samples[np.isfinite(samples)]
    return percentile_interval(finite) if len(finite) else (np.nan, np.nan)
