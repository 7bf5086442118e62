"""Cost of a model from its config alone: parameters, MACs, shapes, activation memory. Torch-free.

MACs are multiply-accumulates of matrix products and convolutions for one image. Memory is that of float32 activations of a
whole batch: in training what is saved for the backward pass, in inference the peak, both including the images. One function
per stage; tests compare each with the built model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from vitrail.errors import VitrailError
from vitrail.models.cost_resnet import map_sides, resnet, root
from vitrail.models.settings import ModelConfig, Pair, ViTConfig
from vitrail.models.tally import FLOAT, Stage, Tally
from vitrail.models.variants import variant


@dataclass(frozen=True)
class Memory:
    """Memory of a model in bytes."""

    weights: int
    inference: int
    training: int
    adam: int  # gradients and the two moments of Adam


@dataclass(frozen=True)
class Cost:
    parameters: int
    macs: int
    tokens: int | None  # None: a ResNet
    grid: tuple[int, int]  # of the patches or, in a ResNet, of the last feature map
    stages: tuple[Stage, ...]
    memory: Memory


def cost(what: ModelConfig | str, batch: int = 1) -> Cost:
    """Compute the cost of a config or a name: ``cost("B/16")``. MACs are for one image, shapes and memory for the batch."""
    config = variant(what) if isinstance(what, str) else what
    if batch < 1:
        raise VitrailError(f"batch must be at least 1, got {batch}; try batch=1")
    walk = _vit(config, batch) if isinstance(config, ViTConfig) else resnet(config, batch)
    tokens, grid = (config.tokens, config.grid) if isinstance(config, ViTConfig) else (None, map_sides(config)[-1])
    return summed(tuple(walk), tokens, grid)


def summed(stages: tuple[Stage, ...], tokens: int | None, grid: Pair) -> Cost:
    """Sum the stages. The first is the image, which stays allocated during all others."""
    parameters = sum(stage.parameters for stage in stages)
    memory = Memory(
        weights=FLOAT * parameters,
        inference=stages[0].inference + max(stage.inference for stage in stages[1:]),
        training=sum(stage.training for stage in stages),
        adam=3 * FLOAT * parameters,
    )
    return Cost(parameters, sum(stage.macs for stage in stages), tokens, grid, stages, memory)


def _vit(c: ViTConfig, batch: int) -> Iterator[Stage]:
    image = Tally(kept=0 if c.stem else prod((c.channels, *c.image)), alive=prod((c.channels, *c.image)))
    yield image.stage("image", batch, c.channels, *c.image)
    channels = c.channels
    if c.stem:
        yield from root(c.stem, c.channels, c.image, batch)
        channels = c.stem.channels
    yield _patches(c, channels).stage("patches", batch, c.patches, c.width)
    yield _tokens(c).stage("tokens", batch, c.tokens, c.width)
    for layer in range(c.depth):
        yield _block(c, layer).stage(f"block {layer + 1}", batch, c.tokens, c.width)
    if c.norm == "pre" and c.norm_at == "tokens":
        norm = Tally(alive=2 * c.tokens * c.width)
        norm.norm(c.tokens, c.width)
        yield norm.stage("norm", batch, c.tokens, c.width)
    yield _pool(c).stage(f"pool ({c.pool})", batch, c.width)
    if c.norm_at == "pooled":
        norm = Tally(parameters=2 * c.width, kept=2 + _has_head(c) * c.width, alive=2 * c.width)
        yield norm.stage("norm", batch, c.width)
    yield from _head(c, batch)


def _patches(c: ViTConfig, channels: int) -> Tally:
    tally = Tally()
    tally.dense(c.patches, channels * prod(c.patch), c.width)
    flat = channels * prod(c.patch) * c.patches
    if c.stem:  # without a stem, the images are counted already
        tally.kept += 2 * flat if c.stem.stages else flat  # the last ReLU saves its output as well
    tally.peak(c.patches * c.width + (2 * flat if c.stem else flat))
    return tally


def _tokens(c: ViTConfig) -> Tally:
    tally = Tally(parameters=c.prefix * c.width + (_table(c) if c.layers_with_position[0] is not None else 0))
    tally.peak(2 * c.tokens * c.width)
    if c.position == "rotary":
        tally.kept_once += 2 * c.tokens * c.width // c.heads
    if c.dropout:
        tally.kept += c.tokens * c.width
    return tally


def _table(c: ViTConfig) -> int:
    learned = {
        "learned1d": c.patches * c.width,
        "learned2d": sum(c.grid) * c.width // 2,
        "learned2d-sum": sum(c.grid) * c.width,
    }
    return learned[c.position] + c.covered * c.width if c.position in learned else 0


def _block(c: ViTConfig, layer: int) -> Tally:
    t, d, m = c.tokens, c.width, c.mlp
    tally = Tally()
    if layer and c.layers_with_position[layer] == layer:
        tally.parameters += _table(c)
    _attention(c, tally)
    tally.dense(t, d, m)
    tally.dense(t, m, d)
    for _ in range(2):
        tally.norm(t, d)
        tally.kept += t * d  # the normalised input of a branch or, post-norm, its output
        tally.kept += t * d * ((c.dropout > 0) + (c.layer_scale is not None))
        tally.parameters += d if c.layer_scale is not None else 0
    tally.kept += t * m * (3 if c.dropout else 2)
    tally.kept += 2 if c.stochastic_depth and layer else 0  # one factor per branch
    tally.peak(t * d * (3 + (c.norm == "pre")) + t * m)  # the caller still holds the block's input, and GELU is in place
    return tally


def _attention(c: ViTConfig, tally: Tally) -> None:
    t, d, h = c.tokens, c.width, c.heads
    tally.dense(t, d, 3 * d, bias=c.qkv_bias)
    tally.dense(t, d, d)
    tally.macs += 2 * t * t * d
    tally.kept += t * d  # the heads' output, the input of W_O
    if c.qk_norm:
        tally.parameters += 4 * d // h
        tally.kept += 4 * t * h
    if c.position == "relative":
        tally.parameters += (2 * t - 1) * d
        tally.macs += t * (2 * t - 1) * d
        tally.peak(6 * t * d + h * t * (2 * t - 1) + h * t * t, 8 * t * d + h * t * t + t * h)
    if c.attention_dropout or c.position == "relative":  # not supported by the fused kernel on a CPU
        relative = c.position == "relative"
        tally.kept += t * d * (3 + 3 * (c.qk_norm or relative) + (c.qk_norm and relative))
        tally.kept += h * t * t * (3 if c.attention_dropout else 1)
    else:
        tally.kept += t * d * (3 + 2 * (c.qk_norm or c.position == "rotary") + c.qk_norm) + t * h
    tally.peak(t * d * (2 + (c.norm == "pre") + 5 + 2 * c.qk_norm + 2 * (c.position == "rotary")) + t * h)


def _pool(c: ViTConfig) -> Tally:
    d = c.width
    read = _has_head(c) or c.norm_at == "pooled"  # by a layer that saves its input
    if c.pool == "cls":
        return Tally(kept=read * c.tokens * d, alive=c.tokens * d)  # a view, so the head saves every token
    if c.pool == "gap":
        return Tally(kept=read * d, alive=(c.tokens + 1) * d)
    n = c.patches
    tally = Tally(kept=3 * n * d + (3 + read) * d + c.heads + 2 * c.mlp, alive=(c.tokens + 3 * n) * d)
    tally.parameters += d
    for rows, outputs in ((1, d), (n, 2 * d), (1, d)):
        tally.dense(rows, d, outputs)
    tally.macs += 2 * n * d
    tally.norm(1, d)
    tally.dense(1, d, c.mlp)
    tally.dense(1, c.mlp, d)
    return tally


def _has_head(c: ViTConfig) -> bool:
    return c.classes > 0 or c.head == "mlp"


def _head(c: ViTConfig, batch: int) -> Iterator[Stage]:
    width = c.width
    if c.head == "mlp":
        hidden, width = Tally(), c.head_width or c.width
        hidden.dense(1, c.width, width)
        hidden.kept += width
        hidden.peak(c.width + 2 * width)
        yield hidden.stage("pre-logits", batch, width)
    if c.classes:
        head = Tally(alive=width + c.classes)
        head.dense(1, width, c.classes)
        yield head.stage("head", batch, c.classes)
