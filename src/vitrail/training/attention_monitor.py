"""Attention statistics during training: distance and entropy by layer, on a few validation images."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor, nn

from vitrail.data.loader import build_eval_loader
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import Dataset, Subset
from vitrail.explain.head_statistics import head_statistics
from vitrail.models.vit import ViT

NUM_IMAGES = 32
MAX_ATTENTION_BYTES = 2**28  # bytes of one layer's attention weights


def compute_attention_stats(model: nn.Module, dataset: Dataset, preprocess: Preprocess) -> dict[str, list[float]] | None:
    """Mean over heads of the attention distance in pixels and of the entropy in nats; None for a model without attention."""
    if not isinstance(model, ViT):
        return None
    bytes_per_image = 4 * model.config.heads * model.config.tokens**2
    count = min(NUM_IMAGES, len(dataset), max(MAX_ATTENTION_BYTES // bytes_per_image, 1))
    subset = Subset(dataset, np.arange(count))
    device = next(model.parameters()).device

    def batches() -> Iterator[Tensor]:
        for batch in build_eval_loader(subset, preprocess, count).batches(workers=0):
            if batch.images.shape[0]:
                yield batch.images.to(device)

    stats = head_statistics(model, batches())
    return {"distance": stats.distance.mean(dim=1).tolist(), "entropy": stats.entropy.mean(dim=1).tolist()}
