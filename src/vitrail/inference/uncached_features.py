"""Features of a subset of a dataset, without the feature cache; a bad image does not count against the subset's tolerance, but
against that of the whole dataset. b images at a time, d wide.
"""

from collections.abc import Iterator
from dataclasses import replace

from vitrail.data.loader import build_eval_loader
from vitrail.data.sources.dataset import Dataset
from vitrail.inference.features import FeatureBatch, compute_features, require_preprocess
from vitrail.models.build import Model


def iter_uncached_features(
    model: Model, source: Dataset, batch_size: int, workers: int | None, read_errors: dict[int, str]
) -> Iterator[FeatureBatch]:
    """Yield features batch by batch; ``read_errors`` is filled on the way."""
    loader = replace(
        build_eval_loader(source, require_preprocess(model), batch_size), max_bad_fraction=1.0, read_errors=read_errors
    )
    yield from compute_features(model, loader, workers, None)
