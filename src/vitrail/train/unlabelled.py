"""Monitors of self-supervised training: k-NN accuracy of the features, and reconstructions of masked patches. b images."""

import time
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

KNOWN, ASKED, NEIGHBOURS = 1000, 500, 20  # training images, query images, and k
SHOWN = 8
BATCH = 128


def neighbours(model: Masked, train: Source, asked: Source, workers: int) -> float | None:
    """k-NN accuracy on a few images; None if fewer than two classes are labelled."""
    chosen = _chosen(train, asked)
    if chosen is None:
        return None
    known, wanted = (_features(model, part, workers) for part in chosen)
    if known is None or wanted is None:
        return None
    (found,) = knn(known, wanted, len(train.names), (NEIGHBOURS,)).values()
    return found


def seconds(model: Masked, train: Source, asked: Source, workers: int) -> float:
    """Estimate the seconds that ``knn_accuracy`` takes, from one batch."""
    chosen = _chosen(train, asked)
    if chosen is None:
        return 0.0
    some = Part(chosen[0], np.arange(min(len(chosen[0]), BATCH)))
    began = time.perf_counter()
    _features(model, some, workers)
    return (time.perf_counter() - began) / len(some) * sum(map(len, chosen))


def reconstructions(model: Masked, task: Masks, source: Source, how: Preprocess) -> dict[str, ndarray]:
    """``original``, ``masked`` and ``predicted`` of a few images, those that can be read, as bytes: b height width c.

    They are spread over the dataset, since folders are sorted by class.
    """
    some = Part(source, _spread(len(source), SHOWN))
    batch = replace(evaluation(some, how, SHOWN), tolerated=1.0).batch(0)
    if not len(batch.labels):
        return {}
    return {
        name: (images * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy() for name, images in task.reconstruct(model, batch)
    }


def _chosen(train: Source, asked: Source) -> tuple[Source, Source] | None:
    """Select labelled training and query images, spread over the dataset; None if a score would mean nothing."""
    there = np.flatnonzero(train.labels >= 0)
    if asked is train:  # no validation: an image must not be its own neighbour
        wanted, there = there[::3], np.delete(there, np.s_[::3])
    else:
        wanted = np.flatnonzero(asked.labels >= 0)
    known = there[_spread(len(there), KNOWN)]
    if not len(wanted) or len(set(train.labels[known].tolist())) < 2:
        return None
    return Part(train, known), Part(asked, wanted[_spread(len(wanted), ASKED)])


def _spread(count: int, most: int) -> ndarray:
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def _features(model: Masked, source: Source, workers: int) -> Features | None:
    """Compute features; None if no image can be read, which the training loop reports."""
    assert model.encoder.preprocess is not None
    loader = replace(evaluation(source, model.encoder.preprocess, BATCH), tolerated=1.0)
    was = model.training
    model.eval()
    try:
        rows = [
            (features_of(model.encoder, batch.images), batch.indices)
            for batch in loader.batches(workers=workers)
            if len(batch.labels)
        ]
    finally:
        model.train(was)
    if not rows:
        return None
    values, indices = (torch.cat(column).numpy() for column in zip(*rows, strict=True))
    return Features(values, source.labels[indices], indices)
