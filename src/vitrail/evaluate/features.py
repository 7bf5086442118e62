"""``vitrail.embed``: the features of images before the head, preprocessed as in the model's own evaluation.

Features are cached by the weights, the config, the preprocessing and the images they came from; a damaged cache file is
recomputed. n images of which m are readable, b of them at a time, d wide.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from numpy import ndarray
from torch import Tensor

from vitrail.data import cache
from vitrail.data.loader import Loader, evaluation
from vitrail.data.pack import Ragged
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.identity import identity
from vitrail.data.sources.source import Arrays, Files, Part, Progress, Source
from vitrail.errors import VitrailError
from vitrail.evaluate.given import Given, Picture, listed
from vitrail.models.build import Model
from vitrail.weights.load import load

BATCH = 64
FORMAT = 1  # of the cache files
MOST = 2**30  # larger sets of features are not cached


@dataclass(frozen=True)
class Features:
    """Features, one row per readable image; ``read_errors`` has the reason for each of the others, by index."""

    values: Float32[ndarray, "m d"]
    labels: Int64[ndarray, " m"]
    indices: Int64[ndarray, " m"]  # in the source
    problems: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """Features of a batch of images."""

    values: Float32[ndarray, "b d"]
    indices: Int64[ndarray, " b"]


def embed(
    model: Model | str | Path,
    pictures: Source | Sequence[Picture],
    batch: int = BATCH,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Features:
    """Compute the features of a dataset split, or of files, bytes, PIL images or arrays, in their order.

    ``model`` is a model, or what ``vitrail.load`` reads. A bad image is left out and listed in ``read_errors``.
    """
    model = load(model) if isinstance(model, str | Path) else model
    source = pictures if isinstance(pictures, Source) else Given(listed(pictures))
    problems: dict[int, str] = {}
    found = list(stream(model, source, batch, workers, progress, problems))
    if not found:
        raise VitrailError(f"no image can be used, the first one: {next(iter(problems.values()))}; try other images")
    indices = np.concatenate([rows.indices for rows in found])
    return Features(np.concatenate([rows.values for rows in found]), source.labels[indices], indices, problems)


def stream(
    model: Model,
    source: Source,
    batch: int = BATCH,
    workers: int | None = None,
    progress: Progress | None = None,
    problems: dict[int, str] | None = None,
) -> Iterator[Rows]:
    """Yield features batch by batch, or all cached ones at once; ``read_errors`` is filled on the way."""
    problems = {} if problems is None else problems
    loader = evaluation(source, preprocess_of(model), batch)
    key = None if isinstance(source, Given) else f"{FORMAT} {_of_model(model)} {_of_pictures(source).hex()}"
    known = None if key is None else _recall(key, len(source))
    if known is not None:
        problems.update(known.problems)
        yield Rows(known.values, known.indices)
        return
    kept: list[Rows] = []
    for rows in computed(model, loader, workers, progress):
        yield rows
        if key is not None and len(source) * rows.values.shape[1] * 4 <= MOST:
            kept.append(rows)
    problems.update(loader.problems)
    if key is not None and kept:
        _remember(key, kept, loader.problems)


def preprocess_of(model: Model) -> Preprocess:
    how = model.preprocess
    if how is None:
        raise VitrailError(
            "the model has no preprocessing config; set model.preprocess, such as "
            "vitrail.data.preprocess.vit(model.config.image)"
        )
    if len(how.mean) not in (1, 3):
        raise VitrailError(f"the model takes images of {len(how.mean)} channels; those read from files have 1 or 3")
    return how


def computed(model: Model, loader: Loader, workers: int | None, progress: Progress | None) -> Iterator[Rows]:
    was = model.training
    model.eval()
    total, done = len(loader.source), 0
    try:
        for step, batch in enumerate(loader.batches(workers=workers)):
            if batch.images.shape[0]:
                values = features_of(model, batch.images).numpy()
                _check_numbers(values, loader.source, batch.indices)
                yield Rows(values, batch.indices.numpy())
            done += len(loader.order.at(step)[1])
            if progress:
                progress("features", done, total)
    finally:
        model.train(was)


@torch.inference_mode()
def features_of(model: Model, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d"]:
    weight = next(model.parameters())
    return model.features(images.to(weight.device, weight.dtype)).float().cpu()


def _check_numbers(values: ndarray, source: Source, indices: Tensor) -> None:
    sound = np.isfinite(values).all(axis=1)
    if not sound.all():
        where = source.where(int(indices[int(np.argmin(sound))]))
        raise VitrailError(f"the model's output for {where} is not finite (NaN/Inf); its weights may be damaged")


def _recall(key: str, pictures: int) -> Features | None:
    known = cache.recall("features", key)
    try:
        if known is None or len(known["indices"]) + len(known["bad"]) != pictures:
            return None
        reasons = known["reasons"].tobytes().decode("utf-8", "surrogatepass").split("\0")
        problems = dict(zip(known["bad"].tolist(), reasons, strict=bool(len(known["bad"]))))
        values = known["values"]
        if values.dtype != np.float32 or values.ndim != 2 or len(values) != len(known["indices"]):
            return None
        return Features(values, np.zeros(len(values), np.int64), known["indices"], problems)
    except (KeyError, ValueError):
        return None


def _remember(key: str, kept: Sequence[Rows], problems: dict[int, str]) -> None:
    bad = sorted(problems)
    reasons = "\0".join(problems[index].replace("\0", "?") for index in bad).encode("utf-8", "surrogatepass")
    arrays = {
        "values": np.concatenate([rows.values for rows in kept]),
        "indices": np.concatenate([rows.indices for rows in kept]),
        "bad": np.array(bad, np.int64),
        "reasons": np.frombuffer(reasons, np.uint8),
    }
    cache.remember("features", key, arrays)


def _of_model(model: Model) -> str:
    """Return a key of all that features depend on, which excludes the head."""
    digest = hashlib.sha256(repr((replace(model.config, classes=0), model.preprocess)).encode())
    digest.update(model.extra_repr().encode())  # token merging, patch dropping: empty for a plain model
    for name, tensor in sorted(model.state_dict().items()):
        if not name.startswith("head."):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _of_pictures(source: Source) -> bytes:
    """Return a key of the images: files by name, length and time, arrays by their bytes, others by their fingerprint."""
    digest = hashlib.sha256(type(source).__name__.encode())
    match source:
        case Part():
            digest.update(_of_pictures(source.whole) + source.indices.astype(np.int64).tobytes())
        case Files():
            for path in source.paths:
                digest.update(_stamp(source.root.absolute() / path))
        case Arrays():
            digest.update(_of_array(source.images))
        case Ragged():
            digest.update(_of_array(source.data) + source.starts.tobytes())
        case _:
            digest.update(identity(source))
    return digest.digest()


def _of_array(values: ndarray) -> bytes:
    """Return a key of an array: a memory-mapped file, which may be larger than memory, by its stamp and offset."""
    whole: object = values
    while isinstance(whole, ndarray) and not isinstance(whole, np.memmap):
        whole = whole.base
    if isinstance(whole, np.memmap) and whole.filename is not None:
        place = values.ctypes.data - whole.ctypes.data
        return _stamp(Path(whole.filename).absolute()) + repr((values.shape, whole.offset, place)).encode()
    return hashlib.sha256(repr(values.shape).encode() + np.ascontiguousarray(values).tobytes()).digest()


def _stamp(path: Path) -> bytes:
    try:
        known = os.stat(path)
        return os.fsencode(path) + f"\0{known.st_size} {known.st_mtime_ns} {known.st_ctime_ns}\0".encode()
    except OSError:
        return os.fsencode(path) + b"\0gone\0"
