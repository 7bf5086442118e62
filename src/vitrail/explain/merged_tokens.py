"""Mapping from merged tokens back to patches (``models.token_reduced_vit``): the members of each token, layer by layer.

For a model that merges and drops nothing the list stays empty, and callers treat tokens as patches. b images, t tokens of a
layer, m of the next, n all tokens there ever were; a dropped patch is a member of none.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.layers.tap import record_activations
from vitrail.models.token_reduced_vit import TokenReducedViT
from vitrail.models.vit import ViT

TokenMembership = Sequence[Float[Tensor, "b _ n"]]  # at the input of every layer, and at the end


@contextmanager
def track_merging(vit: ViT) -> Iterator[TokenMembership]:
    """Yield a list that is filled during the forward pass: an entry is there as soon as its layer begins."""
    membership: list[Tensor] = []
    if not isinstance(vit, TokenReducedViT) or not (vit.num_merged or vit.drop_patches):
        yield membership
        return

    def keep(matrix: Tensor) -> Tensor:
        membership.append(matrix)
        return matrix

    with record_activations(vit, "membership.*", transform=keep):
        yield membership


def split_over_patches(values: Float[Tensor, "b *q t"], membership: Float[Tensor, "b t n"]) -> Float[Tensor, "b *q n"]:
    """Split a token's value equally over its members: sums stay the same."""
    fractions = (membership / membership.sum(dim=-1, keepdim=True)).to(values.dtype)
    return torch.einsum("b...t,btn->b...n", values, fractions)


def copy_to_patches(values: Float[Tensor, "b t *d"], membership: Float[Tensor, "b t n"]) -> Float[Tensor, "b n *d"]:
    """Copy a token's value to each of its members; dropped patches get 0."""
    return torch.einsum("bt...,btn->bn...", values, membership.to(values.dtype))


def merge_matrix(before: Float[Tensor, "b t n"], after: Float[Tensor, "b m n"]) -> Float[Tensor, "b m t"]:
    """Return the fraction of each token in each of those that they were merged into: rows that sum to one."""
    return after @ before.mT / after.sum(dim=-1, keepdim=True)
