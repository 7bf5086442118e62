"""Cost of segmentation: the encoder without its pooling, and the head on its patch tokens. Torch-free.

n patches, t tokens, d width; e width and s tokens of a decoder, k classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from vitrail.models.config import ViTConfig
from vitrail.models.cost import Cost, cost, total_cost
from vitrail.models.cost.counter import FLOAT_BYTES, INDEX_FLOATS, OpCounter, Stage

NOT_RUN = ("pool", "norm", "pre-logits", "head")  # stages after the blocks


def linear_segmenter_cost(
    config: ViTConfig, classes: int, layers: Sequence[int] = (), batch: int = 1, *, subpatch: bool = True
) -> Cost:
    """Compute the cost like ``cost``, with one linear layer from the tokens of some blocks to the logits of each pixel of a
    patch or, without ``subpatch``, to those of the patch, which are interpolated."""
    layers = layers or (config.depth,)
    count = _pixel_head if subpatch else _patch_head
    head = count(config, classes, layers).to_stage("head", batch, classes, *config.image)
    return total_cost((*encoder_stages(config, layers, batch), head), config.tokens, config.grid)


def mask_transformer_cost(config: ViTConfig, classes: int, depth: int, width: int, heads: int, batch: int = 1) -> Cost:
    """Compute the cost like ``cost``, with blocks of this depth, width and number of heads on the patch tokens and a token for
    each class."""
    encoder = encoder_stages(config, (config.depth,), batch)
    return total_cost((*encoder, *_decoder_stages(config, classes, depth, width, heads, batch)), config.tokens, config.grid)


def encoder_stages(config: ViTConfig, layers: Sequence[int], batch: int) -> Iterator[Stage]:
    """Yield the stages up to the tokens of some blocks, which are normalised. What the model has for pooling is not run."""
    n, t, d = config.patches, config.tokens, config.width
    unused = 0
    for stage in cost(config, batch).stages:
        if stage.name.startswith("block "):
            held = sum(layer < int(stage.name.split()[1]) - 1 for layer in layers)  # the input of the block is counted
            yield replace(stage, peak_bytes=stage.peak_bytes + batch * FLOAT_BYTES * (held * t * d - n * d))
        elif stage.name == "norm" and config.final_norm == "tokens":
            saved = len(layers) * 2 * t + _last_tokens(config, layers)
            peak = (len(layers) + 1) * t * d
            yield replace(stage, saved_bytes=batch * FLOAT_BYTES * saved, peak_bytes=batch * FLOAT_BYTES * peak)
        elif stage.name.startswith(NOT_RUN):
            unused += stage.parameters
        else:
            yield stage
    if unused:
        yield Stage("pooling (not used)", (batch, t, d), unused, 0, 0, 0)


def _last_tokens(config: ViTConfig, layers: Sequence[int]) -> int:
    """Return the floats of the tokens after the last block, if they are used; those before are saved by the next block."""
    return config.tokens * config.width if config.depth in layers else 0


def _pixel_head(config: ViTConfig, classes: int, layers: Sequence[int]) -> OpCounter:
    n, t, d, pixels = config.patches, config.tokens, config.width, prod(config.patch_stride)
    counter = OpCounter(saved_floats=_loss_floats(config, classes))
    for _ in layers:
        counter.norm(n, d)  # whose input counts as that of the linear layer: its own is a part of all tokens
    counter.saved_floats += len(layers) * t * d if config.final_norm == "tokens" else _last_tokens(config, layers)
    counter.linear(n, len(layers) * d, classes * pixels)
    counter.update_peak(len(layers) * (t + 2 * n) * d, len(layers) * (t + n) * d + 2 * n * pixels * classes)
    return counter


def _patch_head(config: ViTConfig, classes: int, layers: Sequence[int]) -> OpCounter:
    n, t, d = config.patches, config.tokens, config.width
    counter = OpCounter(saved_floats=len(layers) * n * d + _loss_floats(config, classes))
    counter.linear(n, len(layers) * d, classes)
    held = len(layers) * t * d + n * classes
    counter.update_peak(held + len(layers) * n * d, held + classes * prod(config.image))
    return counter


def _decoder_stages(config: ViTConfig, classes: int, depth: int, width: int, heads: int, batch: int) -> Iterator[Stage]:
    """Yield the stages of a mask transformer; the tokens of the encoder are held throughout."""
    n, k, e, held = config.patches, classes, width, config.tokens * config.width
    s = n + k
    embed = OpCounter(parameters=k * e, saved_floats=n * config.width, peak_floats=held + (n + s) * e)
    embed.linear(n, config.width, e)
    yield embed.to_stage("head", batch, s, e)
    decoder = ViTConfig(
        e, depth, 4 * e, heads, config.patch_stride, config.image, config.channels, 0, position="none", class_token=False,
        registers=k, pool="gap", gelu=config.gelu, dropout=config.dropout,
    )  # fmt: skip
    for stage in cost(decoder, batch).stages:
        if stage.name.startswith("block "):
            peak_bytes = stage.peak_bytes + batch * FLOAT_BYTES * (held - n * e)
            yield replace(stage, name=f"decoder {stage.name}", peak_bytes=peak_bytes)
    masks = OpCounter(macs=n * k * e)
    masks.norm(s, e)
    for rows in (n, k):
        masks.linear(rows, e, e, bias=False)
    masks.saved_floats += s * (3 * e + 2)  # inputs and outputs of the projections, their lengths, and their quotients
    masks.norm(n, k)
    masks.saved_floats += _loss_floats(config, k)
    masks.update_peak(held + 2 * s * e + 2 * n * e + n, held + 2 * s * e + n * e + 2 * k * e + k)
    masks.update_peak(held + 3 * s * e + n * k, held + s * e + 2 * n * k, held + s * e + n * k + k * prod(config.image))
    yield masks.to_stage("decoder masks", batch, k, *config.image)


def _loss_floats(config: ViTConfig, classes: int) -> int:
    """Return the floats per image that the loss saves: the log-softmax of the logits, and the masks as indices."""
    return (classes + INDEX_FLOATS) * prod(config.image)
