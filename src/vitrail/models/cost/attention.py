"""Cost of attention and of its positions: rotary, relative keys, relative bias. Torch-free.

A number between 1 and 3 in front of t * d counts tensors of that size. On a CPU the fused kernel supports neither dropout nor
a bias with a gradient; without it the weights of all pairs of tokens are saved.
"""

from vitrail.models.config import ViTConfig
from vitrail.models.cost.counter import INDEX_FLOATS, OpCounter, norm_parameters, norm_saved


def count_attention(c: ViTConfig, counter: OpCounter) -> None:
    """Count the attention of one layer, without its rotary angles or bias of offsets."""
    t, d, h = c.tokens, c.width, c.heads
    counter.linear(t, d, 3 * d, bias=c.qkv_bias)
    counter.parameters -= 0 if c.key_bias else d
    counter.linear(t, d, d, bias=c.out_bias)
    counter.macs += 2 * t * t * d
    counter.saved_floats += _saved_floats(c) + t * d  # and the heads' output, the input of W_O or of a norm
    if c.qk_norm:
        counter.parameters += 2 * norm_parameters(d // h, c.norm_kind)
    if c.attention_norm:
        counter.norm(t, d, c.norm_kind)
    if c.position == "relative":
        counter.parameters += (2 * t - 1) * d
        counter.macs += t * (2 * t - 1) * d
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
    if c.attention_dropout or relative or c.relative_bias:
        saved += 3 * t * d + h * t * t * (3 if c.attention_dropout else 1)  # scaled queries and keys, values; weights
        saved += t * d if relative and _has_own_queries(c) else 0  # queries before they are scaled, for the relative keys
        projection_saved = c.qk_norm or learned_angles or (relative and not _has_own_queries(c))
        return saved + (3 * t * d if projection_saved else 0)
    saved += 3 * t * d + t * h  # the projection, of which values are a view, and a sum for each query
    saved += 2 * t * d if _has_own_queries(c) else 0
    return saved + (t * d if c.qk_norm else 0)  # the output in the norms' order of memory, before heads are joined


def _has_own_queries(c: ViTConfig) -> bool:
    """Whether queries and keys are new tensors instead of views of the projection."""
    return c.qk_norm or c.rotation is not None


def _peaks(c: ViTConfig) -> list[int]:
    """Floats per image at the moments of attention that may be the peak."""
    t, d, h = c.tokens, c.width, c.heads
    # the embedded patches, the block's input, its norm, and queries, keys and values
    before = c.patches * d + t * d * (1 + (c.norm == "pre") + 3)
    queries = 2 * t * d if _has_own_queries(c) else 0
    copied = c.qk_norm or c.relative_bias is not None or c.attention_norm  # the output once more, joined or normalised
    bias = h * t * t if c.position == "relative" else 0
    peaks = [before + queries + bias + t * d * (2 + copied)]  # the heads' output and its projection
    if c.rotation:  # rotated queries; keys turned by a quarter, two products and their sum
        peaks.append(before + t * d * (5 + 2 * c.qk_norm))
    if c.position == "relative":  # scores of all offsets, then those of each pair
        peaks.append(before + queries + h * t * (2 * t - 1) + bias)
    return peaks


def count_rotary(c: ViTConfig, counter: OpCounter) -> None:
    """Count the angles of all layers: their cosines and sines are saved and, if they are learned, the angles as well."""
    if c.rotation is None:
        return
    if not c.rotation.mixed:
        counter.saved_floats_fixed += rotation_floats(c)
        return
    counter.parameters += c.depth * c.width  # a frequency along each axis for each pair of channels
    counter.macs += c.depth * c.patches * c.width
    counter.saved_floats_fixed += c.depth * (3 * c.tokens * c.width + 2 * c.patches)  # with the coordinates of each patch


def rotation_floats(c: ViTConfig) -> int:
    """Floats of the cosines and sines that a layer reads: of each token, or of each token and head."""
    if c.rotation is None:
        return 0
    return 2 * c.tokens * (c.width if c.rotation.mixed else c.width // c.heads)


def count_relative_bias(c: ViTConfig, counter: OpCounter) -> None:
    """Count the biases of all layers, or the one that they share: values of offsets, and their index for each pair."""
    if c.relative_bias is None:
        return
    count = 1 if c.relative_bias.shared else c.depth
    offsets, hidden = _num_offsets(c), c.relative_bias.hidden
    each = OpCounter(saved_floats_fixed=INDEX_FLOATS * c.patches**2)
    if c.relative_bias.kind == "table":
        each.parameters += (offsets + 3 * c.has_class_token) * c.heads
    else:
        each.linear(offsets, 2, hidden)
        each.linear(offsets, hidden, c.heads)
        each.saved_floats_fixed += offsets * (2 + hidden)
    counter.parameters += count * each.parameters
    counter.macs += count * each.macs
    counter.saved_floats_fixed += count * each.saved_floats_fixed


def bias_floats(c: ViTConfig) -> int:
    """Floats of the bias that a layer reads: of each pair of tokens and head."""
    return c.heads * c.tokens**2 if c.relative_bias else 0


def bias_peak(c: ViTConfig) -> int:
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


def _num_offsets(c: ViTConfig) -> int:
    return (2 * c.grid[0] - 1) * (2 * c.grid[1] - 1)
