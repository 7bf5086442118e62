"""Mapping from merged tokens back to patches (``models.token_reduced_vit``): the members of each token, layer by layer.

For a model that merges and drops nothing the list stays empty, and callers treat tokens as patches. b images, t tokens of a
layer, m of the next, n all tokens there ever were; a dropped patch is a member of none.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.layers.tap import recording
from vitrail.models.merged import Merged
from vitrail.models.vit import ViT

Held = Sequence[Float[Tensor, "b _ n"]]  # at the input of every layer, and at the end


@contextmanager
def holding(vit: ViT) -> Iterator[Held]:
    """Yield a list that is filled during the forward pass: an entry is there as soon as its layer begins."""
    held: list[Tensor] = []
    if not isinstance(vit, Merged) or not (vit.count or vit.drop):
        yield held
        return

    def keep(matrix: Tensor) -> Tensor:
        held.append(matrix)
        return matrix

    with recording(vit, "held.*", keep=keep):
        yield held


def shared(values: Float[Tensor, "b *q t"], held: Float[Tensor, "b t n"]) -> Float[Tensor, "b *q n"]:
    """Split a token's value equally over its members: sums stay the same."""
    parts = (held / held.sum(dim=-1, keepdim=True)).to(values.dtype)
    return torch.einsum("b...t,btn->b...n", values, parts)


def handed(values: Float[Tensor, "b t *d"], held: Float[Tensor, "b t n"]) -> Float[Tensor, "b n *d"]:
    """Copy a token's value to each of its members; dropped patches get 0."""
    return torch.einsum("bt...,btn->bn...", values, held.to(values.dtype))


def joined(before: Float[Tensor, "b t n"], after: Float[Tensor, "b m n"]) -> Float[Tensor, "b m t"]:
    """Return the fraction of each token in each of those that they were merged into: rows that sum to one."""
    return after @ before.mT / after.sum(dim=-1, keepdim=True)
