"""``vitrail.embed``: the features of images before the head, preprocessed as in the model's own evaluation.

Features are cached by the weights, the config, the preprocessing and the images they came from; a damaged cache file is
recomputed. n images of which m are readable, b of them at a time, d wide.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from numpy import ndarray
from torch import Tensor

from vitrail.data import cache
from vitrail.data.loader import Loader, build_eval_loader
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import Dataset, Progress
from vitrail.errors import VitrailError
from vitrail.inference.inputs import ImageLike, ImageList, as_image_list
from vitrail.models.build import Model
from vitrail.weights.load import load

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


@dataclass(frozen=True)
class FeatureBatch:
    """Features of a batch of images."""

    values: Float32[ndarray, "b d"]
    indices: Int64[ndarray, " b"]


def embed(
    model: Model | str | Path,
    images: Dataset | Sequence[ImageLike],
    batch_size: int = DEFAULT_BATCH_SIZE,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Features:
    """Compute the features of a dataset split, or of files, bytes, PIL images or arrays, in their order.

    ``model`` is a model, or what ``vitrail.load`` reads. A bad image is left out and listed in ``read_errors``.
    """
    model = load(model) if isinstance(model, str | Path) else model
    source = images if isinstance(images, Dataset) else ImageList(as_image_list(images))
    read_errors: dict[int, str] = {}
    batches = list(iter_features(model, source, batch_size, workers, progress, read_errors))
    if not batches:
        raise VitrailError(f"no image can be used, the first one: {next(iter(read_errors.values()))}; try other images")
    indices = np.concatenate([rows.indices for rows in batches])
    return Features(np.concatenate([rows.values for rows in batches]), source.labels[indices], indices, read_errors)


def iter_features(
    model: Model,
    source: Dataset,
    batch_size: int = DEFAULT_BATCH_SIZE,
    workers: int | None = None,
    progress: Progress | None = None,
    read_errors: dict[int, str] | None = None,
) -> Iterator[FeatureBatch]:
    """Yield features batch by batch, or all cached ones at once; ``read_errors`` is filled on the way."""
    read_errors = {} if read_errors is None else read_errors
    loader = build_eval_loader(source, require_preprocess(model), batch_size)
    images_key = source.cache_key()
    key = None if images_key is None else f"{CACHE_FORMAT} {_model_key(model)} {hashlib.sha256(images_key).hexdigest()}"
    cached = None if key is None else _load_cached(key, len(source))
    if cached is not None:
        read_errors.update(cached.read_errors)
        yield FeatureBatch(cached.values, cached.indices)
        return
    batches: list[FeatureBatch] = []
    for rows in compute_features(model, loader, workers, progress):
        yield rows
        if key is not None and len(source) * rows.values.shape[1] * 4 <= MAX_CACHED_BYTES:
            batches.append(rows)
    read_errors.update(loader.read_errors)
    if key is not None and batches:
        _store_cached(key, batches, loader.read_errors)


def require_preprocess(model: Model) -> Preprocess:
    preprocess = model.preprocess
    if preprocess is None:
        raise VitrailError(
            "the model has no preprocessing config; set model.preprocess, such as "
            "vitrail.data.preprocess.vit_preprocess(model.config.image)"
        )
    if len(preprocess.mean) not in (1, 3):
        raise VitrailError(f"the model takes images of {len(preprocess.mean)} channels; those read from files have 1 or 3")
    return preprocess


def compute_features(model: Model, loader: Loader, workers: int | None, progress: Progress | None) -> Iterator[FeatureBatch]:
    was_training = model.training
    model.eval()
    total, done = len(loader.dataset), 0
    try:
        for step, batch in enumerate(loader.batches(workers=workers)):
            if batch.images.shape[0]:
                values = forward_features(model, batch.images).numpy()
                _check_finite(values, loader.dataset, batch.indices)
                yield FeatureBatch(values, batch.indices.numpy())
            done += len(loader.sampler.batch_indices(step)[1])
            if progress:
                progress("features", done, total)
    finally:
        model.train(was_training)


@torch.inference_mode()
def forward_features(model: Model, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d"]:
    weight = next(model.parameters())
    return model.features(images.to(weight.device, weight.dtype)).float().cpu()


def _check_finite(values: ndarray, source: Dataset, indices: Tensor) -> None:
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        where = source.describe(int(indices[int(np.argmin(finite))]))
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


def _store_cached(key: str, batches: Sequence[FeatureBatch], read_errors: dict[int, str]) -> None:
    bad = sorted(read_errors)
    reasons = "\0".join(read_errors[index].replace("\0", "?") for index in bad).encode("utf-8", "surrogatepass")
    arrays = {
        "values": np.concatenate([rows.values for rows in batches]),
        "indices": np.concatenate([rows.indices for rows in batches]),
        "bad": np.array(bad, np.int64),
        "reasons": np.frombuffer(reasons, np.uint8),
    }
    cache.store_cached("features", key, arrays)


def _model_key(model: Model) -> str:
    """Return a key of all that features depend on, which excludes the head."""
    digest = hashlib.sha256(repr((replace(model.config, classes=0), model.preprocess)).encode())
    digest.update(model.extra_repr().encode())  # token merging, patch dropping: empty for a plain model
    for name, tensor in sorted(model.state_dict().items()):
        if not name.startswith("head."):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
