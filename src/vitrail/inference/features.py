"""``vitrail.embed``: the features of images before the head, preprocessed as in the model's own evaluation.

Features are cached by the weights, the config, the preprocessing and the images they came from; a damaged cache file is
recomputed. n images of which m are readable, b of them at a time, d wide.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64
from numpy import ndarray

from vitrail.data import cache
from vitrail.data.loader import Loader, build_pixel_loader
from vitrail.data.sources.dataset import Dataset, Progress
from vitrail.errors import VitrailError
from vitrail.inference.inputs import as_images
from vitrail.inference.load import load_predictor
from vitrail.inference.predictor import Predictor
from vitrail.inference.preprocess_images import load_pixels
from vitrail.inference.run import OutputBatch, iter_outputs, join_outputs

DEFAULT_BATCH_SIZE = 64
CACHE_FORMAT = 1  # of the cache files
MAX_CACHED_BYTES = 2**30  # larger sets of features are not cached


@dataclass(frozen=True)
class Features:
    """Features, one row per readable image; ``read_errors`` has the reason for each of the others, by index."""

    values: Float32[ndarray, "m d"]
    labels: Int64[ndarray, " m"]
    indices: Int64[ndarray, " m"]  # in the source
    read_errors: dict[int, str] = field(default_factory=dict)


def embed(
    model: Any,
    images: Any,
    batch_size: int = DEFAULT_BATCH_SIZE,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Features:
    """Compute the features of a dataset, of files, bytes, PIL images or arrays, in their order; or of one image.

    ``model`` is a model, or what ``vitrail.load_predictor`` reads. A bad image is left out and listed in ``read_errors``.
    """
    source, read_errors = as_images(images), dict[int, str]()
    values, indices = join_outputs(list(iter_features(model, source, batch_size, workers, progress, read_errors)))
    if not len(indices):
        raise VitrailError(f"no image can be used, the first one: {next(iter(read_errors.values()))}; try other images")
    return Features(values, source.labels[indices], indices, read_errors)


def embed_image(predictor: Predictor, image: str | Path) -> Float32[ndarray, "1 d"]:
    """Return the features of one image; a bad image is an error."""
    pixels = load_pixels(image, predictor.preprocess)
    features = predictor.features(pixels[None])
    if not np.isfinite(features).all():
        raise VitrailError(f"the model's output for {image} is not finite (NaN/Inf); its weights may be damaged")
    return features


def iter_features(
    model: Any,
    source: Dataset,
    batch_size: int = DEFAULT_BATCH_SIZE,
    workers: int | None = None,
    progress: Progress | None = None,
    read_errors: dict[int, str] | None = None,
) -> Iterator[OutputBatch]:
    """Yield features batch by batch, or all cached ones at once; ``read_errors`` is filled on the way."""
    predictor, read_errors = load_predictor(model), {} if read_errors is None else read_errors
    loader = build_pixel_loader(source, predictor.preprocess, batch_size)
    images_key = source.cache_key()
    key = None if images_key is None else f"{CACHE_FORMAT} {predictor.features_hash()} {hashlib.sha256(images_key).hexdigest()}"
    cached = None if key is None else _load_cached(key, len(source))
    if cached is not None:
        read_errors.update(cached.read_errors)
        yield OutputBatch(cached.values, cached.indices, np.arange(len(source)))
        return
    batches: list[OutputBatch] = []
    for rows in compute_features(predictor, loader, workers, progress):
        yield rows
        if key is not None and len(source) * rows.values.shape[1] * 4 <= MAX_CACHED_BYTES:
            batches.append(rows)
    read_errors.update(loader.read_errors)
    if key is not None and batches:
        _store_cached(key, batches, loader.read_errors)


def compute_features(
    predictor: Predictor, loader: Loader, workers: int | None = None, progress: Progress | None = None
) -> Iterator[OutputBatch]:
    """Yield the features of a pixel loader's images, without the cache."""
    total, done = len(loader.dataset), 0
    for rows in iter_outputs(predictor.features, loader, workers):
        if len(rows.indices):
            _check_finite(rows, loader.dataset)
            yield rows
        done += len(rows.batch_indices)
        if progress:
            progress("features", done, total)


def _check_finite(rows: OutputBatch, source: Dataset) -> None:
    finite = np.isfinite(rows.values).all(axis=1)
    if not finite.all():
        where = source.describe(int(rows.indices[int(np.argmin(finite))]))
        raise VitrailError(f"the model's output for {where} is not finite (NaN/Inf); its weights may be damaged")


def _load_cached(key: str, num_images: int) -> Features | None:
    cached = cache.load_cached("features", key)
    try:
        if cached is None or len(cached["indices"]) + len(cached["bad"]) != num_images:
            return None
        reasons = cached["reasons"].tobytes().decode("utf-8", "surrogatepass").split("\0")
        read_errors = dict(zip(cached["bad"].tolist(), reasons, strict=bool(len(cached["bad"]))))
        values = cached["values"]
        if values.dtype != np.float32 or values.ndim != 2 or len(values) != len(cached["indices"]):
            return None
        return Features(values, np.zeros(len(values), np.int64), cached["indices"], read_errors)
    except (KeyError, ValueError):
        return None


def _store_cached(key: str, batches: list[OutputBatch], read_errors: dict[int, str]) -> None:
    bad = sorted(read_errors)
    reasons = "\0".join(read_errors[index].replace("\0", "?") for index in bad).encode("utf-8", "surrogatepass")
    values, indices = join_outputs(batches)
    arrays = {
        "values": values,
        "indices": indices,
        "bad": np.array(bad, np.int64),
        "reasons": np.frombuffer(reasons, np.uint8),
    }
    cache.store_cached("features", key, arrays)
