"""The heads of segmentation, a row each: the model, whose ``forward`` returns logits at the size of the images, and its loss.

b images, k classes, y by x any size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.data.loader import Batch
from vitrail.data.sources.dataset import IGNORED
from vitrail.models.config import ViTConfig
from vitrail.models.vit import ViT
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.pixel_loss import pixel_loss
from vitrail.tasks.query_loss import draw_unmasked, query_loss, semantic_segments
from vitrail.tasks.segmentation_eomt import EoMT, QueryLogits, semantic_scores
from vitrail.tasks.segmentation_model import LinearSegmenter, MaskTransformerSegmenter

if TYPE_CHECKING:
    from vitrail.tasks.segmentation import SegmentationTask

# From the model and a batch on its device: the loss, and logits whose largest class is compared with the masks
HeadLoss = Callable[["SegmentationTask", nn.Module, Batch], tuple[Tensor, Float[Tensor, "b k height width"]]]


@dataclass(frozen=True)
class Head:
    """The model of a head, and its loss."""

    build: Callable[[ViT, Segmentation], nn.Module]
    loss: HeadLoss


def _build_linear(encoder: ViT, config: Segmentation) -> nn.Module:
    return LinearSegmenter(encoder, config.classes, config.head_layers(encoder.config.depth), config.subpatch)


def _build_eomt(encoder: ViT, config: Segmentation) -> nn.Module:
    query_blocks = config.num_query_blocks(encoder.config.depth)
    return EoMT(encoder, config.classes, config.num_queries, query_blocks, config.upscale_blocks)


def _build_segmenter(encoder: ViT, config: Segmentation) -> nn.Module:
    shape = config.decoder(encoder.config)
    assert shape is not None  # the head has blocks
    return MaskTransformerSegmenter(encoder, config.classes, shape.depth, shape.width, shape.heads)


def _pixel_loss(task: "SegmentationTask", model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    logits = model(batch.images).float()
    return pixel_loss(logits, batch.targets, task.config, task.class_weights), logits.detach()


def _query_loss(task: "SegmentationTask", model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    assert isinstance(task.model, ViTConfig)  # others are refused by the settings' ``check``
    config, masks = task.config, batch.targets
    query_blocks = config.num_query_blocks(task.model.depth)
    unmasked = draw_unmasked(batch, config.num_queries, query_blocks, config.mask_annealing, task.seed)
    logits: QueryLogits = model(batch.images, unmasked.to(batch.images.device))
    loss = query_loss(logits, semantic_segments(masks, config.classes), masks != IGNORED)
    with torch.no_grad():
        scores = semantic_scores(QueryLogits(logits.classes[-1], logits.masks[-1]))
        return loss, F.interpolate(scores, masks.shape[1:], mode="bilinear")


HEADS = {
    "linear": Head(_build_linear, _pixel_loss),
    "eomt": Head(_build_eomt, _query_loss),
    "segmenter": Head(_build_segmenter, _pixel_loss),
}
