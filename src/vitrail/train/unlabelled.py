"""What shows that learning without labels gets somewhere: whether pictures of one class are neighbours, and what the model
thinks is behind the patches it does not see. b pictures."""

from dataclasses import replace

import numpy as np
import torch
from numpy import ndarray

from vitrail.data.loader import evaluation
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.source import Part, Source
from vitrail.evaluate.features import Features, features_of
from vitrail.evaluate.knn import knn
from vitrail.models.masked import Masked
from vitrail.tasks.masked import Masks

KNOWN, ASKED, NEIGHBOURS = 1000, 500, 20  # pictures whose labels are known, those that are asked for, and how many vote
SHOWN = 8
BATCH = 128


def neighbours(model: Masked, train: Source, asked: Source, workers: int) -> float | None:
    """Accuracy of the nearest neighbours on a few pictures; none where fewer than two classes are known."""
    known, wanted = _labelled(train, KNOWN), _labelled(asked, ASKED)
    if len(wanted) == 0 or len(set(known.labels.tolist())) < 2:
        return None
    was = model.training
    model.eval()
    try:
        first, second = (_features(model, part, workers) for part in (known, wanted))
    finally:
        model.train(was)
    (found,) = knn(first, second, len(train.names), (NEIGHBOURS,)).values()
    return found


def reconstructions(model: Masked, task: Masks, source: Source, how: Preprocess) -> dict[str, ndarray]:
    """``original``, ``masked`` and ``predicted`` of the first few pictures that are whole, as bytes: b height width c."""
    some = Part(source, np.arange(min(len(source), SHOWN)))
    batch = replace(evaluation(some, how, SHOWN), tolerated=1.0).batch(0)
    if not len(batch.labels):
        return {}
    return {
        name: (images * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy() for name, images in task.reconstruct(model, batch)
    }


def _labelled(source: Source, most: int) -> Source:
    """Some with a label, spread over all of them."""
    there = np.flatnonzero(source.labels >= 0)
    return Part(source, there[np.linspace(0, len(there) - 1, min(len(there), most)).astype(np.int64)])


def _features(model: Masked, source: Source, workers: int) -> Features:
    assert model.encoder.preprocess is not None
    rows = [
        (features_of(model.encoder, batch.images), batch.indices)
        for batch in evaluation(source, model.encoder.preprocess, BATCH).batches(workers=workers)
        if len(batch.labels)
    ]
    values, indices = (torch.cat(column).numpy() for column in zip(*rows, strict=True))
    return Features(values, source.labels[indices], indices)
