"""Faithfulness of saliency maps: does the class probability drop with the patches that a map calls important, and does the map
point at the object?

Deletion and insertion (Petsiuk et al. 2018), patch by patch: the area under the class probability while patches are removed,
most important first (low is good), and while they are inserted (high is good). The pointing game (Zhang et al. 2016) and the
fraction of a map that lies on the object. A random map and an edge detector are the baselines.

A region of an image loses its class at once when its own patches are deleted, whatever they were surrounded by, and a map that
merely marks the region is rewarded for it. With patches to ``keep`` only the others, the context, are removed and ranked. b
images, c channels, n patches, s steps, y and x the grid.
"""

from dataclasses import dataclass

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.explain.attention import as_vit, eval_mode
from vitrail.models.vit import ViT
from vitrail.tasks.registry import class_probabilities

DEFAULT_STEPS = 16


@dataclass(frozen=True)
class Faithfulness:
    """Deletion and insertion curve per image, from all patches to none and from none to all."""

    deletion_curve: Float[Tensor, "b s"]
    insertion_curve: Float[Tensor, "b s"]

    @property
    def deletion_auc(self) -> Float[Tensor, " b"]:
        return auc(self.deletion_curve)

    @property
    def insertion_auc(self) -> Float[Tensor, " b"]:
        return auc(self.insertion_curve)


@torch.no_grad()
def faithfulness(
    model: nn.Module,
    images: Float[Tensor, "b c height width"],
    maps: Float[Tensor, "b y x"],
    classes: Int[Tensor, " b"] | None = None,
    steps: int = DEFAULT_STEPS,
    keep: Bool[Tensor, "b n"] | None = None,
) -> Faithfulness:
    """Compute both curves. Deleted patches become grey, the mean of normalised images; patches not yet inserted are blurred.

    ``keep``: patches that are never deleted, and inserted from the start.
    """
    if steps < 1:
        raise VitrailError(f"steps must be at least 1, got {steps}; try steps={DEFAULT_STEPS}")
    vit = as_vit(model)
    values = maps.flatten(1)
    always = torch.zeros_like(values, dtype=torch.bool) if keep is None else keep
    order = values.masked_fill(always, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1)  # rank of each patch
    counts = (~always).sum(dim=1, keepdim=True).double()  # patches that are removed in the end
    with eval_mode(vit):
        target = vit(images).argmax(dim=1) if classes is None else classes.to(images.device)
        blurred = blur_images(images)
        deletion, insertion = [], []
        for step in range(steps + 1):
            selected = rank < (counts * step / steps).round()
            deleted, inserted = (
                expand_to_pixels(patches, (maps.shape[1], maps.shape[2]), images) for patches in (selected, selected | always)
            )
            deletion.append(_class_probability(vit, torch.where(deleted, torch.zeros_like(images), images), target))
            insertion.append(_class_probability(vit, torch.where(inserted, images, blurred), target))
    return Faithfulness(torch.stack(deletion, dim=1), torch.stack(insertion, dim=1))


def auc(curve: Float[Tensor, "b s"]) -> Float[Tensor, " b"]:
    """Return the area under the curve by the trapezoidal rule, over a path of length one."""
    return (curve[:, 1:] + curve[:, :-1]).mean(dim=1) / 2


def pointing_game(maps: Float[Tensor, "b y x"], masks: Float[Tensor, "b y x"]) -> Float[Tensor, " b"]:
    """Return 1 where the maximum of the map is at least half object, else 0; the first of equals counts."""
    highest = maps.flatten(1).argmax(dim=1, keepdim=True)
    return (masks.flatten(1).gather(1, highest)[:, 0] >= 0.5).float()


def mass_on_object(maps: Float[Tensor, "b y x"], masks: Float[Tensor, "b y x"]) -> Float[Tensor, " b"]:
    """Return the fraction of the map that lies on the object; of a map that is zero, the object's fraction of the image."""
    flat = maps.clamp(min=0).flatten(1)
    total = flat.sum(dim=1)
    return torch.where(total > 0, (flat * masks.flatten(1)).sum(dim=1) / total.clamp(min=1e-30), masks.flatten(1).mean(dim=1))


def pool_to_patches(masks: Float[Tensor, "b height width"], grid: tuple[int, int]) -> Float[Tensor, "b y x"]:
    """Return the object's fraction of every patch."""
    return F.adaptive_avg_pool2d(masks[:, None], grid)[:, 0]


def expand_to_pixels(
    patches: Bool[Tensor, "b n"], grid: tuple[int, int], images: Float[Tensor, "b c height width"]
) -> Bool[Tensor, "b 1 height width"]:
    """Expand values per patch to its pixels."""
    p, q = images.shape[2] // grid[0], images.shape[3] // grid[1]
    return repeat(patches, "b (y x) -> b 1 (y p) (x q)", y=grid[0], p=p, q=q)


def random_map(images: Float[Tensor, "b c height width"], grid: tuple[int, int], seed: int = 0) -> Float[Tensor, "b y x"]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(images.shape[0], *grid, generator=generator).to(images.device)


def edge_map(images: Float[Tensor, "b c height width"], grid: tuple[int, int]) -> Float[Tensor, "b y x"]:
    """Return the mean Sobel gradient of each patch, independent of the model."""
    grey = F.pad(images.mean(dim=1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    kernel = torch.tensor([[1.0, 2.0, 1.0], [0.0, 0.0, 0.0], [-1.0, -2.0, -1.0]], device=images.device, dtype=images.dtype)
    slopes = F.conv2d(grey, torch.stack([kernel, kernel.T])[:, None])
    return F.adaptive_avg_pool2d(slopes.norm(dim=1, keepdim=True), grid)[:, 0]


def blur_images(images: Float[Tensor, "b c height width"], fraction: float = 0.1) -> Float[Tensor, "b c height width"]:
    """Blur by a Gaussian, its deviation a fraction of the image's longer side."""
    std = fraction * max(images.shape[-2:])
    radius = round(3 * std)
    kernel = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, device=images.device) / std) ** 2)
    kernel = (kernel / kernel.sum()).to(images)
    flat = rearrange(images, "b c y x -> (b c) 1 y x")
    flat = F.conv2d(F.pad(flat, (0, 0, radius, radius), mode="replicate"), kernel[None, None, :, None])
    flat = F.conv2d(F.pad(flat, (radius, radius, 0, 0), mode="replicate"), kernel[None, None, None, :])
    return rearrange(flat, "(b c) 1 y x -> b c y x", b=images.shape[0])


def _class_probability(vit: ViT, images: Tensor, classes: Tensor) -> Float[Tensor, " b"]:
    return class_probabilities(vit, vit(images)).gather(1, classes[:, None])[:, 0].float()
