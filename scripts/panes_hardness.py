"""How hard ``panes`` is: ``python -m scripts.panes_hardness``, about five minutes on two cores.

Three test accuracies on ten classes: of the best of several linear classifiers on pixels, of a small ViT trained for minutes,
and of the same ViT when the patches of each image are shuffled. b images, c channels, p a patch's side.
"""

import multiprocessing
import time
from dataclasses import dataclass
from math import cos, pi

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from vitrail.data.sources.panes.dataset import PANES_CLASSES, build_panes
from vitrail.models.build import build
from vitrail.models.config import ViTConfig

SIZE, PATCH = 48, 8
TRAIN, TEST, LINEAR_TRAIN = 40_000, 4_000, 10_000  # images; the linear classifiers are trained on a subset
STEPS, WARM_UP, BATCH, LEARNING_RATE = 1500, 100, 128, 1.5e-3
CHUNK = 1000


@dataclass(frozen=True)
class Hardness:
    """Accuracies from 0 to 1."""

    linear: float
    vit: float
    shuffled: float


def hardness(*, progress: bool = False) -> Hardness:
    train, test = load_split("train", TRAIN), load_split("test", TEST)
    linear = linear_accuracy(train[0][:LINEAR_TRAIN], train[1][:LINEAR_TRAIN], *test)
    model = train_vit(*train, progress=progress)
    shuffled_images = shuffle_patches(test[0], torch.Generator().manual_seed(0))
    return Hardness(linear, accuracy(model, *test), accuracy(model, shuffled_images, test[1]))


def load_split(split: str, count: int) -> tuple[Tensor, Tensor]:
    """Return the images of a split (b c h w, uint8) and their labels."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        parts = pool.starmap(_draw_range, [(split, first, min(first + CHUNK, count)) for first in range(0, count, CHUNK)])
    images = rearrange(torch.from_numpy(np.concatenate(parts)), "b h w c -> b c h w")
    return images, torch.from_numpy(build_panes(split, count).labels)


def _draw_range(split: str, first: int, last: int) -> np.ndarray:
    source = build_panes(split, last, (SIZE, SIZE))
    return np.stack([source.read(index) for index in range(first, last)])


def linear_accuracy(images: Tensor, labels: Tensor, test_images: Tensor, test_labels: Tensor) -> float:
    """Return the best test accuracy of softmax regression over several penalties, an upper bound for linear classifiers."""
    x, y = _normalise(images).flatten(1), _normalise(test_images).flatten(1)
    best = 0.0
    for penalty in (1.0, 0.1, 0.01):
        weights = torch.zeros(len(PANES_CLASSES), x.shape[1], requires_grad=True)
        bias = torch.zeros(len(PANES_CLASSES), requires_grad=True)
        search = torch.optim.LBFGS([weights, bias], max_iter=60, line_search_fn="strong_wolfe")

        def loss(search: torch.optim.LBFGS = search, w: Tensor = weights, b: Tensor = bias, penalty: float = penalty) -> float:
            search.zero_grad()
            value = F.cross_entropy(x @ w.T + b, labels) + penalty * w.square().sum()
            value.backward()
            return value.item()

        search.step(loss)
        right = (y @ weights.T + bias).argmax(1) == test_labels
        best = max(best, right.float().mean().item())
    return best


def train_vit(images: Tensor, labels: Tensor, *, progress: bool = False) -> nn.Module:
    """Train a ViT with half a million parameters: AdamW, warm-up, cosine; random flips, inversions and channel permutations."""
    torch.manual_seed(0)
    side, patch = (SIZE, SIZE), (PATCH, PATCH)
    config = ViTConfig(96, 4, 384, 3, patch, side, classes=len(PANES_CLASSES), position="sincos2d", pool="gap", gelu="exact")
    model = build(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.05)
    for step in range(STEPS):
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + cos(pi * step / STEPS))
        batch = torch.randint(len(images), (BATCH,))
        x = _normalise(images[batch])
        x = torch.where(torch.rand(BATCH, 1, 1, 1) < 0.5, x, x.flip(-1))
        x = torch.where(torch.rand(BATCH, 1, 1, 1) < 0.5, x, -x)[:, torch.randperm(3)]
        loss = F.cross_entropy(model(x), labels[batch])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if progress and step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)  # noqa: T201
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    predictions = torch.cat([model(_normalise(part)).argmax(1) for part in images.split(250)])
    return (predictions == labels).float().mean().item()


def shuffle_patches(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shuffle the patches of each image."""
    patches = rearrange(images, "b c (h p) (w q) -> b (h w) c p q", p=PATCH, q=PATCH)
    order = torch.rand(patches.shape[:2], generator=generator).argsort(1)
    patches = patches[torch.arange(len(images))[:, None], order]
    return rearrange(patches, "b (h w) c p q -> b c (h p) (w q)", h=SIZE // PATCH)


def _normalise(images: Tensor) -> Tensor:
    return images.float() / 63.75 - 2.0


if __name__ == "__main__":
    start = time.perf_counter()
    result = hardness(progress=True)
    chance = 1 / len(PANES_CLASSES)
    print(f"chance {chance:.1%}, linear {result.linear:.1%}, ViT {result.vit:.1%}, shuffled {result.shuffled:.1%}")  # noqa: T201
    print(f"{time.perf_counter() - start:.0f} s")  # noqa: T201
