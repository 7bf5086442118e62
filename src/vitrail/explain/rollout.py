"""Attention rollout (Abnar and Zuidema 2020; Dosovitskiy et al. 2021, D.8): what of the input arrives at each token in the end.

In every layer the heads are fused, the identity is added for the residual, rows are brought back to sum to one, and the layers
are multiplied through. Where tokens are merged on the way, so is what has arrived in them. b pictures, h heads, t tokens.
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
    """The product so far; layers come in the order of the forward pass, and none is kept.

    What came through attention, and what of each token came straight along the residual: where mixing is weak the second would
    drown the first, so they are kept apart. ``whole``: rows are brought back to sum to one. ``held`` says which tokens were
    merged, and is filled while layers come.
    """

    def __init__(self, held: Held = (), whole: bool = True) -> None:
        self.held, self.whole, self.layers = held, whole, 0
        self._mixed: Tensor | None = None  # b t t
        self._straight: Tensor | None = None  # b t; where tokens are merged, b t t

    def multiply(self, mixing: Float[Tensor, "b t t"]) -> None:
        """By a layer's mixing of tokens without its residual."""
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
        """Up to the layer that comes: before the first, each token is what it holds."""
        if self._mixed is None or self._straight is None:
            self._straight = self.held[0].to(like.dtype)
            self._mixed = torch.zeros_like(self._straight)
        else:
            step = joined(self.held[self.layers - 1], self.held[self.layers]).to(like.dtype)
            self._mixed, self._straight = step @ self._mixed, step @ self._straight

    @property
    def ends(self) -> tuple[Float[Tensor, "b t t"], Float[Tensor, "b t"] | Float[Tensor, "b t t"]]:
        """What came through attention, and what came straight, a row for every token there ever was."""
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
    """Rows sum to one. ``discard``: the share of each picture's weights in a layer, the smallest, that counts as none."""
    if not 0 <= discard < 1:
        raise VitrailError(f"discard must be a share from 0 to below 1, got {discard}; try discard=0.9")
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
