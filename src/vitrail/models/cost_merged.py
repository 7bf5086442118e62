"""What merging tokens and dropping patches save, in MACs (``models.merged``), from the settings alone and without torch."""

from itertools import pairwise

from vitrail.errors import VitrailError
from vitrail.models.cost import cost
from vitrail.models.settings import ViTConfig


def kept(patches: int, drop: float) -> int:
    """Patches that are looked at when this share is dropped: one at least."""
    return max(1, patches - round(drop * patches))


def tokens(config: ViTConfig, count: int, drop: float = 0.0, every: int = 1) -> list[int]:
    """Before the first block, and after each: in every so many ``count`` fewer, never more than half of the patches left."""
    found = [config.prefix + kept(config.patches, drop)]
    for layer in range(config.depth):
        found.append(found[-1] - (0 if layer % every else min(count, (found[-1] - config.prefix) // 2)))
    return found


def merged_macs(config: ViTConfig, count: int, drop: float = 0.0, every: int = 1) -> int:
    """Of one picture, with those of finding and merging the pairs."""
    each = tokens(config, count, drop, every)
    plain = cost(config).macs - config.depth * _block(config, config.tokens, config.tokens)
    if config.pool == "map":
        plain -= (config.tokens - each[-1]) * 2 * (config.width**2 + config.width)
    return plain + sum(_block(config, *sides) + _merge(config, *sides) for sides in pairwise(each))


def count_for(config: ViTConfig, speed: float, drop: float = 0.0, every: int = 1) -> int:
    """The fewest tokens, in every so many layers, whose merging makes a model so many times as fast."""
    whole, most = merged_macs(config, 0, drop, every), 0.0
    for count in range(kept(config.patches, drop) // 2 + 1):
        most = max(most, whole / merged_macs(config, count, drop, every))
        if most >= speed:
            return count
    raise VitrailError(f"merging makes this model at most {most:.2f} times as fast, got merge={speed:g}x; try a lower speed")


def _block(c: ViTConfig, before: int, after: int) -> int:
    """Attention over all tokens, the MLP on those that are left."""
    return 4 * before * c.width**2 + 2 * before**2 * c.width + 2 * after * c.width * c.mlp


def _merge(c: ViTConfig, before: int, after: int) -> int:
    """Similarities, then sums of the pairs."""
    if before == after:
        return 0
    sources = (before - c.prefix + (c.prefix + 1) % 2) // 2
    targets, pairs, head = before - c.prefix - sources, before - after, c.width // c.heads
    wide = c.width + (head if c.position == "rotary" else 0)
    return sources * targets * head + targets * pairs * wide
