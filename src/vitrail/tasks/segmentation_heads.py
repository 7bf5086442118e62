"""The model of each head of segmentation: a row in a table. Its ``forward`` returns logits at the size of the images."""

from collections.abc import Callable

from torch import nn

from vitrail.models.vit import ViT
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.segmentation_model import LinearSegmenter


def _linear(encoder: ViT, config: Segmentation) -> nn.Module:
    return LinearSegmenter(encoder, config.classes, config.layers)


BUILDERS: dict[str, Callable[[ViT, Segmentation], nn.Module]] = {"linear": _linear}
