"""Learned embeddings: similarity of position embeddings, and the filters of the patch embedding
(Dosovitskiy et al. 2021, figure 7, left and middle).

y, x one position in the grid and v, u another; d width, n filters, c channels, p and q the two sides of a patch.
"""

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.explain.attention import as_vit, relative_bias
from vitrail.layers.position import RelativeKeys
from vitrail.models.config import ViTConfig
from vitrail.models.vit import ViT

NUM_COMPONENTS = 28  # as in the paper


@torch.no_grad()
def position_similarity(model: nn.Module, layer: int = 0) -> Float[Tensor, "y x v u"]:
    """Return the cosine between any two positions.

    For a table it is between its rows, even if attention has rotary positions or a relative bias besides. Rotary alone has no
    table: it rotates queries and keys, and the mean cosine of the angles between two positions is what is left of a product of
    equal vectors; with learned frequencies, the mean over the heads of a layer too. Relative positions belong to a layer: a
    position is represented there by the keys, or the biases, of all heads that a query meets from it.
    """
    vit = as_vit(model)
    rows, columns = vit.config.grid
    vectors = F.normalize(_position_vectors(vit, layer).float(), dim=-1)
    return rearrange(vectors @ vectors.mT, "(y x) (v u) -> y x v u", y=rows, v=rows, x=columns)


def position_kind(config: ViTConfig) -> str:
    """Return what ``position_similarity`` compares: the position, or without a table what attention has instead of one."""
    if config.position != "none":
        return config.position
    return "rotary" if config.rotation else "relative_bias" if config.relative_bias else "none"


@torch.no_grad()
def patch_filters(model: nn.Module, count: int = NUM_COMPONENTS) -> Float[Tensor, "n c p q"]:
    """Return the first principal components of the embedding's kernels, each from 0 to 1, grey where it is zero.

    A hybrid's patches are single positions of the stem's output; its filters are the kernels of its first convolution.
    """
    vit = as_vit(model)
    first: Any = vit.embed.project if vit.config.stem is None else vit.stem.conv
    kernels: Tensor = first.weight
    flat = kernels.float().flatten(1)
    flat = flat - flat.mean(dim=0)
    _, _, components = torch.linalg.svd(flat, full_matrices=False)
    components = components[:count]
    largest = components.gather(1, components.abs().argmax(dim=1, keepdim=True))
    components = components * largest.sign()  # the sign of a component is arbitrary
    scaled = 0.5 + 0.5 * components / components.abs().amax(dim=1, keepdim=True)
    return scaled.unflatten(1, tuple(kernels.shape[1:]))


def _position_vectors(vit: ViT, layer: int) -> Float[Tensor, "n d"]:
    grid, prefix = vit.config.grid, vit.config.prefix_tokens
    if not 0 <= layer < len(vit.blocks):
        raise VitrailError(f"layer must be from 0 to {len(vit.blocks) - 1}, got {layer}; try layer=0")
    match position_kind(vit.config):
        case "none":
            raise VitrailError("the model has no positions (position='none'), so there is nothing to compare")
        case "rotary":
            rotary = vit.rotary[layer if len(vit.rotary) > 1 else 0]  # one of each layer, or of all
            turned = torch.cat(rotary(grid, next(vit.parameters()).device), dim=-1)[..., prefix:, :]
            return rearrange(turned, "h n k -> n (h k)") if turned.ndim == 3 else turned
        case "relative_bias":
            bias = relative_bias(vit, grid, layer)
            assert bias is not None
            return rearrange(bias[:, prefix:, prefix:], "h n key -> n (h key)")
        case "relative":
            keys = vit.blocks[layer].attention.relative  # type: ignore[union-attr]
            assert isinstance(keys, RelativeKeys)
            heads, tokens = vit.config.heads, vit.config.tokens
            rows = [torch.cat([keys.row(head, query)[prefix:].flatten() for head in range(heads)]) for query in range(tokens)]
            return torch.stack(rows[prefix:])
    table = vit.positions[0].table_at(grid)  # type: ignore[operator]
    return rearrange(table, "y x d -> (y x) d")
