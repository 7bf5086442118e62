"""Cost of a Vision Transformer, stage by stage. Torch-free."""

from collections.abc import Iterator
from math import prod

from vitrail.models.config import ViTConfig
from vitrail.models.cost.attention import bias_floats, count_attention, count_layer_positions, rotation_floats
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
    values, embedded = channels * prod(c.patch), c.patches * c.width
    flat = c.patches * values
    counter.linear(c.patches, values, c.width, bias=c.patch_bias)
    if c.stem:  # without a stem, the images are counted already
        counter.saved_floats += 2 * flat if c.stem.stages else flat  # the last ReLU saves its output as well
        if c.stem.stages and c.patch_norm == "both" and prod(c.patch) == 1:
            counter.saved_floats -= flat  # which is the input of the norm, since patches of one pixel are not copied
    if c.patch_norm == "both":
        counter.norm(c.patches, values, c.norm_kind)
        if c.norm_kind == "rms" and not c.stem:
            counter.saved_floats -= c.patches * (values + 1)  # pixels and their root mean square: images have no gradient
    # the output of the stem, the normalised image, patches as rows
    counter.update_peak(embedded + flat * ((c.stem is not None) + (c.patch_norm == "both") + 1))
    if c.patch_norm != "none":
        counter.norm(c.patches, c.width, c.norm_kind)
        counter.update_peak(2 * embedded)
    return counter


def _tokens(c: ViTConfig) -> OpCounter:
    """Count the tokens before the first block, all position tables, and the angles of rotary positions without weights."""
    tables = len({table for table in c.layers_with_position if table is not None})
    counter = OpCounter(parameters=c.prefix_tokens * c.width + tables * _position_parameters(c))
    counter.update_peak(2 * c.tokens * c.width)
    if c.table_grid not in (None, c.grid):  # resized along one axis, then along the other, each time a table is added
        (rows, columns), (old_rows, old_columns) = c.grid, c.table_grid or c.grid
        counter.macs += (old_rows * columns * old_columns + rows * old_rows * columns) * c.width * _num_added_tables(c)
        counter.saved_floats_fixed += rows * old_rows + columns * old_columns
    if c.rotation and not c.rotation.mixed:
        counter.saved_floats_fixed += rotation_floats(c)
    if c.dropout:
        counter.saved_floats += c.tokens * c.width
    if c.embed_norm:
        counter.norm(c.tokens, c.width, c.norm_kind)
    return counter


def _num_added_tables(c: ViTConfig) -> int:
    return sum(table is not None for table in c.layers_with_position)


def _position_parameters(c: ViTConfig) -> int:
    learned = {
        "learned1d": prod(c.table_grid or c.grid) * c.width,
        "learned2d": sum(c.grid) * c.width // 2,
        "learned2d-sum": sum(c.grid) * c.width,
    }
    return learned[c.position] + c.prefix_positions * c.width if c.position in learned else 0


def _block(c: ViTConfig, layer: int) -> OpCounter:
    t, d = c.tokens, c.width
    counter = OpCounter(peak_floats_fixed=rotation_floats(c) + bias_floats(c))
    count_layer_positions(c, layer, counter)
    count_attention(c, layer, counter)
    _mlp(c, counter)
    for _ in range(2):
        counter.norm(t, d, c.norm_kind)
        counter.saved_floats += t * d  # the normalised input of a branch or, post-norm, its output
        counter.saved_floats += t * d * ((c.dropout > 0) + (c.layer_scale is not None))
        counter.parameters += d if c.layer_scale is not None else 0
    counter.saved_floats += 2 if c.stochastic_depth and layer else 0  # one factor per branch
    return counter


def _mlp(c: ViTConfig, counter: OpCounter) -> None:
    t, d, m = c.tokens, c.width, c.mlp
    counter.linear(t, d, c.mlp_outputs, bias=c.out_bias)
    counter.linear(t, m, d, bias=c.out_bias)
    # QuickGELU saves its sigmoid as well, SwiGLU gate, value, silu(gate) and their product
    kind = c.gelu if c.mlp_kind == "gelu" else c.mlp_kind
    counter.saved_floats += t * m * ({"quick": 3, "swiglu": 4}.get(kind, 2) + (c.dropout > 0))
    if c.mlp_norm:
        counter.norm(t, m, c.norm_kind)
    # embedded patches and the block's input, which its callers hold, the sum with the attention's output, and its norm
    before = c.patches * d + t * d * (2 + (c.norm == "pre"))
    # GELU is in place; QuickGELU holds its sigmoid and the product, SwiGLU all that it would save
    counter.update_peak(before + t * m * {"quick": 3, "swiglu": 4}.get(kind, 1 + c.mlp_norm))
    # at the end the hidden layer and its norm, with SwiGLU gate and value instead of the former, and the output
    hidden = 3 if kind == "swiglu" else 1 + c.mlp_norm
    counter.update_peak(before + t * m * hidden + t * d)


def _pool(c: ViTConfig) -> OpCounter:
    d = c.width
    is_saved = _has_head(c) or c.final_norm == "pooled"  # by a layer that saves its input
    if c.pool in ("cls", "cls+register"):  # a view, so the head saves every token
        return OpCounter(saved_floats=is_saved * c.tokens * d, peak_floats=c.tokens * d)
    if c.pool == "cls+gap":
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
