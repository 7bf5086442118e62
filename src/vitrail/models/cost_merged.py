"""MACs with token merging and dropped patches (``models.token_reduced_vit``), from the config alone. Torch-free."""

from itertools import pairwise

from vitrail.errors import VitrailError
from vitrail.models.cost import cost
from vitrail.models.settings import ViTConfig


def kept(patches: int, drop: float) -> int:
    """Return the number of patches left after dropping this fraction, at least one."""
    return max(1, patches - round(drop * patches))


def tokens(config: ViTConfig, count: int, drop: float = 0.0, every: int = 1) -> list[int]:
    """Return the number of tokens before the first block and after each; at most half of the patches are merged at a time."""
    found = [config.prefix + kept(config.patches, drop)]
    for layer in range(config.depth):
        found.append(found[-1] - (0 if layer % every else min(count, (found[-1] - config.prefix) // 2)))
    return found


def merged_macs(config: ViTConfig, count: int, drop: float = 0.0, every: int = 1) -> int:
    """Compute the MACs for one image, including matching and merging."""
    each = tokens(config, count, drop, every)
    plain = cost(config).macs - config.depth * _block(config, config.tokens, config.tokens)
    if config.pool == "map":
        plain -= (config.tokens - each[-1]) * 2 * (config.width**2 + config.width)
    return plain + sum(_block(config, *sides) + _merge(config, *sides) for sides in pairwise(each))


def count_for(config: ViTConfig, speed: float, drop: float = 0.0, every: int = 1) -> int:
    """Return the smallest number of tokens per merging layer that reaches a speed-up in MACs."""
    whole, most = merged_macs(config, 0, drop, every), 0.0
    for count in range(kept(config.patches, drop) // 2 + 1):
        most = max(most, whole / merged_macs(config, count, drop, every))
        if most >= speed:
            return count
    raise VitrailError(f"merging makes this model at most {most:.2f} times as fast, got merge={speed:g}x; try a lower speed-up")


def _block(c: ViTConfig, before: int, after: int) -> int:
    """MACs of a block: attention over all tokens, MLP on the remaining ones."""
    return 4 * before * c.width**2 + 2 * before**2 * c.width + 2 * after * c.width * c.mlp


def _merge(c: ViTConfig, before: int, after: int) -> int:
    """MACs of merging: similarities, then sums of the pairs."""
    if before == after:
        return 0
    sources = (before - c.prefix + (c.prefix + 1) % 2) // 2
    targets, pairs, head = before - c.prefix - sources, before - after, c.width // c.heads
    wide = c.width + (head if c.position == "rotary" else 0)
    return sources * targets * head + targets * pairs * wide
