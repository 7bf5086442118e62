"""MACs with token merging and dropped patches (``models.token_reduced_vit``), from the config alone. Torch-free."""

from itertools import pairwise

from vitrail.errors import VitrailError
from vitrail.models.config import ViTConfig
from vitrail.models.cost import cost


def num_kept_patches(patches: int, drop_patches: float) -> int:
    """Return the number of patches left after dropping this fraction, at least one."""
    return max(1, patches - round(drop_patches * patches))


def tokens_per_layer(config: ViTConfig, num_merged: int, drop_patches: float = 0.0, merge_every: int = 1) -> list[int]:
    """Return the number of tokens before the first block and after each; at most half of the patches are merged at a time."""
    counts = [config.prefix_tokens + num_kept_patches(config.patches, drop_patches)]
    for layer in range(config.depth):
        counts.append(counts[-1] - (0 if layer % merge_every else min(num_merged, (counts[-1] - config.prefix_tokens) // 2)))
    return counts


def merged_macs(config: ViTConfig, num_merged: int, drop_patches: float = 0.0, merge_every: int = 1) -> int:
    """Compute the MACs for one image, including matching and merging."""
    counts = tokens_per_layer(config, num_merged, drop_patches, merge_every)
    macs = cost(config).macs - config.depth * _block(config, config.tokens, config.tokens)
    if config.pool == "map":
        macs -= (config.tokens - counts[-1]) * 2 * (config.width**2 + config.width)
    return macs + sum(_block(config, *sides) + _merge(config, *sides) for sides in pairwise(counts))


def merges_for_speedup(config: ViTConfig, speedup: float, drop_patches: float = 0.0, merge_every: int = 1) -> int:
    """Return the smallest number of tokens per merging layer that reaches a speed-up in MACs."""
    full_macs, best = merged_macs(config, 0, drop_patches, merge_every), 0.0
    for num_merged in range(num_kept_patches(config.patches, drop_patches) // 2 + 1):
        best = max(best, full_macs / merged_macs(config, num_merged, drop_patches, merge_every))
        if best >= speedup:
            return num_merged
    raise VitrailError(
        f"merging makes this model at most {best:.2f} times as fast, got merge_tokens={speedup:g}x; try a lower speed-up"
    )


def _block(c: ViTConfig, before: int, after: int) -> int:
    """MACs of a block: attention over all tokens, MLP on the remaining ones."""
    return 4 * before * c.width**2 + 2 * before**2 * c.width + after * c.width * (c.mlp_outputs + c.mlp)


def _merge(c: ViTConfig, before: int, after: int) -> int:
    """MACs of merging: similarities, then sums of the pairs."""
    if before == after:
        return 0
    sources = (before - c.prefix_tokens + (c.prefix_tokens + 1) % 2) // 2
    targets, pairs, head = before - c.prefix_tokens - sources, before - after, c.width // c.heads
    wide = c.width + (head if c.rotation else 0)
    return sources * targets * head + targets * pairs * wide
