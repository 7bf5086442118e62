"""Token merging (Bolya et al. 2023, "Token Merging: Your ViT But Faster"): between attention and MLP of every block, tokens
that are alike become one.

Bipartite soft matching: every other patch token is a source and finds, by the cosine of the keys (mean over heads), the most
similar of the others; the most similar pairs are merged into the mean of what they hold, weighed by size. What a token weighs
as a key follows its size (proportional attention). Nothing depends on the data but indices, so it can be exported: one product
for the similarities, two sorts of a row, one gather of rows, and one product with a few columns that adds the sources up.

b batch, h heads, t tokens, m of them after merging, s sources, g targets, r pairs, k width of a head, d width, n tokens before
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
    """One pass of a batch through the blocks: how many patches each token stands for by now, and which ones."""

    def __init__(
        self,
        count: int,  # tokens that are merged in each layer, at most half of the patches that are left
        prefix: int,  # tokens in front, which are never merged
        angles: Float[Tensor, "... t k"] | None = None,  # of rotary positions
        held: Float[Tensor, "b t n"] | None = None,  # what each token holds; none: nobody wants to know
    ) -> None:
        self.count, self.prefix, self.angles, self.held = count, prefix, angles, held
        self.sizes: Tensor | None = None  # b t; none: one each
        self._keys: Tensor | None = None

    def bias(self, k: Float[Tensor, "b h t k"]) -> Float[Tensor, "b 1 1 t"] | None:
        """What is added to the scores of attention: a token of s patches counts s times. Notes the keys on the way."""
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
        """A merged token is turned as one in the middle of its patches: angles grow evenly with the place."""
        return None if self.angles is None else (self.angles.cos(), self.angles.sin())

    def _pairs(self, tokens: int) -> int:
        return min(self.count, (tokens - self.prefix) // 2)

    def _turned(self, match: "Match", sizes: Float[Tensor, "b t"], batch: int) -> Float[Tensor, "b 1 m k"]:
        assert self.angles is not None
        angles = self.angles[:, 0] if self.angles.ndim == 4 else self.angles.expand(batch, -1, -1)  # alike in every head
        return match.mean(angles, sizes.to(angles.dtype))[0][:, None]


@dataclass(frozen=True)
class Match:
    """Who is merged into whom, in every picture. Afterwards come the tokens in front, the sources that stay, the targets."""

    prefix: int
    sources: Int[Tensor, "b s"]  # those that stay, in their order; then those that go
    into: Float[Tensor, "b g r"]  # 1 where one that goes meets its target

    def mean(
        self, x: Float[Tensor, "b t d"], sizes: Float[Tensor, "b t"]
    ) -> tuple[Float[Tensor, "b m d"], Float[Tensor, "b m"]]:
        """Weighed by size; and the new sizes."""
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
        """Those in front, the sources that stay, the targets, the sources that go."""
        sources, stay = taken(x, self.sources), self.sources.shape[1] - self.into.shape[2]
        return x[:, : self.prefix], sources[:, :stay], x[:, _targets(self.prefix) :: 2], sources[:, stay:]


def matched(k: Float[Tensor, "b h t k"], pairs: int, prefix: int) -> Match:
    """The most similar pairs. Tokens are sources and targets in turn, from the first of all; those in front take no part."""
    keys = F.normalize(reduce(torch.add, k.unbind(1)), dim=-1)  # the direction of the mean over heads
    sources, targets = keys[:, _sources(prefix) :: 2], keys[:, _targets(prefix) :: 2]
    alike = sources @ targets.mT
    best = alike.amax(dim=-1).topk(sources.shape[1], dim=-1).indices  # all of them: a sort that can be exported
    going, stay = best[:, :pairs], best[:, pairs:].sort(dim=-1).values
    target = taken(alike, going).argmax(dim=-1)  # of those that go alone
    into = target[:, None] == torch.arange(targets.shape[1], device=k.device)[:, None]
    return Match(prefix, 2 * torch.cat([stay, going], dim=1) + _sources(prefix), into.to(keys.dtype))


def taken(x: Shaped[Tensor, "b t d"], rows: Int[Tensor, "b r"]) -> Shaped[Tensor, "b r d"]:
    """Some rows of each picture, copied whole: far quicker than to gather number by number."""
    first = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (rows + first).flatten()).unflatten(0, (-1, rows.shape[1]))


def _sources(prefix: int) -> int:
    """The first source: the first even token behind those in front."""
    return prefix + prefix % 2


def _targets(prefix: int) -> int:
    return prefix + (prefix + 1) % 2
