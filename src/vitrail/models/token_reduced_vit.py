"""A Vision Transformer with fewer tokens: similar ones are merged in the blocks (Bolya et al. 2023; ``layers.token_merging``),
and patches of low variance are dropped before the first block.

It is a ``ViT`` that shares the weights of another. The taps ``membership.*`` record which original tokens each token
contains: ``membership.3`` at the input of block 3, the last one after all blocks. b batch, c channels, n patches and prefix
tokens, t tokens, d width, f width of the representation.
"""

from copy import copy
from typing import Any, TypeVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.layers.position import Grid, PatchIndices
from vitrail.layers.tap import Tap, is_recording
from vitrail.layers.token_merging import TokenMerger
from vitrail.models.cost.token_merging import num_kept_patches
from vitrail.models.vit import ViT

M = TypeVar("M", bound=nn.Module)


class TokenReducedViT(ViT):
    """A ViT that merges ``num_merged`` tokens in the first block and every ``merge_every``-th from there, and drops the
    fraction ``drop_patches`` of the patches."""

    def __init__(self, model: ViT, num_merged: int = 0, drop_patches: float = 0.0, merge_every: int = 1) -> None:
        nn.Module.__init__(self)
        vars(self).update(vars(shallow_copy(model)))  # share everything with the other ViT
        self.num_merged, self.drop_patches, self.merge_every = num_merged, drop_patches, merge_every
        self.membership = nn.ModuleList(Tap() for _ in range(self.config.depth + 1))

    def kept_patches(self, images: Float[Tensor, "b c height width"]) -> PatchIndices | None:
        """Return the indices of the patches with the highest variance, in raster order."""
        if not self.drop_patches:
            return None
        p, q = self.config.patch_stride
        pixels = rearrange(images, "b c (y p) (x q) -> b (y x) c (p q)", p=p, q=q)
        variance = pixels.float().var(dim=-1, correction=0).sum(dim=-1)
        indices = variance.topk(num_kept_patches(variance.shape[1], self.drop_patches), dim=1).indices
        return indices.sort(dim=1).values

    def encode_and_pool(
        self, x: Float[Tensor, "b n d"], grid: Grid, patch_indices: PatchIndices | None = None
    ) -> Float[Tensor, "b f"]:
        x, sizes = self._encode_merged(x, grid, patch_indices)
        return self.pooled_norm(self.pool(x, sizes))

    def encode(
        self, x: Float[Tensor, "b n d"], grid: Grid, patch_indices: PatchIndices | None = None
    ) -> Float[Tensor, "b t d"]:
        return self._encode_merged(x, grid, patch_indices)[0]

    def _encode_merged(
        self, x: Float[Tensor, "b n d"], grid: Grid, patch_indices: PatchIndices | None
    ) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "b t"] | None]:
        """Return the remaining tokens and the number of patches each represents."""
        x, layers = self.add_prefix_tokens(x), self.config.layers_with_position
        recording = is_recording(self.membership)
        merger = TokenMerger(
            self.num_merged,
            self.config.prefix_tokens,
            self._rotary_angles(x, grid, patch_indices),
            self._initial_membership(x, grid, patch_indices)
            if recording or (self.num_merged and any(table is not None for table in layers[1:]))
            else None,
        )
        for layer, (table, block) in enumerate(zip(layers, self.blocks, strict=True)):
            x = x if table is None else self._add_position(table, x, grid, patch_indices, merger)
            x = self.embed_norm(self.dropout(x)) if layer == 0 else x
            merger.num_merged = 0 if layer % self.merge_every else self.num_merged
            if recording:
                self.membership[layer](merger.membership)
            x = block(x, merger.rotation, None, merger)
        if recording:
            self.membership[-1](merger.membership)
        return self.norm(x), merger.sizes

    def _rotary_angles(
        self, x: Float[Tensor, "b t d"], grid: Grid, patch_indices: PatchIndices | None
    ) -> Float[Tensor, "... t k"] | None:
        rotary: Any = next(iter(self.rotary), None)  # the same in every layer, or ``speed_up`` refuses
        return None if rotary is None else rotary.angles(grid, x.device, patch_indices)

    def _initial_membership(
        self, x: Float[Tensor, "b t d"], grid: Grid, patch_indices: PatchIndices | None
    ) -> Float[Tensor, "b t n"]:
        """Return the initial membership: each token contains itself."""
        prefix, patches = self.config.prefix_tokens, grid[0] * grid[1]
        all_tokens = torch.arange(prefix + patches, device=x.device)
        present = all_tokens.expand(x.shape[0], -1)
        if patch_indices is not None:
            present = torch.cat([present[:, :prefix], patch_indices + prefix], dim=1)
        return (present[..., None] == all_tokens).to(torch.promote_types(x.dtype, torch.float32))

    def _add_position(
        self, table: int, x: Float[Tensor, "b t d"], grid: Grid, patch_indices: PatchIndices | None, merger: TokenMerger
    ) -> Float[Tensor, "b t d"]:
        """Add a position table; a merged token gets the mean over its patches."""
        add: Any = self.positions[table]
        if merger.sizes is None or merger.membership is None:
            return add(x, grid, patch_indices)
        rows = add(x.new_zeros(1, merger.membership.shape[2], x.shape[2]), grid)
        return x + (merger.membership / merger.sizes[..., None]).to(x.dtype) @ rows

    def extra_repr(self) -> str:
        return f"merge_tokens={self.num_merged}, merge_every={self.merge_every}, drop_patches={self.drop_patches:g}"


def shallow_copy(model: M) -> M:
    """Return a module that shares the weights, not compiled."""
    copied = copy(model)
    vars(copied).update({name: copy(value) for name, value in vars(copied).items() if isinstance(value, dict)})
    return copied
