"""Cost of EoMT: an encoder with queries in its last blocks, and what predicts masks from them. Torch-free."""

from dataclasses import replace
from math import log2, prod

from vitrail.models.config import Pair, ViTConfig
from vitrail.models.cost import Cost, total_cost
from vitrail.models.cost.counter import OpCounter, Stage
from vitrail.models.cost.segmentation import encoder_stages

NUM_SEGMENTS = 20  # of an image, at most: so many that the estimate of the loss is rather too high
MAX_PIXELS = 2**16  # of a mask that the loss compares


def eomt_cost(
    config: ViTConfig, classes: int, queries: int, query_blocks: int, upscale_blocks: int | None = None, batch: int = 1
) -> Cost:
    """Compute the cost like ``cost``, with queries in the last blocks. In training, masks are predicted before each of them."""
    if upscale_blocks is None:
        upscale_blocks = num_upscale_blocks(config.patch_stride)
    stages = stages_with_queries(config, queries, query_blocks, batch)
    head = _query_head(config, classes, queries, upscale_blocks, query_blocks + 1)
    return total_cost((*stages, head.to_stage("head", batch, classes, *config.image)), config.tokens, config.grid)


def stages_with_queries(config: ViTConfig, queries: int, query_blocks: int, batch: int) -> list[Stage]:
    """Return the stages of an encoder with queries in its last blocks."""
    last = [f"block {config.depth - index}" for index in range(query_blocks)]
    longer = _with_registers(config, queries, batch)
    return [longer[stage.name] if stage.name in last else stage for stage in encoder_stages(config, (config.depth,), batch)]


def num_upscale_blocks(patch: Pair) -> int:
    """Return how many blocks, each of which doubles the resolution, bring patches to about four pixels; at least one."""
    return max(1, int(log2(max(patch))) - 2)


def _with_registers(config: ViTConfig, queries: int, batch: int) -> dict[str, Stage]:
    """Return the stages of a model with as many registers more, by name: its blocks are those with queries.

    With registers there is no table of offsets, so that of a block is added, and its use in attention is not counted twice.
    """
    layers, has_table = (config.depth,), config.relative_bias is not None and config.relative_bias.kind == "table"
    plain = replace(config, relative_bias=None) if has_table else config
    extended = replace(plain, registers=config.registers + queries)
    stages = zip(*(encoder_stages(each, layers, batch) for each in (config, plain, extended)), strict=True)
    return {own.name: _add_difference(longer, own, without) for own, without, longer in stages}


def _add_difference(longer: Stage, own: Stage, without: Stage) -> Stage:
    return replace(
        longer,
        parameters=longer.parameters + own.parameters - without.parameters,
        macs=longer.macs + own.macs - without.macs,
        peak_bytes=longer.peak_bytes + own.peak_bytes - without.peak_bytes,
        saved_bytes=longer.saved_bytes + own.saved_bytes - without.saved_bytes,
    )


def _query_head(config: ViTConfig, classes: int, queries: int, upscale_blocks: int, predictions: int) -> OpCounter:
    """Count the queries, their classes and masks; in training, that many predictions are saved."""
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
    # masks at the size of the image, their sigmoid, the segments that they are matched with, and the pixels that count
    saved += 4 * min(classes, queries, NUM_SEGMENTS) * min(pixels, MAX_PIXELS)
    counter.macs += queries * cells * width + queries * classes * pixels
    counter.saved_floats += predictions * saved - config.patches * (width + 2)  # the norm of the last is the encoder's
    counter.update_peak(2 * queries * pixels + classes * pixels)  # the masks of an image at its size, and their sigmoid
    return counter
