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
    """The product so far; layers come in the order of the forward pass, and none is kept."""

    def __init__(self) -> None:
        self.product: Tensor | None = None

    def multiply(self, mixing: Float[Tensor, "b t t"]) -> None:
        """By a layer's mixing of tokens without its residual."""
        whole = mixing + torch.eye(mixing.shape[-1], device=mixing.device, dtype=mixing.dtype)
        whole = whole / whole.sum(dim=-1, keepdim=True)
        self.product = whole if self.product is None else whole @ self.product


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
    assert rolled.product is not None
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
