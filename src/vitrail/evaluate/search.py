"""The pictures of a data set that are most like another one, by the cosine of a model's features."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.sources.source import Progress, Source, label_name
from vitrail.data.view import Plain
from vitrail.errors import VitrailError
from vitrail.evaluate.features import BATCH, features_of, preprocess_of, stream
from vitrail.evaluate.given import Given
from vitrail.evaluate.knn import nearest
from vitrail.models.build import Model


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
    """The most alike first. Only the best so far are kept, however many pictures there are."""
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
        raise VitrailError(f"the picture {query} {reason}; name another one")
    found: np.ndarray = features_of(model, seen.images).numpy()
    if not np.isfinite(found).all():
        raise VitrailError(f"the model answers {query} with something that is no number; are its weights whole?")
    return found
