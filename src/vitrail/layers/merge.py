"""Token merging (Bolya et al. 2023, "Token Merging: Your ViT But Faster"): between attention and MLP of every block, similar
tokens are merged.

Bipartite soft matching: every other patch token is a source and finds, by the cosine of the keys (mean over heads), the most
similar of the others; the most similar pairs are merged into their mean, weighted by size. A token counts as a key in
proportion to its size (proportional attention). Only indices depend on the data, not shapes, so it can be exported: one product
for the similarities, two sorts of a row, one gather of rows, and one product with a few columns that sums the sources.

b batch, h heads, t tokens, m tokens after merging, s sources, g targets, r pairs, k width of a head, d width, n tokens before
any merging.
"""

from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from vitrail.layers.position import Rotation


class Merging:
    """State of token merging during one forward pass: how many patches each token represents, and which."""

    def __init__(
        self,
        count: int,  # tokens merged per layer, at most half of the remaining patches
        prefix: int,  # prefix tokens, which are never merged
        angles: Float[Tensor, "... t k"] | None = None,  # rotary angles
        held: Float[Tensor, "b t n"] | None = None,  # which original tokens each token contains; None: not tracked
    ) -> None:
        self.count, self.prefix, self.angles, self.held = count, prefix, angles, held
        self.sizes: Tensor | None = None  # b t; None: 1 each
        self._keys: Tensor | None = None

    def bias(self, k: Float[Tensor, "b h t k"]) -> Float[Tensor, "b 1 1 t"] | None:
        """Return the bias on the attention scores by which a token of s patches counts s times; store the keys for matching."""
        self._keys = k if self._pairs(k.shape[2]) else None
        return None if self.sizes is None else self.sizes.log()[:, None, None].to(k.dtype)

    def __call__(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b m d"]:
        if self._keys is None:
            return x
        match = matched(self._keys, self._pairs(x.shape[1]), self.prefix)
        self._keys = None
        counted = torch.promote_types(x.dtype, torch.float32)  # half precision cannot count to 257
        sizes = x.new_ones(x.shape[:2], dtype=counted) if self.sizes is None else self.sizes
        if self.angles is not None:
            self.angles = self._turned(match, sizes, x.shape[0])
        if self.held is not None:
            self.held = match.added(self.held)
        x, self.sizes = match.mean(x, sizes)
        return x

    @property
    def rotation(self) -> Rotation | None:
        """Cosines and sines of the mean angles: a merged token is rotated as if at the centre of its patches."""
        return None if self.angles is None else (self.angles.cos(), self.angles.sin())

    def _pairs(self, tokens: int) -> int:
        return min(self.count, (tokens - self.prefix) // 2)

    def _turned(self, match: "Match", sizes: Float[Tensor, "b t"], batch: int) -> Float[Tensor, "b 1 m k"]:
        assert self.angles is not None
        angles = self.angles[:, 0] if self.angles.ndim == 4 else self.angles.expand(batch, -1, -1)  # the same in every head
        return match.mean(angles, sizes.to(angles.dtype))[0][:, None]


@dataclass(frozen=True)
class Match:
    """Merge assignment of a batch. The merged order is: prefix tokens, sources that stay, targets."""

    prefix: int
    sources: Int[Tensor, "b s"]  # those that stay, in order; then those that are merged
    into: Float[Tensor, "b g r"]  # 1 where a merged source meets its target

    def mean(
        self, x: Float[Tensor, "b t d"], sizes: Float[Tensor, "b t"]
    ) -> tuple[Float[Tensor, "b m d"], Float[Tensor, "b m"]]:
        """Return the size-weighted means of the merged tokens, and the new sizes."""
        *before, targets, going = self._split(x)
        *sizes_before, size, gone = self._split(sizes[..., None])
        weights = self.into.to(sizes.dtype) * gone.mT
        total = size + weights.sum(dim=-1, keepdim=True)
        merged = targets * (size / total).to(x.dtype) + (weights / total).to(x.dtype) @ going
        return torch.cat([*before, merged], dim=1), torch.cat([*sizes_before, total], dim=1)[..., 0]

    def added(self, x: Float[Tensor, "b t n"]) -> Float[Tensor, "b m n"]:
        *before, targets, going = self._split(x)
        return torch.cat([*before, targets + self.into.to(x.dtype) @ going], dim=1)

    def _split(self, x: Float[Tensor, "b t d"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Split into prefix tokens, sources that stay, targets, and sources that are merged."""
        sources, stay = taken(x, self.sources), self.sources.shape[1] - self.into.shape[2]
        return x[:, : self.prefix], sources[:, :stay], x[:, _targets(self.prefix) :: 2], sources[:, stay:]


def matched(k: Float[Tensor, "b h t k"], pairs: int, prefix: int) -> Match:
    """Match the most similar pairs. Tokens are sources and targets alternately by index; prefix tokens are excluded."""
    keys = F.normalize(reduce(torch.add, k.unbind(1)), dim=-1)  # the direction of the mean over heads
    sources, targets = keys[:, _sources(prefix) :: 2], keys[:, _targets(prefix) :: 2]
    alike = sources @ targets.mT
    best = alike.amax(dim=-1).topk(sources.shape[1], dim=-1).indices  # all of them: topk as a sort can be exported
    going, stay = best[:, :pairs], best[:, pairs:].sort(dim=-1).values
    target = taken(alike, going).argmax(dim=-1)  # only of the sources that are merged
    into = target[:, None] == torch.arange(targets.shape[1], device=k.device)[:, None]
    return Match(prefix, 2 * torch.cat([stay, going], dim=1) + _sources(prefix), into.to(keys.dtype))


def taken(x: Shaped[Tensor, "b t d"], rows: Int[Tensor, "b r"]) -> Shaped[Tensor, "b r d"]:
    """Gather tokens of each image; copying whole rows is much faster than ``torch.gather``."""
    first = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (rows + first).flatten()).unflatten(0, (-1, rows.shape[1]))


def _sources(prefix: int) -> int:
    """Return the index of the first source: the first even token after the prefix."""
    return prefix + prefix % 2


def _targets(prefix: int) -> int:
    return prefix + (prefix + 1) % 2
