"""What heads do, in numbers: how far they look (Dosovitskiy et al. 2021, D.7), how widely, how alike they are; and how long
tokens become, which shows the artefacts that registers remove (Darcet et al. 2023).

b pictures, l layers, s states between them, h heads, t tokens, n patches.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.explain.attention import at_rest, checked
from vitrail.layers.position import Grid
from vitrail.layers.tap import recording
from vitrail.models.vit import ViT


@dataclass(frozen=True)
class Heads:
    """Means over the pictures: distance in pixels, entropy in nats, cosine similarity of two heads' weights."""

    distance: Float[Tensor, "l h"]
    renormalised: Float[Tensor, "l h"]
    entropy: Float[Tensor, "l h"]
    similarity: Float[Tensor, "l h h"]
    pictures: int


@torch.no_grad()
def heads(model: nn.Module, batches: Iterable[Float[Tensor, "b c height width"]]) -> Heads:
    """Over any number of pictures; a layer's weights are summed up as soon as they are there, and none are kept."""
    vit = checked(model)
    total: list[Tensor] = []
    pictures = 0
    for images in batches:
        found = _summed(vit, images)
        total = found if not total else [one + other for one, other in zip(total, found, strict=True)]
        pictures += images.shape[0]
    if not pictures:
        raise VitrailError("there are no pictures to look at; give at least one")
    far, rest, wide, alike = (values / pictures for values in total)
    return Heads(far, rest, wide, alike, pictures)


def distance(model: nn.Module, images: Float[Tensor, "b c height width"], renormalise: bool = False) -> Float[Tensor, "l h"]:
    """How far each head looks in these pictures, in pixels."""
    found = heads(model, [images])
    return found.renormalised if renormalise else found.distance


def reach(
    weights: Float[Tensor, "b h t t"], grid: Grid, stride: tuple[int, int], renormalise: bool = False
) -> Float[Tensor, "b h"]:
    """The mean over queries of the distance in pixels between the centres of patches, weighed by attention.

    Tokens before the patches are left out of queries and keys. The authors leave it at that; ``renormalise`` brings what is
    left of a row back to one.
    """
    apart = spacing(grid, stride).to(weights)
    patches = apart.shape[0]
    among = weights[..., -patches:, -patches:]
    among = among / among.sum(dim=-1, keepdim=True) if renormalise else among
    return (among * apart).sum(dim=-1).mean(dim=-1)


def spacing(grid: Grid, stride: tuple[int, int]) -> Float[Tensor, "n n"]:
    """Pixels between the centres of any two patches."""
    y, x = torch.meshgrid(torch.arange(grid[0]) * float(stride[0]), torch.arange(grid[1]) * float(stride[1]), indexing="ij")
    centres = torch.stack([y.flatten(), x.flatten()], dim=1).double()
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist").float()


def entropy(weights: Float[Tensor, "b h t t"]) -> Float[Tensor, "b h"]:
    """The mean over queries: 0 where each looks at one token, log t where at all alike."""
    return -torch.special.xlogy(weights, weights).sum(dim=-1).mean(dim=-1)


def likeness(weights: Float[Tensor, "b h t t"]) -> Float[Tensor, "b h h"]:
    """The cosine between the weights of two heads, each taken as one long vector."""
    flat = nn.functional.normalize(weights.flatten(2), dim=-1)
    return flat @ flat.mT


@torch.no_grad()
def norms(model: nn.Module, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "s b t"]:
    """The length of every token before the first block and after each."""
    vit = checked(model)
    seen: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, output: seen.append(output.norm(dim=-1))) for block in vit.blocks]
    hooks.append(vit.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].norm(dim=-1))))
    try:
        with at_rest(vit):
            vit.features(images)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(seen)


def _summed(vit: ViT, images: Tensor) -> list[Tensor]:
    """Sums over these pictures, by layer and head."""
    grid, stride = vit.grid(images), vit.config.stride
    rows: list[tuple[Tensor, ...]] = []

    def keep(weights: Tensor) -> Tensor:
        values = (reach(weights, grid, stride), reach(weights, grid, stride, True), entropy(weights), likeness(weights))
        rows.append(tuple(value.sum(dim=0) for value in values))
        return weights.new_empty(0)

    with at_rest(vit), recording(vit, "blocks.*.attention.weights", keep=keep):
        vit.features(images)
    return [torch.stack(column) for column in zip(*rows, strict=True)]
