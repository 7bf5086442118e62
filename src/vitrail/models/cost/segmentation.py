"""Cost of segmentation: the encoder without its pooling, and the head on its patch tokens. Torch-free."""

from dataclasses import replace
from math import log2, prod

from vitrail.models.config import Pair, ViTConfig
from vitrail.models.cost import Cost, cost, total_cost
from vitrail.models.cost.counter import OpCounter, Stage


def linear_segmenter_cost(config: ViTConfig, classes: int, num_layers: int = 1, batch: int = 1) -> Cost:
    """Compute the cost like ``cost``, with one linear layer from the tokens of some blocks to the pixels of each patch."""
    full = cost(config, batch)
    return total_cost(
        (*_encoder_stages(config, batch), _linear_head(config, classes, num_layers, batch)), full.tokens, full.grid
    )


def eomt_cost(
    config: ViTConfig, classes: int, queries: int, query_blocks: int, upscale_blocks: int | None = None, batch: int = 1
) -> Cost:
    """Compute the cost like ``cost``, with queries in the last blocks, and masks predicted from them after each in training."""
    if upscale_blocks is None:
        upscale_blocks = num_upscale_blocks(config.patch_stride)
    full = cost(config, batch)
    stages, last = _encoder_stages(config, batch), [f"block {config.depth - index}" for index in range(query_blocks)]
    # a block with queries is that of a model with as many registers more
    longer = {stage.name: stage for stage in cost(replace(config, registers=config.registers + queries), batch).stages}
    stages = [longer[stage.name] if stage.name in last else stage for stage in stages]
    head = _query_head(config, classes, queries, upscale_blocks, query_blocks + 1).to_stage(
        "head", batch, classes, *config.image
    )
    return total_cost((*stages, head), full.tokens, full.grid)


def num_upscale_blocks(patch: Pair) -> int:
    """Return how many blocks, each of which doubles the resolution, bring patches to about four pixels; at least one."""
    return max(1, int(log2(max(patch))) - 2)


def _encoder_stages(config: ViTConfig, batch: int) -> list[Stage]:
    return [stage for stage in cost(config, batch).stages if not stage.name.startswith(("pool", "head", "pre-logits"))]


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


def _query_head(config: ViTConfig, classes: int, queries: int, upscale_blocks: int, predictions: int) -> OpCounter:
    """Count the queries, their classes and masks; in training all but the last of the predictions are additional."""
    width, pixels = config.width, prod(config.image)
    counter = OpCounter(parameters=queries * width)
    counter.linear(queries, width, classes + 1)
    for _ in range(3):
        counter.linear(queries, width, width)
    saved, cells = queries * 6 * width, config.patches  # inputs of four layers and two GELUs
    for _ in range(upscale_blocks):
        counter.linear(cells, width, 4 * width)  # a transposed convolution, with one bias for the four pixels of a cell
        counter.parameters -= 3 * width
        counter.parameters += 9 * width + 2 * width  # a depthwise convolution without a bias, and a norm
        counter.macs += 9 * 4 * cells * width
        counter.update_peak((1 + 4 * 2) * cells * width)
        saved += cells * width + 4 * cells * (3 * width + 2)  # inputs of both convolutions, the GELU and the norm
        cells *= 4
    saved += cells * width + queries * width  # of which the masks are products
    saved += (config.patches + queries) * (width + 2)  # inputs of the norm before
    counter.macs += queries * cells * width + queries * classes * pixels
    counter.saved_floats += predictions * saved
    counter.update_peak(2 * queries * pixels + classes * pixels)  # the masks of an image at its size, and their sigmoid
    return counter
