"""Attention rollout (Abnar and Zuidema 2020; Dosovitskiy et al. 2021, D.8): what of the input arrives at each token in the end.

In every layer the heads are fused, the identity is added for the residual, rows are brought back to sum to one, and the layers
are multiplied through. b pictures, h heads, t tokens.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.explain.attention import at_rest, checked
from vitrail.layers.tap import recording

Fuse = Literal["mean", "max", "min"]


class Rolled:
    """The product so far; layers come in the order of the forward pass, and none is kept.

    What came through attention, and what of each token came straight along the residual: where mixing is weak the second would
    drown the first, so they are kept apart.
    """

    def __init__(self) -> None:
        self.mixed: Tensor | None = None  # b t t
        self.straight: Tensor | None = None  # b t

    def multiply(self, mixing: Float[Tensor, "b t t"]) -> None:
        """By a layer's mixing of tokens without its residual."""
        whole = mixing.sum(dim=-1, keepdim=True) + 1
        brought, kept = mixing / whole, 1 / whole
        if self.mixed is None or self.straight is None:
            self.mixed, self.straight = brought, kept[..., 0]
            return
        self.mixed = brought @ self.mixed + kept * self.mixed + brought * self.straight[:, None]
        self.straight = kept[..., 0] * self.straight

    @property
    def product(self) -> Float[Tensor, "b t t"]:
        assert self.mixed is not None
        assert self.straight is not None
        return self.mixed + torch.diag_embed(self.straight)


@torch.no_grad()
def rollout(
    model: nn.Module, images: Float[Tensor, "b c height width"], fuse: Fuse = "mean", discard: float = 0.0
) -> Float[Tensor, "b t t"]:
    """Rows sum to one. ``discard``: the share of each picture's weights in a layer, the smallest, that counts as none."""
    if not 0 <= discard < 1:
        raise VitrailError(f"discard must be a share from 0 to below 1, got {discard}; try discard=0.9")
    vit, rolled = checked(model), Rolled()

    def take(weights: Float[Tensor, "b h t t"]) -> Tensor:
        rolled.multiply(_without_smallest(fused(weights, fuse), discard))
        return weights.new_empty(0)

    with at_rest(vit), recording(vit, "blocks.*.attention.weights", keep=take):
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
