"""Cost of segmentation: the encoder without its pooling, and the head on its patch tokens. Torch-free."""

from math import prod

from vitrail.models.config import ViTConfig
from vitrail.models.cost import Cost, cost, total_cost
from vitrail.models.cost.counter import OpCounter, Stage


def linear_segmenter_cost(config: ViTConfig, classes: int, num_layers: int = 1, batch: int = 1) -> Cost:
    """Compute the cost like ``cost``, with one linear layer from the tokens of some blocks to the pixels of each patch."""
    full = cost(config, batch)
    encoder = [stage for stage in full.stages if not stage.name.startswith(("pool", "head", "pre-logits"))]
    return total_cost((*encoder, _linear_head(config, classes, num_layers, batch)), full.tokens, full.grid)


def _linear_head(config: ViTConfig, classes: int, num_layers: int, batch: int) -> Stage:
    width, pixels = num_layers * config.width, classes * prod(config.patch_stride)
    counter = OpCounter()
    for _ in range(num_layers):
        counter.norm(config.patches, config.width)
    counter.linear(config.patches, width, pixels)
    counter.saved_floats += config.patches * width * (1 + (num_layers > 1))  # its input, concatenated
    # logits, their log-softmax for the loss, and the classes of the pixels as indices
    counter.saved_floats += config.patches * (pixels + 2 * prod(config.patch_stride))
    counter.update_peak(config.patches * (2 * width + 2 * pixels))
    return counter.to_stage("head", batch, classes, *config.image)
