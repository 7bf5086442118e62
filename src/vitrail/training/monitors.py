"""Monitors of training, on a few images: of any ViT attention distance and entropy by layer; of self-supervised training k-NN
accuracy of the features, and reconstructions of masked patches. b images."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy import ndarray
from torch import Tensor, nn

from vitrail.data.loader import build_eval_loader, build_pixel_loader
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import Dataset, Subset
from vitrail.evaluation.knn import knn_probe
from vitrail.explain.head_statistics import head_statistics
from vitrail.inference.features import Features
from vitrail.inference.predictor import TorchPredictor
from vitrail.inference.run import iter_outputs, join_outputs
from vitrail.models.build import Model
from vitrail.models.vit import ViT

TRAIN_IMAGES, QUERY_IMAGES, NUM_NEIGHBOURS = 1000, 500, 20  # training images, query images, and k
NUM_RECONSTRUCTIONS = 8
BATCH_SIZE = 128
ATTENTION_IMAGES = 32
MAX_ATTENTION_BYTES = 2**28  # bytes of one layer's attention weights


def knn_accuracy(encoder: Model, train: Dataset, queries: Dataset, workers: int) -> float | None:
    """k-NN accuracy on a few images; None if fewer than two classes are labelled."""
    subsets = _select_images(train, queries)
    if subsets is None:
        return None
    train_features, query_features = (_features(encoder, subset, workers) for subset in subsets)
    if train_features is None or query_features is None:
        return None
    (accuracy,) = knn_probe(train_features, query_features, len(train.class_names), (NUM_NEIGHBOURS,)).values()
    return accuracy


def knn_seconds(encoder: Model, train: Dataset, queries: Dataset, workers: int) -> float:
    """Estimate the seconds that ``knn_accuracy`` takes, from one batch."""
    subsets = _select_images(train, queries)
    if subsets is None:
        return 0.0
    sample = Subset(subsets[0], np.arange(min(len(subsets[0]), BATCH_SIZE)))
    start = time.perf_counter()
    _features(encoder, sample, workers)
    return (time.perf_counter() - start) / len(sample) * sum(map(len, subsets))


def compute_reconstructions(model: nn.Module, task: Any, dataset: Dataset, preprocess: Preprocess) -> dict[str, ndarray]:
    """``original``, ``masked`` and ``predicted`` of a few images, those that can be read, as bytes: b height width c.

    They are spread over the dataset, since folders are sorted by class.
    """
    subset = Subset(dataset, _evenly_spaced(len(dataset), NUM_RECONSTRUCTIONS))
    batch = replace(build_eval_loader(subset, preprocess, NUM_RECONSTRUCTIONS), max_bad_fraction=1.0).batch(0)
    if not len(batch.images):
        return {}
    return {
        name: (images * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy() for name, images in task.reconstruct(model, batch)
    }


def _select_images(train: Dataset, queries: Dataset) -> tuple[Dataset, Dataset] | None:
    """Select labelled training and query images, spread over the dataset; None if a score would mean nothing."""
    labelled = np.flatnonzero(train.labels >= 0)
    if queries is train:  # no validation: an image must not be its own neighbour
        query_indices, labelled = labelled[::3], np.delete(labelled, np.s_[::3])
    else:
        query_indices = np.flatnonzero(queries.labels >= 0)
    train_indices = labelled[_evenly_spaced(len(labelled), TRAIN_IMAGES)]
    if not len(query_indices) or len(set(train.labels[train_indices].tolist())) < 2:
        return None
    return Subset(train, train_indices), Subset(queries, query_indices[_evenly_spaced(len(query_indices), QUERY_IMAGES)])


def _evenly_spaced(count: int, max_count: int) -> ndarray:
    return np.linspace(0, count - 1, min(count, max_count)).astype(np.int64)


def _features(encoder: Model, dataset: Dataset, workers: int) -> Features | None:
    """Compute features; None if no image can be read, which the training loop reports."""
    predictor = TorchPredictor(encoder)
    loader = build_pixel_loader(dataset, predictor.preprocess, BATCH_SIZE, max_bad_fraction=1.0)
    values, indices = join_outputs(list(iter_outputs(predictor.features, loader, workers)))
    return Features(values, dataset.labels[indices], indices) if len(indices) else None


def compute_attention_stats(model: nn.Module, dataset: Dataset, preprocess: Preprocess) -> dict[str, list[float]] | None:
    """Mean over heads of the attention distance in pixels and of the entropy in nats; None for a model without attention."""
    if not isinstance(model, ViT):
        return None
    bytes_per_image = 4 * model.config.heads * model.config.tokens**2
    count = min(ATTENTION_IMAGES, len(dataset), max(MAX_ATTENTION_BYTES // bytes_per_image, 1))
    subset = Subset(dataset, np.arange(count))
    device = next(model.parameters()).device

    def batches() -> Iterator[Tensor]:
        for batch in build_eval_loader(subset, preprocess, count).batches(workers=0):
            if batch.images.shape[0]:
                yield batch.images.to(device)

    stats = head_statistics(model, batches())
    return {"distance": stats.distance.mean(dim=1).tolist(), "entropy": stats.entropy.mean(dim=1).tolist()}
