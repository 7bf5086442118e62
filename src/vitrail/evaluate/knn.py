"""Nearest neighbours by cosine: whoever is alike votes, with weight exp(similarity / 0.07) (Caron et al. 2021, DINO).

Never more than a tile of similarities is in memory. n known pictures, m asked for, d features, k neighbours.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from vitrail.evaluate.features import Features

NEIGHBOURS = (10, 20, 100, 200)
TEMPERATURE = 0.07
TILE = 1024, 16384  # pictures asked for, and known ones, whose similarities are computed at once: 64 MiB


def knn(
    train: Features, test: Features, classes: int, neighbours: Sequence[int] = NEIGHBOURS, tile: tuple[int, int] = TILE
) -> dict[int, float]:
    """Accuracy by the number of neighbours; those that there are no pictures for are left out, unless that is all of them."""
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


def nearest(
    asked: Float[ndarray, "m d"], known: Float[ndarray, "n d"], count: int, tile: tuple[int, int] = TILE
) -> tuple[Float[Tensor, "m k"], Int[Tensor, "m k"]]:
    """Cosine and number of the most alike of the known ones, the most alike first."""
    found = [_nearest(_unit(asked[at : at + tile[0]]), known, count, tile[1]) for at in range(0, len(asked), tile[0])]
    return torch.cat([alike for alike, _ in found]), torch.cat([indices for _, indices in found])


def _nearest(asked: Tensor, known: ndarray, count: int, step: int) -> tuple[Tensor, Tensor]:
    """The best of the tiles so far and of the next one, again and again."""
    best, where = torch.empty(len(asked), 0), torch.empty(len(asked), 0, dtype=torch.int64)
    for at in range(0, len(known), step):
        alike = asked @ _unit(known[at : at + step]).T
        top = alike.topk(min(count, alike.shape[1]), dim=1)
        best, where = torch.cat([best, top.values], dim=1), torch.cat([where, top.indices + at], dim=1)
        kept = best.topk(min(count, best.shape[1]), dim=1)
        best, where = kept.values, where.gather(1, kept.indices)
    return best, where


def _unit(values: ndarray) -> Tensor:
    """Of length one; a row of zeros stays that, alike to nothing."""
    return torch.nn.functional.normalize(torch.from_numpy(np.ascontiguousarray(values)), dim=1)
