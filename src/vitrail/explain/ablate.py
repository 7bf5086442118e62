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
from vitrail.explain.attention import as_vit, check_indices, eval_mode
from vitrail.explain.faithfulness import expand_to_pixels
from vitrail.layers.position import Grid
from vitrail.layers.token_merging import gather_tokens
from vitrail.models.vit import ViT

ABLATION_MODES = ("mask", "shuffle", "drop")


@torch.no_grad()
def ablate(
    model: nn.Module, images: Float[Tensor, "b c height width"], patches: Sequence[int], mode: str = "mask", seed: int = 0
) -> Float[Tensor, "b k"]:
    """Return the logits without these patches, which are counted row by row.

    ``mask``: they become grey, the mean of normalised images. ``shuffle``: their contents are permuted, as
    ``shuffle_permutation`` draws it from the seed. ``drop``: their tokens never enter the model; the others' positions stay.
    """
    vit = as_vit(model)
    with eval_mode(vit):
        if mode == "drop" and len(patches):
            grid = vit.grid(images)
            ablated = sorted(set(check_indices("patches", patches, grid[0] * grid[1])))
            return _forward_without(vit, images, ablated, grid)
        return vit(images if mode == "drop" else ablate_images(vit, images, patches, mode, seed))


def ablate_images(
    vit: ViT, images: Float[Tensor, "b c height width"], patches: Sequence[int], mode: str = "mask", seed: int = 0
) -> Float[Tensor, "b c height width"]:
    """Return the images with these patches masked or shuffled, for a model of any task."""
    if mode not in ABLATION_MODES:
        raise VitrailError(
            f"patches are ablated by {', '.join(ABLATION_MODES[:-1])} or {ABLATION_MODES[-1]}, got {mode[:40]!r}; "
            "try mode='mask'"
        )
    if mode == "drop":
        raise VitrailError("dropped patches are no change of the image; mask or shuffle them instead")
    if not len(patches):
        return images
    grid = vit.grid(images)
    count = grid[0] * grid[1]
    ablated = sorted(set(check_indices("patches", patches, count)))
    if mode == "shuffle":
        return _permute_patches(images, shuffle_permutation(ablated, count, seed), grid)
    masked = torch.zeros(images.shape[0], count, dtype=torch.bool, device=images.device)
    masked[:, ablated] = True
    return torch.where(expand_to_pixels(masked, grid, images), torch.zeros_like(images), images)


def shuffle_permutation(patches: Sequence[int], count: int, seed: int = 0) -> list[int]:
    """Return which patch lies at each position when these are shuffled: every one of them moves, unless it is alone.

    Sattolo's algorithm draws a single cycle through all of them, each as likely as any other.
    """
    positions = sorted(set(check_indices("patches", patches, count))) if len(patches) else []
    shuffled, rng = list(positions), random.Random(seed)
    for last in range(len(shuffled) - 1, 0, -1):
        other = rng.randrange(last)
        shuffled[last], shuffled[other] = shuffled[other], shuffled[last]
    permutation = list(range(count))
    for position, patch in zip(positions, shuffled, strict=True):
        permutation[position] = patch
    return permutation


def _permute_patches(
    images: Float[Tensor, "b c height width"], permutation: list[int], grid: Grid
) -> Float[Tensor, "b c height width"]:
    flat = rearrange(images, "b c (y p) (x q) -> b (y x) c p q", y=grid[0], x=grid[1])
    return rearrange(flat[:, permutation], "b (y x) c p q -> b c (y p) (x q)", y=grid[0])


def _forward_without(
    vit: ViT, images: Float[Tensor, "b c height width"], dropped: list[int], grid: Grid
) -> Float[Tensor, "b k"]:
    count = grid[0] * grid[1]
    kept = [patch for patch in range(count) if patch not in set(dropped)]
    if not kept:
        raise VitrailError(f"all {count} patches cannot be dropped, since none would be left; keep one, or mask them")
    if vit.config.position == "relative":
        raise VitrailError(
            "relative positions count the offsets between all patches, so none can be dropped; mask or shuffle them instead"
        )
    if vit.kept_patches(images) is not None:
        raise VitrailError("a model with patch dropping drops patches by itself; mask or shuffle them, or load it without")
    kept_indices = torch.tensor(kept, device=images.device).expand(images.shape[0], -1)
    return vit.head(vit.encode_and_pool(gather_tokens(vit.embed_patches(images), kept_indices), grid, kept_indices))
