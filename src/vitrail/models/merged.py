"""A Vision Transformer with fewer tokens: similar ones are merged in the blocks (Bolya et al. 2023; ``layers.token_merging``),
and patches of low variance are dropped before the first block.

It is a ``ViT`` that shares the weights of another. The taps ``membership.*`` record which original tokens each token
contains: ``membership.3`` at the input of block 3, the last one after all blocks. b batch, c channels, n patches and prefix
tokens, t tokens, d width.
"""

from copy import copy
from typing import Any, TypeVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.layers.merge import Merging
from vitrail.layers.position import Grid, Places
from vitrail.layers.tap import Tap, watched
from vitrail.models.build import Model
from vitrail.models.cost_merged import count_for, kept
from vitrail.models.faster import Faster
from vitrail.models.vit import ViT

M = TypeVar("M", bound=nn.Module)


class Merged(ViT):
    """A ViT that merges ``num_merged`` tokens in the first block and every ``merge_every``-th from there, and drops the
    fraction ``drop_patches`` of the patches."""

    def __init__(self, model: ViT, count: int = 0, drop: float = 0.0, every: int = 1) -> None:
        nn.Module.__init__(self)
        vars(self).update(vars(twin(model)))  # share everything with the other ViT
        self.count, self.drop, self.every = count, drop, every
        self.held = nn.ModuleList(Tap() for _ in range(self.config.depth + 1))

    def places(self, images: Float[Tensor, "b c height width"]) -> Places | None:
        """Return the indices of the patches with the highest variance, in raster order."""
        if not self.drop:
            return None
        p, q = self.config.stride
        inside = rearrange(images, "b c (y p) (x q) -> b (y x) c (p q)", p=p, q=q)
        lively = inside.float().var(dim=-1, correction=0).sum(dim=-1)
        some = lively.topk(kept(lively.shape[1], self.drop), dim=1).indices
        return some.sort(dim=1).values

    def gathered(self, x: Float[Tensor, "b n d"], grid: Grid, places: Places | None = None) -> Float[Tensor, "b d"]:
        x, sizes = self._merged(x, grid, places)
        return self.pooled_norm(self.pool(x, sizes))

    def encode(self, x: Float[Tensor, "b n d"], grid: Grid, places: Places | None = None) -> Float[Tensor, "b t d"]:
        return self._merged(x, grid, places)[0]

    def _merged(
        self, x: Float[Tensor, "b n d"], grid: Grid, places: Places | None
    ) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "b t"] | None]:
        """Return the remaining tokens and the number of patches each represents."""
        x, layers = self.prepended(x), self.config.layers_with_position
        told = watched(self.held)
        merging = Merging(
            self.count,
            self.config.prefix,
            None if self.rotary is None else self.rotary.angles(grid, x.device, places),
            self._apart(x, grid, places) if told or (self.count and any(table is not None for table in layers[1:])) else None,
        )
        for layer, (table, block) in enumerate(zip(layers, self.blocks, strict=True)):
            x = x if table is None else self._placed(table, x, grid, places, merging)
            x = self.dropout(x) if layer == 0 else x
            merging.count = 0 if layer % self.every else self.count
            if told:
                self.held[layer](merging.held)
            x = block(x, merging.rotation, merging)
        if told:
            self.held[-1](merging.held)
        return self.norm(x), merging.sizes

    def _apart(self, x: Float[Tensor, "b t d"], grid: Grid, places: Places | None) -> Float[Tensor, "b t n"]:
        """Return the initial membership: each token contains itself."""
        prefix, patches = self.config.prefix, grid[0] * grid[1]
        every = torch.arange(prefix + patches, device=x.device)
        there = every.expand(x.shape[0], -1)
        if places is not None:
            there = torch.cat([there[:, :prefix], places + prefix], dim=1)
        return (there[..., None] == every).to(torch.promote_types(x.dtype, torch.float32))

    def _placed(
        self, table: int, x: Float[Tensor, "b t d"], grid: Grid, places: Places | None, merging: Merging
    ) -> Float[Tensor, "b t d"]:
        """Add a position table; a merged token gets the mean over its patches."""
        add: Any = self.positions[table]
        if merging.sizes is None or merging.held is None:
            return add(x, grid, places)
        rows = add(x.new_zeros(1, merging.held.shape[2], x.shape[2]), grid)
        return x + (merging.held / merging.sizes[..., None]).to(x.dtype) @ rows

    def extra_repr(self) -> str:
        return f"merge={self.count}, every={self.every}, drop={self.drop:g}"


def merged(model: Model, how: Faster) -> Model:
    """Return a token-reduced model, or the model itself if nothing is to be merged or dropped."""
    if not how.drop and how.merge in (0, "1x"):
        return model
    if not isinstance(model, ViT):
        raise VitrailError("a ResNet has no tokens to merge and no patches to drop; load a Vision Transformer or a hybrid")
    if model.config.position == "relative":
        raise VitrailError(
            "relative positions count the offsets between all patches, so none can be merged or dropped; "
            "leave merge and drop out, or train with position='rotary'"
        )
    count = how.merge if isinstance(how.merge, int) else count_for(model.config, how.speed or 1.0, how.drop, how.every)
    return Merged(model, count, how.drop, how.every)


def compiled(model: Model) -> Model:
    """Return a compiled copy. Its first batch of each size takes a minute; ``explain`` runs an uncompiled copy."""
    made = twin(model)
    made.compile()
    return made


def twin(model: M) -> M:
    """Return a module that shares the weights, not compiled."""
    made = copy(model)
    vars(made).update({name: copy(value) for name, value in vars(made).items() if isinstance(value, dict)})
    return made
