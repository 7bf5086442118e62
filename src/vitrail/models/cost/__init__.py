"""Cost of a model from its config alone: parameters, MACs, shapes, activation memory. Torch-free.

MACs are multiply-accumulates of matrix products and convolutions for one image. Memory is that of float32 activations of a
whole batch: in training what is saved for the backward pass, in inference the peak, both including the images. One function
per stage, in a file for each family; tests compare each with the built model.
"""

from dataclasses import dataclass

from vitrail.errors import VitrailError
from vitrail.models.config import ModelConfig, Pair, ViTConfig
from vitrail.models.cost.counter import FLOAT_BYTES, Stage
from vitrail.models.cost.resnet import feature_map_sizes, resnet_stages
from vitrail.models.cost.vit import vit_stages
from vitrail.models.variants import variant


@dataclass(frozen=True)
class Memory:
    """Memory of a model in bytes."""

    weights: int
    inference: int
    training: int
    grads_and_moments: int  # gradients and the two moments of Adam


@dataclass(frozen=True)
class Cost:
    parameters: int
    macs: int
    tokens: int | None  # None: a ResNet
    grid: tuple[int, int]  # of the patches or, in a ResNet, of the last feature map
    stages: tuple[Stage, ...]
    memory: Memory


def cost(config_or_name: ModelConfig | str, batch: int = 1) -> Cost:
    """Compute the cost of a config or a name: ``cost("B/16")``. MACs are for one image, shapes and memory for the batch."""
    config = variant(config_or_name) if isinstance(config_or_name, str) else config_or_name
    if batch < 1:
        raise VitrailError(f"batch must be at least 1, got {batch}; try batch=1")
    stages = vit_stages(config, batch) if isinstance(config, ViTConfig) else resnet_stages(config, batch)
    tokens, grid = (config.tokens, config.grid) if isinstance(config, ViTConfig) else (None, feature_map_sizes(config)[-1])
    return total_cost(tuple(stages), tokens, grid)


def total_cost(stages: tuple[Stage, ...], tokens: int | None, grid: Pair) -> Cost:
    """Sum the stages. The first is the image, which stays allocated during all others."""
    parameters = sum(stage.parameters for stage in stages)
    memory = Memory(
        weights=FLOAT_BYTES * parameters,
        inference=stages[0].peak_bytes + max(stage.peak_bytes for stage in stages[1:]),
        training=sum(stage.saved_bytes for stage in stages),
        grads_and_moments=3 * FLOAT_BYTES * parameters,
    )
    return Cost(parameters, sum(stage.macs for stage in stages), tokens, grid, stages, memory)
