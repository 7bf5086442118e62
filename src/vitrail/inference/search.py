"""Image search: the images of a dataset most similar to a query, by the cosine of a model's features.

Never more than a tile of similarities is in memory. n images searched, m queries, d features, k neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from vitrail.data.sources.dataset import Dataset, Progress, label_name
from vitrail.inference.features import DEFAULT_BATCH_SIZE, embed_image, iter_features
from vitrail.inference.load import load_predictor
from vitrail.inference.predictor import Predictor
from vitrail.models.build import Model

SIMILARITY_TILE = 1024, 16384  # query and candidate rows whose similarities are computed at once: 64 MiB


@dataclass(frozen=True)
class SearchHit:
    file: str
    label: str | None
    split: str
    index: int  # in the split
    similarity: float


def search(
    model: Model | Predictor | str | Path,
    splits: dict[str, Dataset],
    query: str | Path,
    top_k: int = 10,
    batch_size: int = DEFAULT_BATCH_SIZE,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[SearchHit]:
    """Return the most similar images first. Only the best so far are kept, however many images there are."""
    predictor = load_predictor(model)
    query_features = embed_image(predictor, query)
    best: list[SearchHit] = []
    for split, source in splits.items():
        for rows in iter_features(predictor, source, batch_size, workers, progress):
            similarity, positions = top_k_cosine(query_features, rows.values, min(top_k, len(rows.indices)))
            matches = zip(similarity[0].tolist(), rows.indices[positions[0].numpy()].tolist(), strict=True)
            best = _best_hits([*best, *(_make_hit(source, split, index, cosine) for cosine, index in matches)], top_k)
    return best


def _best_hits(hits: Sequence[SearchHit], top_k: int) -> list[SearchHit]:
    return sorted(hits, key=lambda hit: -hit.similarity)[:top_k]


def _make_hit(source: Dataset, split: str, index: int, similarity: float) -> SearchHit:
    return SearchHit(source.describe(index), label_name(source, index) or None, split, index, similarity)


def top_k_cosine(
    queries: Float[ndarray, "m d"], candidates: Float[ndarray, "n d"], k: int, tile: tuple[int, int] = SIMILARITY_TILE
) -> tuple[Float[Tensor, "m k"], Int[Tensor, "m k"]]:
    """Return cosine and index of the most similar candidates, the most similar first."""
    tiles = [
        _top_k_tiled(_unit_rows(queries[at : at + tile[0]]), candidates, k, tile[1]) for at in range(0, len(queries), tile[0])
    ]
    return torch.cat([similarity for similarity, _ in tiles]), torch.cat([indices for _, indices in tiles])


def _top_k_tiled(queries: Tensor, candidates: ndarray, k: int, step: int) -> tuple[Tensor, Tensor]:
    """Merge the best so far with those of the next tile."""
    best, indices = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
    for at in range(0, len(candidates), step):
        similarity = queries @ _unit_rows(candidates[at : at + step]).T
        top = similarity.topk(min(k, similarity.shape[1]), dim=1)
        best, indices = torch.cat([best, top.values], dim=1), torch.cat([indices, top.indices + at], dim=1)
        merged = best.topk(min(k, best.shape[1]), dim=1)
        best, indices = merged.values, indices.gather(1, merged.indices)
    return best, indices


def _unit_rows(values: ndarray) -> Tensor:
    """Return the rows scaled to length one; a row of zeros stays zero, similar to nothing."""
    return torch.nn.functional.normalize(torch.from_numpy(np.ascontiguousarray(values)), dim=1)
