"""Cost of attention and of its positions: rotary, relative keys, relative bias. Torch-free.

n patches, t tokens, d width, h heads: a tensor of all tokens has t * d floats. On a CPU the fused kernel supports neither
dropout nor a bias with a gradient; without it the weights of all pairs of tokens are saved.
"""

from vitrail.models.config import ViTConfig
from vitrail.models.cost.counter import INDEX_FLOATS, OpCounter, norm_parameters, norm_saved
from vitrail.models.cost.windows import count_relative_axes, count_windows, has_own_queries


def count_attention(c: ViTConfig, layer: int, counter: OpCounter) -> None:
    """Count the attention of one layer, without its rotary angles or bias of offsets."""
    t, d, h = c.tokens, c.width, c.heads
    counter.linear(t, d, 3 * d, bias=c.qkv_bias)
    counter.parameters -= 0 if c.key_bias else d
    counter.linear(t, d, d, bias=c.out_bias)
    counter.saved_floats += t * d  # the heads' output, the input of W_O or of a norm
    if c.qk_norm:
        counter.parameters += 2 * norm_parameters(d // h, c.norm_kind)
    if c.attention_norm:
        counter.norm(t, d, c.norm_kind)
    if c.position == "relative":
        counter.parameters += (2 * t - 1) * d
        counter.macs += t * (2 * t - 1) * d
    window, before = c.windows[layer], _floats_before(c)
    if window is not None and c.grid != (window, window):
        count_windows(c, window, counter, before, rotation_floats(c))
    else:
        counter.macs += 2 * t * t * d
        counter.saved_floats += _saved_floats(c)
        if c.relative_axes:
            count_relative_axes(c, c.grid, counter, before, rotation_floats(c))
            counter.update_peak(before + h * t * t + max(h * c.patches**2 if c.prefix_tokens else 0, t * d))
    counter.update_peak(*_peaks(c))


def _saved_floats(c: ViTConfig) -> int:
    """Floats per image that are saved between the projection to queries, keys and values and the one of the heads' output."""
    t, d, h = c.tokens, c.width, c.heads
    learned_angles = c.rotation is not None and c.rotation.mixed
    relative = c.position == "relative"
    saved = 0
    if c.qk_norm:
        saved += 2 * norm_saved(t * h, d // h, c.norm_kind)
    if learned_angles:  # their gradient needs queries and keys as they were, and turned by a quarter
        saved += 2 * t * d * (1 + c.qk_norm)
    if c.attention_dropout or relative or c.relative_axes or c.relative_bias:
        saved += 3 * t * d + h * t * t * (3 if c.attention_dropout else 1)  # scaled queries and keys, values; weights
        saved += t * d if relative and has_own_queries(c) else 0  # queries before they are scaled, for the relative keys
        projection_saved = c.qk_norm or learned_angles or (relative and not has_own_queries(c))
        return saved + (3 * t * d if projection_saved else 0)
    saved += 3 * t * d + t * h  # the projection, of which values are a view, and a sum for each query
    return saved + (2 * t * d if has_own_queries(c) else 0)


def _peaks(c: ViTConfig) -> list[int]:
    """Floats per image at the moments of attention that may be the peak."""
    t, d, h = c.tokens, c.width, c.heads
    before = _floats_before(c)
    peaks = [before + t * d * (2 + c.attention_norm)]  # the heads' output, its norm and projection
    if c.rotation:  # rotated queries; keys turned by a quarter, two products and their sum
        peaks.append(before + t * d * (3 + 2 * c.qk_norm))
    if c.position == "relative":  # scores of all offsets, then those of each pair; at last they and the heads' output
        peaks.append(before + h * t * (2 * t - 1) + h * t * t)
        peaks.append(before + h * t * t + t * d)
    return peaks


def _floats_before(c: ViTConfig) -> int:
    """Floats per image before the heads: embedded patches, the block's input, its norm, queries, keys and values."""
    own = 2 if has_own_queries(c) else 0
    return c.patches * c.width + c.tokens * c.width * (1 + (c.norm == "pre") + 3 + own)


def count_layer_positions(c: ViTConfig, layer: int, counter: OpCounter) -> None:
    """Count what a layer has of its own: learned rotary frequencies, a bias of offsets. A shared bias is the first layer's."""
    n, t, d = c.patches, c.tokens, c.width
    if c.rotation and c.rotation.mixed:  # a frequency along each axis for each pair of channels
        counter.parameters += d
        counter.macs += n * d
        counter.saved_floats_fixed += 2 * n + 3 * t * d  # coordinates of the patches; angles, their cosines and sines
    if not _has_bias(c, layer):
        return
    assert c.relative_bias is not None
    offsets, hidden = _num_offsets(c), c.relative_bias.hidden
    if c.relative_bias.kind == "table":
        counter.parameters += (offsets + 3 * c.has_class_token) * c.heads
    else:
        counter.linear(offsets, 2, hidden)
        counter.linear(offsets, hidden, c.heads)
    counter.saved_floats_fixed += offset_mlp_floats(c, layer) + INDEX_FLOATS * n * n  # which offset each pair has
    # the bias of the layer before exists until there is a new one
    held = rotation_floats(c) + (bias_floats(c) if layer else 0)
    counter.add_moment((n + t) * d, held + _bias_peak(c))


def rotation_floats(c: ViTConfig) -> int:
    """Floats of the cosines and sines that a layer reads: of each token, with learned frequencies of each head."""
    if c.rotation is None:
        return 0
    return 2 * c.tokens * (c.width if c.rotation.mixed else c.width // c.heads)


def bias_floats(c: ViTConfig) -> int:
    """Floats of the bias that a layer reads: of each pair of tokens and head."""
    return c.heads * c.tokens**2 if c.relative_bias else 0


def offset_mlp_floats(c: ViTConfig, layer: int) -> int:
    """Floats that the MLP of a layer's relative bias saves: its input and hidden layer for each offset."""
    if not _has_bias(c, layer) or c.relative_bias is None or c.relative_bias.kind == "table":
        return 0
    return _num_offsets(c) * (2 + c.relative_bias.hidden)


def _bias_peak(c: ViTConfig) -> int:
    """Floats at the peak of computing a relative bias, the same for every batch size."""
    assert c.relative_bias is not None
    n, t, h = c.patches, c.tokens, c.heads
    places, index = 3 * INDEX_FLOATS * n, INDEX_FLOATS * n * n
    look_up = places + max(4 * index, 3 * index + h * n * n)  # offsets down and right, their index, then the values
    if c.relative_bias.kind == "table":
        add_class_token = h * t * (n + t + 1) if c.has_class_token else 0  # a column, then a row
        return max(look_up, add_class_token)
    offsets, hidden = _num_offsets(c), c.relative_bias.hidden
    before = 2 * offsets + 2 * sum(c.grid) - 2 + offsets * hidden  # offsets, along each axis too, and the hidden layer
    return before + max(offsets * hidden, offsets * h + look_up, h * (n * n + t * t))  # prefix tokens: padded


def _has_bias(c: ViTConfig, layer: int) -> bool:
    return c.relative_bias is not None and (layer == 0 or not c.relative_bias.shared)


def _num_offsets(c: ViTConfig) -> int:
    return (2 * c.grid[0] - 1) * (2 * c.grid[1] - 1)
