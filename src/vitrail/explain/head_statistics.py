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
from vitrail.explain.attention import as_vit, eval_mode, visit_attention_rows, visit_states
from vitrail.explain.merged_tokens import copy_to_patches, track_merging
from vitrail.layers.position import Grid
from vitrail.models.vit import ViT


@dataclass(frozen=True)
class HeadStatistics:
    """Means over the images: distance in pixels, entropy in nats, cosine similarity of two heads' weights."""

    distance: Float[Tensor, "l h"]  # prefix tokens are left out of queries and keys, and the authors leave it at that
    renormalised: Float[Tensor, "l h"]  # the distance with what is left of a row scaled back to one
    entropy: Float[Tensor, "l h"]  # 0 if each token attends to one, log t if to all equally
    similarity: Float[Tensor, "l h h"]
    num_images: int


@torch.no_grad()
def head_statistics(model: nn.Module, batches: Iterable[Float[Tensor, "b c height width"]]) -> HeadStatistics:
    """Compute the statistics over any number of images: one batch is in memory at a time, its weights are summed at once."""
    vit = as_vit(model)
    total: list[Tensor] = []
    num_images = 0
    for images in batches:
        sums = _sum_statistics(vit, images)
        total = sums if not total else [one + other for one, other in zip(total, sums, strict=True)]
        num_images += images.shape[0]
        del images  # before the next batch is made
    if not num_images:
        raise VitrailError("there are no images; give at least one")
    mean_distances, renormalised, entropies, similarities = (values / num_images for values in total)
    return HeadStatistics(mean_distances, renormalised, entropies, similarities, num_images)


def attention_distance(
    model: nn.Module, images: Float[Tensor, "b c height width"], renormalise: bool = False
) -> Float[Tensor, "l h"]:
    """Return the mean attention distance of each head on these images, in pixels."""
    statistics = head_statistics(model, [images])
    return statistics.renormalised if renormalise else statistics.distance


def patch_distances(grid: Grid, stride: tuple[int, int]) -> Float[Tensor, "n n"]:
    """Return the pixels between the centres of any two patches."""
    y, x = torch.meshgrid(torch.arange(grid[0]) * float(stride[0]), torch.arange(grid[1]) * float(stride[1]), indexing="ij")
    centres = torch.stack([y.flatten(), x.flatten()], dim=1).double()
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist").float()


@torch.no_grad()
def token_norms(model: nn.Module, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "s b t"]:
    """Return the norm of every token before the first block and after each."""
    vit = as_vit(model)
    token_lengths: list[Tensor] = []
    with eval_mode(vit), track_merging(vit) as membership, visit_states(vit, lambda x: token_lengths.append(x.norm(dim=-1))):
        vit.features(images)
    return torch.stack(
        [copy_to_patches(state, members) for state, members in zip(token_lengths, membership, strict=True)]
        if membership
        else token_lengths
    )


def _sum_statistics(vit: ViT, images: Tensor) -> list[Tensor]:
    """Return sums over these images, by layer and head; weights come some rows at a time, so rows are summed up first."""
    grid, prefix, (layers, heads) = vit.grid(images), vit.config.prefix_tokens, (len(vit.blocks), vit.config.heads)
    distances = patch_distances(grid, vit.config.patch_stride).to(images.device)
    kept, tokens = vit.kept_patches(images), distances.shape[0] + prefix
    patches = distances.shape[0] if kept is None else kept.shape[1]  # patches that are not dropped
    rows = images.new_zeros(3, layers, images.shape[0], heads, dtype=torch.float32)
    products = images.new_zeros(layers, images.shape[0], heads, heads, dtype=torch.float32)

    def visit(layer: int, part: slice, chunk: Tensor) -> None:
        weights = chunk.float()
        patch_rows = slice(max(part.start - prefix, 0), max(part.stop - prefix, 0))
        patch_weights, row_distances = weights[..., max(prefix - part.start, 0) :, prefix:], distances[patch_rows]
        rows[0, layer] += _expected_distance(patch_weights, row_distances).sum(dim=-1) / patches
        rows[1, layer] += _expected_distance(patch_weights, row_distances, True).sum(dim=-1) / patches
        rows[2, layer] += _row_entropy(weights).sum(dim=-1) / (patches + prefix)
        products[layer] += _gram(weights)

    visit_attention_rows(vit, images, range(layers), list(range(heads)), list(range(tokens)), visit)
    return [*rows.sum(dim=2), _cosine(products).sum(dim=1)]


def _expected_distance(
    weights: Float[Tensor, "b h q n"], distances: Float[Tensor, "q n"], renormalise: bool = False
) -> Float[Tensor, "b h q"]:
    expected = (weights * distances).sum(dim=-1)
    return expected / weights.sum(dim=-1).clamp(min=1e-30) if renormalise else expected


def _row_entropy(weights: Float[Tensor, "b h q t"]) -> Float[Tensor, "b h q"]:
    return -torch.special.xlogy(weights, weights).sum(dim=-1)


def _gram(weights: Float[Tensor, "b h q t"]) -> Float[Tensor, "b h h"]:
    flat_weights = weights.flatten(2)
    return flat_weights @ flat_weights.mT


def _cosine(products: Float[Tensor, "*b h h"]) -> Float[Tensor, "*b h h"]:
    size = products.diagonal(dim1=-2, dim2=-1).sqrt()
    return products / (size[..., :, None] * size[..., None, :])
