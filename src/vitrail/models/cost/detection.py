"""Cost of detection: the encoder without its pooling, and a head on a finer map of its patch tokens, or queries. Torch-free.

n patches, t tokens, d width, q queries.
"""

from collections.abc import Sequence

from vitrail.models.config import ViTConfig
from vitrail.models.cost import Cost, total_cost
from vitrail.models.cost.counter import OpCounter
from vitrail.models.cost.eomt import stages_with_queries
from vitrail.models.cost.segmentation import encoder_stages


def dense_detector_cost(
    config: ViTConfig, classes: int, layers: Sequence[int], upscale_blocks: int, map_width: int, batch: int = 1
) -> Cost:
    """Compute the cost like ``cost``, with a map of the patch tokens, a heat map of each class, and a box at every cell."""
    layers = layers or (config.depth,)
    head = _centre_head(config, classes, layers, upscale_blocks, map_width)
    rows, columns = (side << upscale_blocks for side in config.grid)
    stage = head.to_stage("head", batch, classes + 4, rows, columns)
    return total_cost((*encoder_stages(config, layers, batch), stage), config.tokens, config.grid)


def query_detector_cost(
    config: ViTConfig, classes: int, queries: int, query_blocks: int, query_positions: bool, batch: int = 1
) -> Cost:
    """Compute the cost like ``cost``, with queries in the last blocks, after each of which boxes are predicted in training."""
    q, d = queries, config.width
    head = OpCounter(parameters=q * d * (query_blocks if query_positions else 1))
    for outputs in (classes + 1, 4):
        head.linear(q, d, d)
        head.linear(q, d, d)
        head.linear(q, d, outputs)
    # the norm of the queries and its output, two hidden layers of both MLPs, and what the loss needs of each pair
    saved = q * (2 * d + 2 + 2 * 2 * d + 2 * (classes + 1) + 16)
    head.saved_floats += query_blocks * saved - q * (2 * d + 2)  # that of the last is the encoder's
    head.update_peak(q * (3 * d + classes + 5))
    stages = (*stages_with_queries(config, queries, query_blocks, batch), head.to_stage("head", batch, classes + 5, q, 1))
    return total_cost(stages, config.tokens, config.grid)


def _centre_head(config: ViTConfig, classes: int, layers: Sequence[int], upscale_blocks: int, map_width: int) -> OpCounter:
    n, t, d = config.patches, config.tokens, config.width
    counter = OpCounter()
    for _ in layers:
        counter.norm(n, d)  # whose input counts as that of the linear layer: its own is a part of all tokens
    last_tokens = t * d if config.depth in layers else 0
    counter.saved_floats += len(layers) * t * d if config.final_norm == "tokens" else last_tokens
    cells, width = n, map_width << upscale_blocks
    counter.linear(n, len(layers) * d, width)
    counter.update_peak(len(layers) * (t + 2 * n) * d, len(layers) * (t + n) * d + n * width)
    for _ in range(upscale_blocks):
        counter.linear(cells, width, 2 * width)  # to four cells of half the width
        counter.saved_floats += cells * width
        counter.update_peak(cells * 6 * width)
        cells, width = 4 * cells, width // 2
        counter.norm(cells, width)
        counter.saved_floats += cells * width  # the input of the GELU
    counter.parameters += map_width * (9 * map_width + 1)
    counter.macs += cells * 9 * map_width**2
    counter.saved_floats += cells * map_width
    counter.norm(cells, map_width)
    counter.saved_floats += 2 * cells * map_width  # inputs of the GELU and of the two linear layers
    for outputs in (classes, 4):
        counter.linear(cells, map_width, outputs)
    counter.saved_floats += cells * (6 * classes + 40)  # of the loss
    counter.update_peak(4 * cells * map_width, 2 * cells * map_width + 3 * cells * (classes + 4))
    return counter
