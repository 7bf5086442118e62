"""Features of a subset of a dataset, without the feature cache; a bad image does not count against the subset's tolerance, but
against that of the whole dataset. b images at a time, d wide.
"""

from collections.abc import Iterator
from dataclasses import replace

from vitrail.data.loader import evaluation
from vitrail.data.sources.source import Source
from vitrail.evaluate.features import Rows, computed, preprocess_of
from vitrail.models.build import Model


def afresh(model: Model, source: Source, batch: int, workers: int | None, problems: dict[int, str]) -> Iterator[Rows]:
    """Yield features batch by batch; ``read_errors`` is filled on the way."""
    loader = replace(evaluation(source, preprocess_of(model), batch), tolerated=1.0, problems=problems)
    yield from computed(model, loader, workers, None)
