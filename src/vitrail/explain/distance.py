"""Statistics of attention heads: attention distance (Dosovitskiy et al. 2021, D.7), entropy and similarity; and token norms,
which show the artefacts that registers remove (Darcet et al. 2023).

b images, l layers, s states between them, h heads, t tokens, n patches.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.explain.attention import at_rest, checked, each
from vitrail.explain.held import handed, holding
from vitrail.layers.position import Grid
from vitrail.models.vit import ViT


@dataclass(frozen=True)
class Heads:
    """Means over the images: distance in pixels, entropy in nats, cosine similarity of two heads' weights."""

    distance: Float[Tensor, "l h"]
    renormalised: Float[Tensor, "l h"]
    entropy: Float[Tensor, "l h"]
    similarity: Float[Tensor, "l h h"]
    pictures: int


@torch.no_grad()
def heads(model: nn.Module, batches: Iterable[Float[Tensor, "b c height width"]]) -> Heads:
    """Compute the statistics over any number of images: one batch is held at a time, and its weights are summed up at once."""
    vit = checked(model)
    total: list[Tensor] = []
    pictures = 0
    for images in batches:
        found = _summed(vit, images)
        total = found if not total else [one + other for one, other in zip(total, found, strict=True)]
        pictures += images.shape[0]
        del images  # before the next batch is made
    if not pictures:
        raise VitrailError("there are no images; give at least one")
    far, rest, wide, alike = (values / pictures for values in total)
    return Heads(far, rest, wide, alike, pictures)


def distance(model: nn.Module, images: Float[Tensor, "b c height width"], renormalise: bool = False) -> Float[Tensor, "l h"]:
    """Return the mean attention distance of each head on these images, in pixels."""
    found = heads(model, [images])
    return found.renormalised if renormalise else found.distance


def reach(
    weights: Float[Tensor, "b h t t"], grid: Grid, stride: tuple[int, int], renormalise: bool = False
) -> Float[Tensor, "b h"]:
    """Return the mean over queries of the distance in pixels between patch centres, weighted by attention.

    Prefix tokens are left out of queries and keys. The authors leave it at that; ``renormalise`` scales what is left of a row
    back to one.
    """
    apart = spacing(grid, stride).to(weights)
    patches = apart.shape[0]
    return _far(weights[..., -patches:, -patches:], apart, renormalise).mean(dim=-1)


def spacing(grid: Grid, stride: tuple[int, int]) -> Float[Tensor, "n n"]:
    """Return the pixels between the centres of any two patches."""
    y, x = torch.meshgrid(torch.arange(grid[0]) * float(stride[0]), torch.arange(grid[1]) * float(stride[1]), indexing="ij")
    centres = torch.stack([y.flatten(), x.flatten()], dim=1).double()
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist").float()


def entropy(weights: Float[Tensor, "b h t t"]) -> Float[Tensor, "b h"]:
    """Return the mean entropy over queries: 0 if each attends to one token, log t if to all equally."""
    return _wide(weights).mean(dim=-1)


def likeness(weights: Float[Tensor, "b h t t"]) -> Float[Tensor, "b h h"]:
    """Return the cosine between the weights of two heads, each taken as one long vector."""
    return _cosine(_products(weights))


@torch.no_grad()
def norms(model: nn.Module, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "s b t"]:
    """Return the norm of every token before the first block and after each."""
    vit = checked(model)
    seen: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, output: seen.append(output.norm(dim=-1))) for block in vit.blocks]
    hooks.append(vit.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].norm(dim=-1))))
    try:
        with at_rest(vit), holding(vit) as held:
            vit.features(images)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack([handed(state, there) for state, there in zip(seen, held, strict=True)] if held else seen)


def _summed(vit: ViT, images: Tensor) -> list[Tensor]:
    """Return sums over these images, by layer and head; weights come some rows at a time, so rows are summed up first."""
    grid, prefix, (layers, heads) = vit.grid(images), vit.config.prefix, (len(vit.blocks), vit.config.heads)
    apart = spacing(grid, vit.config.stride).to(images.device)
    places, tokens = vit.places(images), apart.shape[0] + prefix
    patches = apart.shape[0] if places is None else places.shape[1]  # patches that are not dropped
    rows = images.new_zeros(3, layers, images.shape[0], heads, dtype=torch.float32)
    products = images.new_zeros(layers, images.shape[0], heads, heads, dtype=torch.float32)

    def take(layer: int, part: slice, some: Tensor) -> None:
        weights = some.float()
        of_patches = slice(max(part.start - prefix, 0), max(part.stop - prefix, 0))
        among, far = weights[..., max(prefix - part.start, 0) :, prefix:], apart[of_patches]
        rows[0, layer] += _far(among, far).sum(dim=-1) / patches
        rows[1, layer] += _far(among, far, True).sum(dim=-1) / patches
        rows[2, layer] += _wide(weights).sum(dim=-1) / (patches + prefix)
        products[layer] += _products(weights)

    each(vit, images, range(layers), list(range(heads)), list(range(tokens)), take)
    return [*rows.sum(dim=2), _cosine(products).sum(dim=1)]


def _far(among: Float[Tensor, "b h q n"], apart: Float[Tensor, "q n"], renormalise: bool = False) -> Float[Tensor, "b h q"]:
    far = (among * apart).sum(dim=-1)
    return far / among.sum(dim=-1).clamp(min=1e-30) if renormalise else far


def _wide(weights: Float[Tensor, "b h q t"]) -> Float[Tensor, "b h q"]:
    return -torch.special.xlogy(weights, weights).sum(dim=-1)


def _products(weights: Float[Tensor, "b h q t"]) -> Float[Tensor, "b h h"]:
    flat = weights.flatten(2)
    return flat @ flat.mT


def _cosine(products: Float[Tensor, "*b h h"]) -> Float[Tensor, "*b h h"]:
    size = products.diagonal(dim1=-2, dim2=-1).sqrt()
    return products / (size[..., :, None] * size[..., None, :])
