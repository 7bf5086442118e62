"""Attention rollout (Abnar and Zuidema 2020; Dosovitskiy et al. 2021, D.8): how much of each input reaches each output token.

In every layer the heads are fused, the identity is added for the residual, rows are normalised to sum to one, and the layers
are multiplied. Where tokens are merged, so are their rows. b images, h heads, t tokens.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.explain.attention import at_rest, checked
from vitrail.explain.held import Held, handed, holding, joined
from vitrail.layers.tap import recording

Fuse = Literal["mean", "max", "min"]


class Rolled:
    """Product of the layers so far; layers come in the order of the forward pass, and none is kept.

    What came through attention, and what came along the residual alone: where attention is weak the second would dominate the
    first, so they are kept apart. ``normalise``: rows are scaled to sum to one. ``membership`` says which tokens were merged,
    and is filled during the forward pass.
    """

    def __init__(self, held: Held = (), whole: bool = True) -> None:
        self.held, self.whole, self.layers = held, whole, 0
        self._mixed: Tensor | None = None  # b t t
        self._straight: Tensor | None = None  # b t; with merged tokens, b t t

    def multiply(self, mixing: Float[Tensor, "b t t"]) -> None:
        """Multiply by a layer's attention matrix, given without its residual."""
        sums = mixing.sum(dim=-1, keepdim=True) + 1 if self.whole else mixing.new_ones(mixing.shape[0], mixing.shape[1], 1)
        brought, kept = mixing / sums, 1 / sums
        if self.held:
            self._merge(mixing)
        self.layers += 1
        if self._mixed is None or self._straight is None:
            self._mixed, self._straight = brought, kept[..., 0]
        elif self._straight.ndim == 2:
            self._mixed = brought @ self._mixed + kept * self._mixed + brought * self._straight[:, None]
            self._straight = kept[..., 0] * self._straight
        else:
            self._mixed = brought @ self._mixed + kept * self._mixed + brought @ self._straight
            self._straight = kept * self._straight

    def _merge(self, like: Tensor) -> None:
        """Merge rows up to the next layer: before the first, each token is its members."""
        if self._mixed is None or self._straight is None:
            self._straight = self.held[0].to(like.dtype)
            self._mixed = torch.zeros_like(self._straight)
        else:
            step = joined(self.held[self.layers - 1], self.held[self.layers]).to(like.dtype)
            self._mixed, self._straight = step @ self._mixed, step @ self._straight

    @property
    def ends(self) -> tuple[Float[Tensor, "b t t"], Float[Tensor, "b t"] | Float[Tensor, "b t t"]]:
        """Return what came through attention and what came along the residual, a row for every original token."""
        assert self._mixed is not None
        assert self._straight is not None
        if not self.held:
            return self._mixed, self._straight
        step = joined(self.held[-2], self.held[-1]).to(self._mixed.dtype)
        return handed(step @ self._mixed, self.held[-1]), handed(step @ self._straight, self.held[-1])

    @property
    def product(self) -> Float[Tensor, "b t t"]:
        mixed, straight = self.ends
        return mixed + (torch.diag_embed(straight) if straight.ndim == 2 else straight)


@torch.no_grad()
def rollout(
    model: nn.Module, images: Float[Tensor, "b c height width"], fuse: Fuse = "mean", discard: float = 0.0
) -> Float[Tensor, "b t t"]:
    """Return the rollout, rows that sum to one. ``discard``: fraction of each layer's weights, the smallest, set to zero."""
    if not 0 <= discard < 1:
        raise VitrailError(f"discard must be a fraction from 0 to below 1, got {discard}; try discard=0.9")
    vit = checked(model)

    def take(weights: Float[Tensor, "b h t t"]) -> Tensor:
        rolled.multiply(_without_smallest(fused(weights, fuse), discard))
        return weights.new_empty(0)

    with at_rest(vit), holding(vit) as held, recording(vit, "blocks.*.attention.weights", keep=take):
        rolled = Rolled(held)
        vit.features(images)
    return rolled.product


def fused(weights: Float[Tensor, "b h t t"], how: Fuse) -> Float[Tensor, "b t t"]:
    match how:
        case "mean":
            return weights.mean(dim=1)
        case "max":
            return weights.amax(dim=1)
        case "min":
            return weights.amin(dim=1)
    raise VitrailError(f"heads are fused by mean, max or min, got {how!r}; try fuse='mean'")


def _without_smallest(mixing: Float[Tensor, "b t t"], share: float) -> Float[Tensor, "b t t"]:
    count = int(share * mixing.shape[-1] ** 2)
    if not count:
        return mixing
    flat = mixing.flatten(1).clone()
    flat.scatter_(1, flat.argsort(dim=1)[:, :count], 0.0)
    return flat.view_as(mixing)
