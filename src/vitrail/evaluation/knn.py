"""k-nearest-neighbour classification by cosine, neighbours weighted by exp(similarity / 0.07) (Caron et al. 2021, DINO).

With several labels per image, the neighbours vote for each class. Never more than a tile of similarities is in memory.
n training images, m test images, d features, k neighbours, c classes.
"""

from collections.abc import Sequence

import torch
from einops import einsum
from jaxtyping import Float, Float32
from numpy import ndarray
from torch import Tensor

from vitrail.inference.features import Features
from vitrail.inference.search import SIMILARITY_TILE, top_k_cosine
from vitrail.tasks.label_metrics import mean_average_precision

NUM_NEIGHBOURS = (10, 20, 100, 200)
TEMPERATURE = 0.07


def knn_label_probe(
    train: Float32[ndarray, "n d"],
    test: Float32[ndarray, "m d"],
    train_targets: Float[Tensor, "n c"],
    test_targets: Float[Tensor, "m c"],
    neighbours: Sequence[int] = NUM_NEIGHBOURS,
    tile: tuple[int, int] = SIMILARITY_TILE,
) -> dict[int, float]:
    """Return the mean average precision for each k, of several labels per image."""
    counts = [count for count in neighbours if count <= len(train)] or [len(train)]
    scores: dict[int, list[Tensor]] = {count: [] for count in counts}
    for start in range(0, len(test), tile[0]):
        similarity, indices = top_k_cosine(test[start : start + tile[0]], train, max(counts), tile)
        weights = (similarity.double() / TEMPERATURE).exp()
        for count in counts:
            voters = train_targets[indices[:, :count]].double()
            scores[count].append(einsum(weights[:, :count], voters, "m k, m k c -> m c") / weights[:, :count].sum(1)[:, None])
    return {count: mean_average_precision(torch.cat(rows), test_targets.bool()) for count, rows in scores.items()}


def knn_probe(
    train: Features,
    test: Features,
    classes: int,
    neighbours: Sequence[int] = NUM_NEIGHBOURS,
    tile: tuple[int, int] = SIMILARITY_TILE,
) -> dict[int, float]:
    """Return the accuracy for each k; those with more neighbours than images are skipped, unless that is all of them."""
    num_train = len(train.labels)
    counts = [count for count in neighbours if count <= num_train] or [num_train]
    correct = dict.fromkeys(counts, 0)
    labels = torch.from_numpy(train.labels)
    for start in range(0, len(test.labels), tile[0]):
        part = slice(start, start + tile[0])
        similarity, indices = top_k_cosine(test.values[part], train.values, max(counts), tile)
        weights, voters = (similarity.double() / TEMPERATURE).exp(), labels[indices]
        truth = torch.from_numpy(test.labels[part])
        for count in counts:
            scores = torch.zeros(len(truth), classes, dtype=torch.float64)
            scores.scatter_add_(1, voters[:, :count], weights[:, :count])
            correct[count] += int((scores.argmax(dim=1) == truth).sum())
    return {count: hits / len(test.labels) for count, hits in correct.items()}
