"""Faithfulness of saliency maps: does the class probability drop with the patches that a map calls important, and does the map
point at the object?

Deletion and insertion (Petsiuk et al. 2018), patch by patch: the area under the class probability while patches are removed,
most important first (low is good), and while they are inserted (high is good). The pointing game (Zhang et al. 2016) and the
fraction of a map that lies on the object. A random map and an edge detector are the baselines. b images, c channels, n patches,
s steps, y and x the grid.
"""

from dataclasses import dataclass

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.explain.attention import at_rest, checked
from vitrail.explain.odds import odds
from vitrail.models.vit import ViT

STEPS = 16


@dataclass(frozen=True)
class Faithfulness:
    """Deletion and insertion curve per image, from all patches to none and from none to all."""

    deletion: Float[Tensor, "b s"]
    insertion: Float[Tensor, "b s"]

    @property
    def deleted(self) -> Float[Tensor, " b"]:
        return area(self.deletion)

    @property
    def inserted(self) -> Float[Tensor, " b"]:
        return area(self.insertion)


@torch.no_grad()
def faithfulness(
    model: nn.Module,
    images: Float[Tensor, "b c height width"],
    maps: Float[Tensor, "b y x"],
    classes: Int[Tensor, " b"] | None = None,
    steps: int = STEPS,
) -> Faithfulness:
    """Compute both curves. Deleted patches become grey, the mean of normalised images; patches not yet inserted are blurred."""
    if steps < 1:
        raise VitrailError(f"steps must be at least 1, got {steps}; try steps={STEPS}")
    vit = checked(model)
    order = maps.flatten(1).argsort(dim=1, descending=True, stable=True)
    place = order.argsort(dim=1)  # rank of each patch
    with at_rest(vit):
        which = vit(images).argmax(dim=1) if classes is None else classes.to(images.device)
        blurred = blur(images)
        gone, come = [], []
        for step in range(steps + 1):
            first = place < round(maps[0].numel() * step / steps)
            covered = on_pixels(first, (maps.shape[1], maps.shape[2]), images)
            gone.append(_probability(vit, torch.where(covered, torch.zeros_like(images), images), which))
            come.append(_probability(vit, torch.where(covered, images, blurred), which))
    return Faithfulness(torch.stack(gone, dim=1), torch.stack(come, dim=1))


def area(curve: Float[Tensor, "b s"]) -> Float[Tensor, " b"]:
    """Return the area under the curve by the trapezoidal rule, over a path of length one."""
    return (curve[:, 1:] + curve[:, :-1]).mean(dim=1) / 2


def pointing(maps: Float[Tensor, "b y x"], masks: Float[Tensor, "b y x"]) -> Float[Tensor, " b"]:
    """Return 1 where the maximum of the map is at least half object, else 0; the first of equals counts."""
    highest = maps.flatten(1).argmax(dim=1, keepdim=True)
    return (masks.flatten(1).gather(1, highest)[:, 0] >= 0.5).float()


def overlap(maps: Float[Tensor, "b y x"], masks: Float[Tensor, "b y x"]) -> Float[Tensor, " b"]:
    """Return the fraction of the map that lies on the object; of a map that is zero, the object's fraction of the image."""
    flat = maps.clamp(min=0).flatten(1)
    total = flat.sum(dim=1)
    return torch.where(total > 0, (flat * masks.flatten(1)).sum(dim=1) / total.clamp(min=1e-30), masks.flatten(1).mean(dim=1))


def on_patches(masks: Float[Tensor, "b height width"], grid: tuple[int, int]) -> Float[Tensor, "b y x"]:
    """Return the object's fraction of every patch."""
    return F.adaptive_avg_pool2d(masks[:, None], grid)[:, 0]


def on_pixels(
    patches: Bool[Tensor, "b n"], grid: tuple[int, int], images: Float[Tensor, "b c height width"]
) -> Bool[Tensor, "b 1 height width"]:
    """Expand values per patch to its pixels."""
    p, q = images.shape[2] // grid[0], images.shape[3] // grid[1]
    return repeat(patches, "b (y x) -> b 1 (y p) (x q)", y=grid[0], p=p, q=q)


def random_map(images: Float[Tensor, "b c height width"], grid: tuple[int, int], seed: int = 0) -> Float[Tensor, "b y x"]:
    chance = torch.Generator().manual_seed(seed)
    return torch.rand(images.shape[0], *grid, generator=chance).to(images.device)


def edge_map(images: Float[Tensor, "b c height width"], grid: tuple[int, int]) -> Float[Tensor, "b y x"]:
    """Return the mean Sobel gradient of each patch, independent of the model."""
    grey = F.pad(images.mean(dim=1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    kernel = torch.tensor([[1.0, 2.0, 1.0], [0.0, 0.0, 0.0], [-1.0, -2.0, -1.0]], device=images.device, dtype=images.dtype)
    slopes = F.conv2d(grey, torch.stack([kernel, kernel.T])[:, None])
    return F.adaptive_avg_pool2d(slopes.norm(dim=1, keepdim=True), grid)[:, 0]


def blur(images: Float[Tensor, "b c height width"], share: float = 0.1) -> Float[Tensor, "b c height width"]:
    """Blur by a Gaussian, its deviation a fraction of the image's longer side."""
    deviation = share * max(images.shape[-2:])
    reach = round(3 * deviation)
    bell = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, device=images.device) / deviation) ** 2)
    bell = (bell / bell.sum()).to(images)
    flat = rearrange(images, "b c y x -> (b c) 1 y x")
    flat = F.conv2d(F.pad(flat, (0, 0, reach, reach), mode="replicate"), bell[None, None, :, None])
    flat = F.conv2d(F.pad(flat, (reach, reach, 0, 0), mode="replicate"), bell[None, None, None, :])
    return rearrange(flat, "(b c) 1 y x -> b c y x", b=images.shape[0])


def _probability(vit: ViT, images: Tensor, classes: Tensor) -> Float[Tensor, " b"]:
    return odds(vit, vit(images)).gather(1, classes[:, None])[:, 0].float()
