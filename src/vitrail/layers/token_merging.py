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

from vitrail.layers.rotary import Rotation


class TokenMerger:
    """State of token merging during one forward pass: how many patches each token represents, and which."""

    def __init__(
        self,
        num_merged: int,  # tokens merged per layer, at most half of the remaining patches
        prefix: int,  # prefix tokens, which are never merged
        angles: Float[Tensor, "... t k"] | None = None,  # rotary angles
        membership: Float[Tensor, "b t n"] | None = None,  # which original tokens each token contains; None: not tracked
    ) -> None:
        self.num_merged, self.prefix, self.angles, self.membership = num_merged, prefix, angles, membership
        self.sizes: Tensor | None = None  # b t; None: 1 each
        self._keys: Tensor | None = None

    def attention_bias(self, k: Float[Tensor, "b h t k"]) -> Float[Tensor, "b 1 1 t"] | None:
        """Return the bias on the attention scores by which a token of s patches counts s times; store the keys for matching."""
        self._keys = k if self._num_pairs(k.shape[2]) else None
        return None if self.sizes is None else self.sizes.log()[:, None, None].to(k.dtype)

    def __call__(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b m d"]:
        if self._keys is None:
            return x
        match = bipartite_match(self._keys, self._num_pairs(x.shape[1]), self.prefix)
        self._keys = None
        size_dtype = torch.promote_types(x.dtype, torch.float32)  # half precision cannot count to 257
        sizes = x.new_ones(x.shape[:2], dtype=size_dtype) if self.sizes is None else self.sizes
        if self.angles is not None:
            self.angles = self._merge_angles(match, sizes, x.shape[0])
        if self.membership is not None:
            self.membership = match.sum(self.membership)
        x, self.sizes = match.mean(x, sizes)
        return x

    @property
    def rotation(self) -> Rotation | None:
        """Cosines and sines of the mean angles: a merged token is rotated as if at the centre of its patches."""
        return None if self.angles is None else (self.angles.cos(), self.angles.sin())

    def _num_pairs(self, tokens: int) -> int:
        return min(self.num_merged, (tokens - self.prefix) // 2)

    def _merge_angles(self, match: "BipartiteMatch", sizes: Float[Tensor, "b t"], batch: int) -> Float[Tensor, "b 1 m k"]:
        assert self.angles is not None
        angles = self.angles[:, 0] if self.angles.ndim == 4 else self.angles.expand(batch, -1, -1)  # the same in every head
        return match.mean(angles, sizes.to(angles.dtype))[0][:, None]


@dataclass(frozen=True)
class BipartiteMatch:
    """Merge assignment of a batch. The merged order is: prefix tokens, sources that stay, targets."""

    prefix: int
    sources: Int[Tensor, "b s"]  # those that stay, in order; then those that are merged
    assignment: Float[Tensor, "b g r"]  # 1 where a merged source meets its target

    def mean(
        self, x: Float[Tensor, "b t d"], sizes: Float[Tensor, "b t"]
    ) -> tuple[Float[Tensor, "b m d"], Float[Tensor, "b m"]]:
        """Return the size-weighted means of the merged tokens, and the new sizes."""
        *unmerged, targets, merged_sources = self._split(x)
        *unmerged_sizes, size, merged_sizes = self._split(sizes[..., None])
        weights = self.assignment.to(sizes.dtype) * merged_sizes.mT
        total = size + weights.sum(dim=-1, keepdim=True)
        merged = targets * (size / total).to(x.dtype) + (weights / total).to(x.dtype) @ merged_sources
        return torch.cat([*unmerged, merged], dim=1), torch.cat([*unmerged_sizes, total], dim=1)[..., 0]

    def sum(self, x: Float[Tensor, "b t n"]) -> Float[Tensor, "b m n"]:
        *unmerged, targets, merged_sources = self._split(x)
        return torch.cat([*unmerged, targets + self.assignment.to(x.dtype) @ merged_sources], dim=1)

    def _split(self, x: Float[Tensor, "b t d"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Split into prefix tokens, sources that stay, targets, and sources that are merged."""
        sources, num_staying = gather_tokens(x, self.sources), self.sources.shape[1] - self.assignment.shape[2]
        return x[:, : self.prefix], sources[:, :num_staying], x[:, _first_target(self.prefix) :: 2], sources[:, num_staying:]


def bipartite_match(k: Float[Tensor, "b h t k"], pairs: int, prefix: int) -> BipartiteMatch:
    """Match the most similar pairs. Tokens are sources and targets alternately by index; prefix tokens are excluded."""
    keys = F.normalize(reduce(torch.add, k.unbind(1)), dim=-1)  # the direction of the mean over heads
    sources, targets = keys[:, _first_source(prefix) :: 2], keys[:, _first_target(prefix) :: 2]
    similarity = sources @ targets.mT
    best = similarity.amax(dim=-1).topk(sources.shape[1], dim=-1).indices  # all of them: topk as a sort can be exported
    merged, staying = best[:, :pairs], best[:, pairs:].sort(dim=-1).values
    target = gather_tokens(similarity, merged).argmax(dim=-1)  # only of the sources that are merged
    assignment = target[:, None] == torch.arange(targets.shape[1], device=k.device)[:, None]
    return BipartiteMatch(prefix, 2 * torch.cat([staying, merged], dim=1) + _first_source(prefix), assignment.to(keys.dtype))


def gather_tokens(x: Shaped[Tensor, "b t d"], indices: Int[Tensor, "b r"]) -> Shaped[Tensor, "b r d"]:
    """Gather tokens of each image; copying whole rows is much faster than ``torch.gather``."""
    first = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (indices + first).flatten()).unflatten(0, (-1, indices.shape[1]))


def _first_source(prefix: int) -> int:
    """Return the index of the first source: the first even token after the prefix."""
    return prefix + prefix % 2


def _first_target(prefix: int) -> int:
    return prefix + (prefix + 1) % 2
