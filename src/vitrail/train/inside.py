"""Attention statistics during training: distance and entropy by layer, on a few validation images."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor, nn

from vitrail.data.loader import evaluation
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.source import Part, Source
from vitrail.explain.distance import heads
from vitrail.models.vit import ViT

PICTURES = 32
MOST = 2**28  # bytes of one layer's attention weights


def inside(model: nn.Module, source: Source, how: Preprocess) -> dict[str, list[float]] | None:
    """Mean over heads of the attention distance in pixels and of the entropy in nats; None for a model without attention."""
    if not isinstance(model, ViT):
        return None
    weights = 4 * model.config.heads * model.config.tokens**2
    count = min(PICTURES, len(source), max(MOST // weights, 1))
    some = Part(source, np.arange(count))
    device = next(model.parameters()).device

    def batches() -> Iterator[Tensor]:
        for batch in evaluation(some, how, count).batches(workers=0):
            if batch.images.shape[0]:
                yield batch.images.to(device)

    found = heads(model, batches())
    return {"distance": found.distance.mean(dim=1).tolist(), "entropy": found.entropy.mean(dim=1).tolist()}
