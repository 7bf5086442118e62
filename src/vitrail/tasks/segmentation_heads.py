"""The model of each head of segmentation: a row in a table. Its ``forward`` returns logits at the size of the images."""

from collections.abc import Callable

from torch import nn

from vitrail.models.vit import ViT
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.segmentation_model import LinearSegmenter, MaskTransformerSegmenter


def _linear(encoder: ViT, config: Segmentation) -> nn.Module:
    return LinearSegmenter(encoder, config.classes, config.layers, config.subpatch)


def _segmenter(encoder: ViT, config: Segmentation) -> nn.Module:
    shape = config.decoder(encoder.config)
    assert shape is not None  # the head has blocks
    return MaskTransformerSegmenter(encoder, config.classes, shape.depth, shape.width, shape.heads)


BUILDERS: dict[str, Callable[[ViT, Segmentation], nn.Module]] = {"linear": _linear, "segmenter": _segmenter}
