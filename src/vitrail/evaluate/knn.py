"""k-nearest-neighbour classification by cosine, neighbours weighted by exp(similarity / 0.07) (Caron et al. 2021, DINO).

Never more than a tile of similarities is in memory. n training images, m test images, d features, k neighbours.
"""

from collections.abc import Sequence

import torch

from vitrail.evaluate.features import Features
from vitrail.evaluate.search import TILE, nearest

NEIGHBOURS = (10, 20, 100, 200)
TEMPERATURE = 0.07


def knn(
    train: Features, test: Features, classes: int, neighbours: Sequence[int] = NEIGHBOURS, tile: tuple[int, int] = TILE
) -> dict[int, float]:
    """Return the accuracy for each k; those with more neighbours than images are skipped, unless that is all of them."""
    known = len(train.labels)
    asked = [count for count in neighbours if count <= known] or [known]
    votes = dict.fromkeys(asked, 0)
    labels = torch.from_numpy(train.labels)
    for start in range(0, len(test.labels), tile[0]):
        part = slice(start, start + tile[0])
        alike, indices = nearest(test.values[part], train.values, max(asked), tile)
        weights, voters = (alike.double() / TEMPERATURE).exp(), labels[indices]
        truth = torch.from_numpy(test.labels[part])
        for count in asked:
            scores = torch.zeros(len(truth), classes, dtype=torch.float64)
            scores.scatter_add_(1, voters[:, :count], weights[:, :count])
            votes[count] += int((scores.argmax(dim=1) == truth).sum())
    return {count: right / len(test.labels) for count, right in votes.items()}
