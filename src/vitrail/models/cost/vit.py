"""Cost of a Vision Transformer, stage by stage. Torch-free."""

from collections.abc import Iterator
from math import prod

from vitrail.models.config import ViTConfig
from vitrail.models.cost.counter import OpCounter, Stage
from vitrail.models.cost.resnet import stem_stages


def vit_stages(c: ViTConfig, batch: int) -> Iterator[Stage]:
    image = OpCounter(saved_floats=0 if c.stem else prod((c.channels, *c.image)), peak_floats=prod((c.channels, *c.image)))
    yield image.to_stage("image", batch, c.channels, *c.image)
    channels = c.channels
    if c.stem:
        yield from stem_stages(c.stem, c.channels, c.image, batch)
        channels = c.stem.channels
    yield _patch_embed(c, channels).to_stage("patches", batch, c.patches, c.width)
    yield _tokens(c).to_stage("tokens", batch, c.tokens, c.width)
    for layer in range(c.depth):
        yield _block(c, layer).to_stage(f"block {layer + 1}", batch, c.tokens, c.width)
    if c.norm != "post" and c.final_norm == "tokens":
        norm = OpCounter(peak_floats=2 * c.tokens * c.width)
        norm.norm(c.tokens, c.width, c.norm_kind)
        yield norm.to_stage("norm", batch, c.tokens, c.width)
    yield _pool(c).to_stage(f"pool ({c.pool})", batch, c.feature_width)
    if c.final_norm == "pooled":
        norm = OpCounter(saved_floats=-c.width + _has_head(c) * c.width, peak_floats=2 * c.width)  # its input is counted
        norm.norm(1, c.width, c.norm_kind)
        yield norm.to_stage("norm", batch, c.width)
    yield from _head_stages(c, batch)


def _patch_embed(c: ViTConfig, channels: int) -> OpCounter:
    counter = OpCounter()
    counter.linear(c.patches, channels * prod(c.patch), c.width, bias=c.patch_bias)
    flat = channels * prod(c.patch) * c.patches
    if c.stem:  # without a stem, the images are counted already
        counter.saved_floats += 2 * flat if c.stem.stages else flat  # the last ReLU saves its output as well
    counter.update_peak(c.patches * c.width + (2 * flat if c.stem else flat))
    if c.patch_norm == "both":
        counter.norm(c.patches, channels * prod(c.patch), c.norm_kind)
    if c.patch_norm != "none":
        counter.norm(c.patches, c.width, c.norm_kind)
    return counter


def _tokens(c: ViTConfig) -> OpCounter:
    counter = OpCounter(
        parameters=c.prefix_tokens * c.width + (_position_parameters(c) if c.layers_with_position[0] is not None else 0)
    )
    counter.update_peak(2 * c.tokens * c.width)
    if c.rotation and not c.rotation.mixed:
        counter.saved_floats_fixed += 2 * c.tokens * c.width // c.heads
    if c.relative_bias and c.relative_bias.shared:
        _relative_bias(c, counter)
    if c.dropout:
        counter.saved_floats += c.tokens * c.width
    if c.embed_norm:
        counter.norm(c.tokens, c.width, c.norm_kind)
    return counter


def _position_parameters(c: ViTConfig) -> int:
    learned = {
        "learned1d": c.patches * c.width,
        "learned2d": sum(c.grid) * c.width // 2,
        "learned2d-sum": sum(c.grid) * c.width,
    }
    return learned[c.position] + c.prefix_positions * c.width if c.position in learned else 0


def _block(c: ViTConfig, layer: int) -> OpCounter:
    t, d, m = c.tokens, c.width, c.mlp
    counter = OpCounter()
    if layer and c.layers_with_position[layer] == layer:
        counter.parameters += _position_parameters(c)
    _attention(c, counter)
    if c.relative_bias and not c.relative_bias.shared:
        _relative_bias(c, counter)
    counter.linear(t, d, c.mlp_outputs, bias=c.out_bias)
    counter.linear(t, m, d, bias=c.out_bias)
    if c.mlp_norm:
        counter.norm(t, m, c.norm_kind)
    for _ in range(2):
        counter.norm(t, d, c.norm_kind)
        counter.saved_floats += t * d  # the normalised input of a branch or, post-norm, its output
        counter.saved_floats += t * d * ((c.dropout > 0) + (c.layer_scale is not None))
        counter.parameters += d if c.layer_scale is not None else 0
    # QuickGELU saves its sigmoid as well, SwiGLU gate, value, silu(gate) and their product
    kind = c.gelu if c.mlp_kind == "gelu" else c.mlp_kind
    counter.saved_floats += t * m * ({"quick": 3, "swiglu": 4}.get(kind, 2) + (c.dropout > 0))
    counter.saved_floats += 2 if c.stochastic_depth and layer else 0  # one factor per branch
    # the caller still holds the block's input, and GELU is in place; QuickGELU holds its sigmoid and the product, SwiGLU
    # all that it would save, but not the output of the second layer yet
    counter.update_peak(t * d * (3 + (c.norm == "pre") - (kind == "swiglu")) + t * m * {"quick": 3, "swiglu": 4}.get(kind, 1))
    return counter


def _attention(c: ViTConfig, counter: OpCounter) -> None:
    t, d, h = c.tokens, c.width, c.heads
    counter.linear(t, d, 3 * d, bias=c.qkv_bias)
    counter.parameters -= 0 if c.key_bias else d
    counter.linear(t, d, d, bias=c.out_bias)
    counter.macs += 2 * t * t * d
    counter.saved_floats += t * d  # the heads' output, the input of W_O
    if c.qk_norm:
        counter.parameters += (4 if c.norm_kind == "layer" else 2) * d // h
        counter.saved_floats += (4 if c.norm_kind == "layer" else 2) * t * h
    if c.attention_norm:
        counter.norm(t, d, c.norm_kind)
    if c.rotation and c.rotation.mixed:  # the learned frequencies, and cosines and sines of each head
        counter.parameters += d
        counter.saved_floats_fixed += 2 * t * d
    if c.position == "relative":
        counter.parameters += (2 * t - 1) * d
        counter.macs += t * (2 * t - 1) * d
        counter.update_peak(6 * t * d + h * t * (2 * t - 1) + h * t * t, 8 * t * d + h * t * t + t * h)
    biased = c.position == "relative" or c.relative_bias is not None
    if c.attention_dropout or biased:  # not supported by the fused kernel on a CPU
        relative = c.position == "relative"
        counter.saved_floats += t * d * (3 + 3 * (c.qk_norm or relative) + (c.qk_norm and relative))
        counter.saved_floats += h * t * t * (3 if c.attention_dropout else 1)
    else:
        counter.saved_floats += t * d * (3 + 2 * (c.qk_norm or c.rotation is not None) + c.qk_norm) + t * h
    counter.update_peak(t * d * (2 + (c.norm == "pre") + 5 + 2 * c.qk_norm + 2 * (c.rotation is not None)) + t * h)


def _relative_bias(c: ViTConfig, counter: OpCounter) -> None:
    """Count the bias of a layer, or of all: what an MLP computes for each offset, and a number for each pair of tokens."""
    assert c.relative_bias is not None
    offsets, hidden = (2 * c.grid[0] - 1) * (2 * c.grid[1] - 1), c.relative_bias.hidden
    if c.relative_bias.kind == "table":
        counter.parameters += (offsets + 3 * c.has_class_token) * c.heads
    else:
        counter.linear(offsets, 2, hidden)
        counter.linear(offsets, hidden, c.heads)
        counter.saved_floats_fixed += offsets * (2 + hidden)
    counter.saved_floats_fixed += c.heads * c.tokens**2
    counter.peak_floats_fixed = max(counter.peak_floats_fixed, 2 * c.heads * c.tokens**2)


def _pool(c: ViTConfig) -> OpCounter:
    d = c.width
    is_saved = _has_head(c) or c.final_norm == "pooled"  # by a layer that saves its input
    if c.pool == "cls":  # a view, so the head saves every token
        return OpCounter(saved_floats=is_saved * c.tokens * d, peak_floats=c.tokens * d)
    if "+" in c.pool:
        return OpCounter(saved_floats=is_saved * 2 * d, peak_floats=(c.tokens + 3) * d)
    if c.pool == "gap":
        return OpCounter(saved_floats=is_saved * d, peak_floats=(c.tokens + 1) * d)
    n, heads, mlp = c.tokens if c.pool_prefix else c.patches, c.pool_heads or c.heads, c.pool_mlp or c.mlp
    counter = OpCounter(
        saved_floats=3 * n * d + (3 + is_saved) * d + heads + (2 + (c.gelu == "quick")) * mlp,
        peak_floats=(c.tokens + 3 * n) * d,
    )
    counter.parameters += d
    for rows, outputs in ((1, d), (n, 2 * d), (1, d)):
        counter.linear(rows, d, outputs)
    counter.macs += 2 * n * d
    counter.norm(1, d, c.norm_kind)
    counter.linear(1, d, mlp)
    counter.linear(1, mlp, d)
    return counter


def _has_head(c: ViTConfig) -> bool:
    return c.classes > 0 or c.head == "mlp"


def _head_stages(c: ViTConfig, batch: int) -> Iterator[Stage]:
    width = c.feature_width
    if c.head == "mlp":
        hidden, width = OpCounter(), c.head_hidden or c.width
        hidden.linear(1, c.feature_width, width)
        hidden.saved_floats += width
        hidden.update_peak(c.feature_width + 2 * width)
        yield hidden.to_stage("pre-logits", batch, width)
    if c.classes:
        head = OpCounter(peak_floats=width + c.classes)
        head.linear(1, width, c.classes)
        yield head.to_stage("head", batch, c.classes)
