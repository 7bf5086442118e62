"""Attention rollout (Abnar and Zuidema 2020; Dosovitskiy et al. 2021, D.8): how much of each input reaches each output token.

In every layer the heads are fused, the identity is added for the residual, rows are normalised to sum to one, and the layers
are multiplied. Where tokens are merged, so are their rows. b images, h heads, t tokens.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.explain.attention import as_vit, count_tokens, eval_mode
from vitrail.explain.merged_tokens import TokenMembership, copy_to_patches, merge_matrix, track_merging
from vitrail.layers.tap import record_activations

HeadFusion = Literal["mean", "max", "min"]


class RolloutAccumulator:
    """Product of the layers so far; layers come in the order of the forward pass, and none is kept.

    What came through attention, and what came along the residual alone: where attention is weak the second would dominate the
    first, so they are kept apart. ``normalise``: rows are scaled to sum to one. ``membership`` says which tokens were merged,
    and is filled during the forward pass.
    """

    def __init__(self, membership: TokenMembership = (), normalise: bool = True) -> None:
        self.membership, self.normalise, self.num_layers = membership, normalise, 0
        self._attended: Tensor | None = None  # b t t
        self._residual: Tensor | None = None  # b t; with merged tokens, b t t

    def multiply(self, weights: Float[Tensor, "b t t"]) -> None:
        """Multiply by a layer's attention matrix, given without its residual."""
        sums = (
            weights.sum(dim=-1, keepdim=True) + 1 if self.normalise else weights.new_ones(weights.shape[0], weights.shape[1], 1)
        )
        attended, residual = weights / sums, 1 / sums
        self._append_tokens(weights.shape[1])
        if self.membership:
            self._merge_rows(weights)
        self.num_layers += 1
        if self._attended is None or self._residual is None:
            self._attended, self._residual = attended, residual[..., 0]
        elif self._residual.ndim == 2:
            self._attended = attended @ self._attended + residual * self._attended + attended * self._residual[:, None]
            self._residual = residual[..., 0] * self._residual
        else:
            self._attended = attended @ self._attended + residual * self._attended + attended @ self._residual
            self._residual = residual * self._residual

    def _append_tokens(self, count: int) -> None:
        """Extend the product by tokens that join behind the others, which were no mixture of others before."""
        if self.membership or self._attended is None or self._residual is None:
            return
        more = count - self._attended.shape[1]
        self._attended, self._residual = F.pad(self._attended, (0, more, 0, more)), F.pad(self._residual, (0, more), value=1.0)

    def _merge_rows(self, like: Tensor) -> None:
        """Merge rows up to the next layer: before the first, each token is its members."""
        if self._attended is None or self._residual is None:
            self._residual = self.membership[0].to(like.dtype)
            self._attended = torch.zeros_like(self._residual)
        else:
            step = merge_matrix(self.membership[self.num_layers - 1], self.membership[self.num_layers]).to(like.dtype)
            self._attended, self._residual = step @ self._attended, step @ self._residual

    @property
    def attended_and_residual(self) -> tuple[Float[Tensor, "b t t"], Float[Tensor, "b t"] | Float[Tensor, "b t t"]]:
        """Return what came through attention and what came along the residual, a row for every original token."""
        assert self._attended is not None
        assert self._residual is not None
        if not self.membership:
            return self._attended, self._residual
        step = merge_matrix(self.membership[-2], self.membership[-1]).to(self._attended.dtype)
        return copy_to_patches(step @ self._attended, self.membership[-1]), copy_to_patches(
            step @ self._residual, self.membership[-1]
        )

    @property
    def product(self) -> Float[Tensor, "b t t"]:
        attended, residual = self.attended_and_residual
        return attended + (torch.diag_embed(residual) if residual.ndim == 2 else residual)


@torch.no_grad()
def rollout(
    model: nn.Module, images: Float[Tensor, "b c height width"], fuse: HeadFusion = "mean", discard: float = 0.0
) -> Float[Tensor, "b t t"]:
    """Return the rollout, rows that sum to one; less if a head adds tokens to the last blocks, whose columns are left out.

    ``discard``: fraction of each layer's weights, the smallest, set to zero.
    """
    if not 0 <= discard < 1:
        raise VitrailError(f"discard must be a fraction from 0 to below 1, got {discard}; try discard=0.9")
    vit = as_vit(model)

    def visit(weights: Float[Tensor, "b h t t"]) -> Tensor:
        accumulator.multiply(_discard_smallest(fuse_heads(weights, fuse), discard))
        return weights.new_empty(0)

    with (
        eval_mode(vit),
        track_merging(vit) as membership,
        record_activations(vit, "blocks.*.attention.weights", transform=visit),
    ):
        accumulator = RolloutAccumulator(membership)
        vit.features(images)
    tokens = count_tokens(vit, images)
    return accumulator.product[:, :tokens, :tokens]


def fuse_heads(weights: Float[Tensor, "b h t t"], fusion: HeadFusion) -> Float[Tensor, "b t t"]:
    match fusion:
        case "mean":
            return weights.mean(dim=1)
        case "max":
            return weights.amax(dim=1)
        case "min":
            return weights.amin(dim=1)
    raise VitrailError(f"heads are fused by mean, max or min, got {fusion!r}; try fuse='mean'")


def _discard_smallest(weights: Float[Tensor, "b t t"], fraction: float) -> Float[Tensor, "b t t"]:
    count = int(fraction * weights.shape[-1] ** 2)
    if not count:
        return weights
    flat = weights.flatten(1).clone()
    flat.scatter_(1, flat.argsort(dim=1)[:, :count], 0.0)
    return flat.view_as(weights)
