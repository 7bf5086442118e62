"""Cost of attention in windows, and of relative positions along the axes. Torch-free.

n patches, t tokens, o of them no patches, d width, h heads; w windows of s patches, those of the padding too, p in all.
"""

from math import prod

from vitrail.models.config import Pair, ViTConfig
from vitrail.models.cost.counter import INDEX_FLOATS, OpCounter, norm_saved


def has_own_queries(c: ViTConfig) -> bool:
    """Whether queries and keys are new tensors instead of views of the projection."""
    return c.qk_norm or c.rotation is not None


def count_windows(c: ViTConfig, side: int, counter: OpCounter, before: int, before_fixed: int) -> None:
    """Count the attention of a layer with windows, between its projections; ``before``: floats that exist already."""
    t, d, h, o = c.tokens, c.width, c.heads, c.prefix_tokens
    windows, s = prod(-(-length // side) for length in c.grid), side**2
    p, keys = windows * s, windows * (o + s)
    is_padded, is_wider = p > c.patches, c.grid[1] % side > 0
    counter.macs += 2 * d * (s * keys + o * t)
    if is_padded:  # query, key and value of the padding
        counter.macs += 3 * d * d
        counter.saved_floats_fixed += d + (3 * d + norm_saved(h, d // h, c.norm_kind) if c.qk_norm else 0)
    learned_angles, dropout = c.rotation is not None and c.rotation.mixed, c.attention_dropout > 0
    if c.qk_norm:
        counter.saved_floats += 2 * norm_saved(t * h, d // h, c.norm_kind)
    if learned_angles:  # their gradient needs queries and keys as they were, and turned by a quarter
        counter.saved_floats += 2 * t * d * (1 + c.qk_norm)
    if c.qk_norm or learned_angles or (o and not dropout):  # the projection: of queries and keys as they were, or of values
        counter.saved_floats += 3 * t * d
    counter.saved_floats += p * d + 2 * keys * d
    if dropout or c.relative_axes:  # the weights
        counter.saved_floats += h * s * keys * (3 if dropout else 1)
    else:  # a sum for each query, and the output
        counter.saved_floats += p * (h + d)
    if o and dropout:
        counter.saved_floats += (o + 2 * t) * d + 3 * h * o * t
    elif o:
        counter.saved_floats += o * (2 * d + h) + (t * d if has_own_queries(c) else 0)
    merged = p if not (o or is_wider) else c.patches  # without columns of padding, the patches are a view
    if c.attention_norm:  # its input
        counter.saved_floats += (merged - c.patches) * d
    before_fixed += 3 * d + (d if is_padded and c.qk_norm else 0)
    counter.add_moment(before + (4 if is_padded else 3) * p * d, before_fixed)  # parted are queries, keys and at last values
    bias = 0
    if c.relative_axes:
        count_relative_axes(c, (side, side), counter, before + 3 * p * d, before_fixed, windows)
        bias = h * p * s
    parts = (p + 2 * keys + 3 * o if o else 3 * p) * d
    if o:  # keys and values of the others are repeated for each window, and joined to it
        counter.add_moment(before + (3 * p + 3 * o + 2 * keys + windows * o) * d + bias, before_fixed)
        if bias:
            counter.add_moment(before + parts + bias + h * s * keys, before_fixed)
            bias = h * s * keys
    counter.add_moment(before + parts + bias + (2 * p + (c.patches if is_wider else 0)) * d, before_fixed)
    counter.add_moment(before + parts + bias + (merged + o + (t if o else 0)) * d, before_fixed)


def count_relative_axes(c: ViTConfig, grid: Pair, counter: OpCounter, before: int, before_fixed: int, windows: int = 1) -> None:
    """Count the relative positions along the axes of a grid, that of the patches or of each window."""
    head, n = c.width // c.heads, prod(grid)
    p = windows * n
    counter.parameters += sum(2 * side - 1 for side in grid) * head
    counter.macs += p * sum(grid) * c.width
    counter.saved_floats += 2 * p * c.width  # queries, once for each axis
    counter.saved_floats_fixed += sum(side**2 * (INDEX_FLOATS + head) for side in grid)
    along = c.heads * p * sum(grid)
    counter.add_moment(before + along + p * c.width, before_fixed + grid[1] ** 2 * head)
    counter.add_moment(before + along + 2 * c.heads * p * n, before_fixed)  # the sum of both, and in the order of the patches
