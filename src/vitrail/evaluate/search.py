"""Image search: the images of a dataset most similar to a query, by the cosine of a model's features.

Never more than a tile of similarities is in memory. n known images, m queries, d features, k neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from vitrail.data.sources.source import Progress, Source, label_name
from vitrail.data.view import Plain
from vitrail.errors import VitrailError
from vitrail.evaluate.features import BATCH, features_of, preprocess_of, stream
from vitrail.evaluate.given import Given
from vitrail.models.build import Model

TILE = 1024, 16384  # query and known rows whose similarities are computed at once: 64 MiB


@dataclass(frozen=True)
class Hit:
    file: str
    label: str | None
    split: str
    index: int  # in the split
    similarity: float


def search(
    model: Model,
    parts: dict[str, Source],
    query: str | Path,
    top: int = 10,
    batch: int = BATCH,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Hit]:
    """Return the most similar images first. Only the best so far are kept, however many images there are."""
    asked = _query(model, query)
    best: list[Hit] = []
    for split, source in parts.items():
        for rows in stream(model, source, batch, workers, progress):
            alike, places = nearest(asked, rows.values, min(top, len(rows.indices)))
            found = zip(alike[0].tolist(), rows.indices[places[0].numpy()].tolist(), strict=True)
            best = _first([*best, *(_hit(source, split, index, cosine) for cosine, index in found)], top)
    return best


def _first(hits: Sequence[Hit], top: int) -> list[Hit]:
    return sorted(hits, key=lambda hit: -hit.similarity)[:top]


def _hit(source: Source, split: str, index: int, similarity: float) -> Hit:
    return Hit(source.where(index), label_name(source, index) or None, split, index, similarity)


def _query(model: Model, query: str | Path) -> np.ndarray:
    model.eval()
    seen = Plain(preprocess_of(model))(Given([str(query)]), np.zeros(1, np.int64), np.zeros(1, np.int64))
    if seen.problems:
        reason = seen.problems[0].removeprefix(f"{query}: ")
        raise VitrailError(f"the image {query} {reason}; try another one")
    found: np.ndarray = features_of(model, seen.images).numpy()
    if not np.isfinite(found).all():
        raise VitrailError(f"the model's output for {query} is not finite (NaN/Inf); its weights may be damaged")
    return found


def nearest(
    asked: Float[ndarray, "m d"], known: Float[ndarray, "n d"], count: int, tile: tuple[int, int] = TILE
) -> tuple[Float[Tensor, "m k"], Int[Tensor, "m k"]]:
    """Return cosine and index of the most similar known rows, the most similar first."""
    found = [_nearest(_unit(asked[at : at + tile[0]]), known, count, tile[1]) for at in range(0, len(asked), tile[0])]
    return torch.cat([alike for alike, _ in found]), torch.cat([indices for _, indices in found])


def _nearest(asked: Tensor, known: ndarray, count: int, step: int) -> tuple[Tensor, Tensor]:
    """Merge the best so far with those of the next tile."""
    best, where = torch.empty(len(asked), 0), torch.empty(len(asked), 0, dtype=torch.int64)
    for at in range(0, len(known), step):
        alike = asked @ _unit(known[at : at + step]).T
        top = alike.topk(min(count, alike.shape[1]), dim=1)
        best, where = torch.cat([best, top.values], dim=1), torch.cat([where, top.indices + at], dim=1)
        kept = best.topk(min(count, best.shape[1]), dim=1)
        best, where = kept.values, where.gather(1, kept.indices)
    return best, where


def _unit(values: ndarray) -> Tensor:
    """Return the rows scaled to length one; a row of zeros stays zero, similar to nothing."""
    return torch.nn.functional.normalize(torch.from_numpy(np.ascontiguousarray(values)), dim=1)
