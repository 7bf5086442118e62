"""The heads of segmentation, a row each: the model, whose ``forward`` returns logits at the size of the images, and its loss.

b images, k classes, y by x any size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.data.loader import Batch
from vitrail.data.sources.dataset import IGNORED
from vitrail.models.vit import ViT
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.pixel_loss import pixel_loss
from vitrail.tasks.query_loss import draw_unmasked, query_loss, semantic_segments
from vitrail.tasks.segmentation_eomt import EoMT, QueryLogits, semantic_scores
from vitrail.tasks.segmentation_model import LinearSegmenter

# From the model and a batch on its device: the loss, and logits whose largest class is compared with the masks
HeadLoss = Callable[[nn.Module, Batch, Segmentation, Float[Tensor, " k"] | None, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Head:
    """The model of a head, and its loss."""

    build: Callable[[ViT, Segmentation], nn.Module]
    loss: HeadLoss


def _pixel_loss(
    model: nn.Module, batch: Batch, config: Segmentation, weights: Float[Tensor, " k"] | None, seed: int
) -> tuple[Tensor, Float[Tensor, "b k height width"]]:
    logits = model(batch.images).float()
    return pixel_loss(logits, batch.targets, config, weights), logits.detach()


def _query_loss(
    model: nn.Module, batch: Batch, config: Segmentation, weights: Float[Tensor, " k"] | None, seed: int
) -> tuple[Tensor, Float[Tensor, "b k height width"]]:
    unmasked = draw_unmasked(batch, config.queries, config.query_blocks, config.mask_annealing, seed)
    logits: QueryLogits = model(batch.images, unmasked.to(batch.images.device))
    masks = batch.targets
    loss = query_loss(logits, semantic_segments(masks, config.classes), masks != IGNORED)
    with torch.no_grad():
        scores = semantic_scores(QueryLogits(logits.classes[-1], logits.masks[-1]))
        return loss, F.interpolate(scores, masks.shape[1:], mode="bilinear")


HEADS = {
    "linear": Head(lambda encoder, config: LinearSegmenter(encoder, config.classes, config.layers), _pixel_loss),
    "eomt": Head(
        lambda encoder, config: EoMT(encoder, config.classes, config.queries, config.query_blocks, config.upscale_blocks),
        _query_loss,
    ),
}
