"""Features of some pictures of many, which are kept by whoever asks and so not remembered; nor does a bad one among them count
against these few, but against all. b of them at a time, d wide."""

from collections.abc import Iterator
from dataclasses import replace

from vitrail.data.loader import evaluation
from vitrail.data.sources.source import Source
from vitrail.evaluate.features import Rows, computed, preprocess_of
from vitrail.models.build import Model


def afresh(model: Model, source: Source, batch: int, workers: int | None, problems: dict[int, str]) -> Iterator[Rows]:
    """A batch after the other; ``problems`` is filled on the way."""
    loader = replace(evaluation(source, preprocess_of(model), batch), tolerated=1.0, problems=problems)
    yield from computed(model, loader, workers, None)
