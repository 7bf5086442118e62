"""k-nearest-neighbour classification by cosine, neighbours weighted by exp(similarity / 0.07) (Caron et al. 2021, DINO).

Never more than a tile of similarities is in memory. n training images, m test images, d features, k neighbours.
"""

from collections.abc import Sequence

import torch

from vitrail.inference.features import Features
from vitrail.inference.search import SIMILARITY_TILE, top_k_cosine

NUM_NEIGHBOURS = (10, 20, 100, 200)
TEMPERATURE = 0.07


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
