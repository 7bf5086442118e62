"""Patch ablation: the logits when some patches are grey, permuted or dropped
(Naseer et al. 2021, "Intriguing properties of Vision Transformers", drop and shuffle patches of whole images).

b images, c channels, n patches, k classes, y and x the grid, p and q the pixels of a patch.
"""

import random
from collections.abc import Sequence

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.explain.attention import at_rest, checked, numbers
from vitrail.explain.faithfulness import on_pixels
from vitrail.layers.merge import taken
from vitrail.layers.position import Grid
from vitrail.models.vit import ViT

HOWS = ("mask", "shuffle", "drop")


@torch.no_grad()
def ablate(
    model: nn.Module,
    images: Float[Tensor, "b c height width"],
    patches: Sequence[int],
    how: str = "mask",
    seed: int = 0,
) -> Float[Tensor, "b k"]:
    """Return the logits without these patches, which are counted row by row.

    ``mask``: they become grey, the mean of normalised images. ``shuffle``: their contents are permuted, as
    ``shuffle_permutation`` draws it from the seed. ``drop``: their tokens never enter the model; the others' positions stay.
    """
    vit = checked(model)
    grid = vit.grid(images)
    count = grid[0] * grid[1]
    chosen = sorted(set(numbers("patches", patches, count))) if len(patches) else []
    if how not in HOWS:
        raise VitrailError(f"patches are ablated by {', '.join(HOWS[:-1])} or {HOWS[-1]}, got {how[:40]!r}; try how='mask'")
    with at_rest(vit):
        if not chosen:
            return vit(images)
        if how == "drop":
            return _without(vit, images, chosen, grid)
        if how == "shuffle":
            return vit(_moved(images, order(chosen, count, seed), grid))
        gone = torch.zeros(images.shape[0], count, dtype=torch.bool, device=images.device)
        gone[:, chosen] = True
        return vit(torch.where(on_pixels(gone, grid, images), torch.zeros_like(images), images))


def order(patches: Sequence[int], count: int, seed: int = 0) -> list[int]:
    """Return which patch lies at each position when these are shuffled: every one of them moves, unless it is alone.

    Sattolo's algorithm draws a single cycle through all of them, each as likely as any other.
    """
    places = sorted(set(numbers("patches", patches, count))) if len(patches) else []
    moved, chance = list(places), random.Random(seed)
    for last in range(len(moved) - 1, 0, -1):
        other = chance.randrange(last)
        moved[last], moved[other] = moved[other], moved[last]
    found = list(range(count))
    for place, patch in zip(places, moved, strict=True):
        found[place] = patch
    return found


def _moved(images: Float[Tensor, "b c height width"], which: list[int], grid: Grid) -> Float[Tensor, "b c height width"]:
    flat = rearrange(images, "b c (y p) (x q) -> b (y x) c p q", y=grid[0], x=grid[1])
    return rearrange(flat[:, which], "b (y x) c p q -> b c (y p) (x q)", y=grid[0])


def _without(vit: ViT, images: Float[Tensor, "b c height width"], gone: list[int], grid: Grid) -> Float[Tensor, "b k"]:
    count = grid[0] * grid[1]
    left = [patch for patch in range(count) if patch not in set(gone)]
    if not left:
        raise VitrailError(f"all {count} patches cannot be dropped, since none would be left; keep one, or mask them")
    if vit.config.position == "relative":
        raise VitrailError(
            "relative positions count the offsets between all patches, so none can be dropped; mask or shuffle them instead"
        )
    if vit.places(images) is not None:
        raise VitrailError("a model with patch dropping drops patches by itself; mask or shuffle them, or load it without")
    places = torch.tensor(left, device=images.device).expand(images.shape[0], -1)
    return vit.head(vit.gathered(taken(vit.patches(images), places), grid, places))
