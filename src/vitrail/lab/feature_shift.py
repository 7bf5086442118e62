"""Shift equivariance: feature maps, and their similarity before and after a shift of the image.

b images, c channels, d width, y and x positions of the feature map.
"""

from collections.abc import Iterator
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.models.resnet import ResNet
from vitrail.models.vit import ViT

STRIDE = 4  # pixels per position, in every model here
SHIFTS = tuple(range(1, 2 * STRIDE + 1))  # pixels


@torch.no_grad()
def measure_shifts(model: nn.Module, images: Float[Tensor, "b c height width"]) -> dict[str, list[float]]:
    """Return, by shift, the similarity of pooled features and feature maps to those of the unshifted image, and the fraction
    of equal predictions; means over images and both axes."""
    model.eval()
    before = feature_map(model, images)
    measurements: dict[str, list[float]] = {"pooled": [], "map": [], "consistency": []}
    for pixels in SHIFTS:
        after = [feature_map(model, torch.roll(images, pixels, dims=axis)) for axis in (2, 3)]
        measurements["pooled"].append(_mean(pooled_similarity(before, shifted) for shifted in after))
        measurements["map"].append(
            _mean(map_similarity(before, shifted, pixels, axis) for shifted, axis in zip(after, (2, 3), strict=True))
        )
        measurements["consistency"].append(
            _mean(float((_predictions(model, shifted) == _predictions(model, before)).float().mean()) for shifted in after)
        )
    return measurements


@torch.no_grad()
def feature_map(model: nn.Module, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d y x"]:
    """Return the feature map that the model pools."""
    if isinstance(model, ViT):
        grid = model.grid(images)
        tokens = model.encode(model.embed_patches(images), grid)
        return rearrange(tokens[:, model.config.prefix_tokens :], "b (y x) d -> b d y x", y=grid[0])
    assert isinstance(model, ResNet)
    wrap = "circular" if model.conv.padding_mode == "circular" else "constant"
    x = F.max_pool2d(F.pad(model.conv(images), (1, 1, 1, 1), wrap), kernel_size=3, stride=2)
    return F.relu(model.norm(model.stages(x)))


def with_circular_padding(model: nn.Module) -> nn.Module:
    """Replace the zero padding of all convolutions by circular padding, in place."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.padding_mode = "circular"
    return model


def _predictions(model: nn.Module, maps: Float[Tensor, "b d y x"]) -> Int[Tensor, " b"]:
    head: Any = model.head
    return head(maps.mean(dim=(2, 3))).argmax(dim=1)


def pooled_similarity(before: Float[Tensor, "b d y x"], after: Float[Tensor, "b d y x"]) -> float:
    """Return the mean cosine of pooled features, less their mean over images: 1 invariant, 0 as for two unrelated images."""
    first, second = before.mean(dim=(2, 3)), after.mean(dim=(2, 3))
    common = first.mean(dim=0)
    return float(F.cosine_similarity(first - common, second - common, dim=1).mean())


def map_similarity(before: Float[Tensor, "b d y x"], after: Float[Tensor, "b d y x"], pixels: int, axis: int) -> float:
    """Return the mean cosine to the shifted feature map, 1 if equivariant. Fractional shifts interpolate between positions;
    positions whose pixels were wrapped around are left out."""
    common = before.mean(dim=(0, 2, 3), keepdim=True)
    whole, rest = divmod(pixels, STRIDE)
    fraction = rest / STRIDE
    expected = (1 - fraction) * torch.roll(before, whole, axis) + fraction * torch.roll(before, whole + 1, axis)
    similarity = F.cosine_similarity(expected - common, after - common, dim=1)
    first = whole + (rest > 0)
    return float(similarity.narrow(axis - 1, first, similarity.shape[axis - 1] - first).mean())


def _mean(values: Iterator[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)
