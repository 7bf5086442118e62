"""Masked image modelling: targets of the masked patches, the loss, and reconstructed images.

Targets come from the clean, preprocessed image. Which patches are masked is drawn from (seed, epoch, index).
b images, n patches, m of them masked, c channels, p and q the sides of a patch, k numbers per patch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.augment.chance import uniforms
from vitrail.data.loader import Batch, Loader
from vitrail.data.preprocess import Preprocess
from vitrail.models.masked import Masked, take
from vitrail.models.masking import LEVELS, Masking
from vitrail.models.settings import Pair, ViTConfig
from vitrail.tasks.task import Gather, own

NOISE = 10_000  # the random stream of an image's mask
TINY = 1e-6  # He et al.'s, added to a patch's variance


@dataclass(frozen=True)
class Masks:
    """Predict the masked patches. The loss is over masked patches only."""

    masking: Masking
    patch: Pair
    preprocess: Preprocess
    seed: int = 0
    main: str = "loss"
    smaller: bool = True

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        device = next(model.parameters()).device
        images = batch.images.to(device, non_blocking=True)
        predicted, places = model(images, self.noise(batch).to(device))
        return self.score(predicted.float(), self.targets(images, places))

    def noise(self, batch: Batch) -> Float[Tensor, "b slots"]:
        grid = batch.images.shape[2] // self.patch[0], batch.images.shape[3] // self.patch[1]
        epochs = torch.zeros_like(batch.indices) if batch.epochs is None else batch.epochs
        drawn = uniforms(self.seed, epochs.numpy(), batch.indices.numpy(), self.masking.slots(grid), NOISE)
        return torch.from_numpy(drawn).float()

    def targets(self, images: Float[Tensor, "b c height width"], places: Int[Tensor, "b m"]) -> Tensor:
        """Return the targets of the masked patches: pixels (b m k), or the colour index of each of its cells (b m k)."""
        if self.masking.target != "pixels":
            return take(colours(self._bright(images), self.patch, self.masking.cells), places)
        patches = take(cut(images, self.patch), places)
        return apart(patches)[0] if self.masking.normalise else patches

    def score(self, predicted: Float[Tensor, "b m k"], wanted: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if self.masking.target != "pixels":
            odds = rearrange(predicted, "b m (cell colour) -> (b m cell) colour", cell=self.masking.cells**2)
            right = (odds.argmax(1) == wanted.flatten()).float().mean()
            return F.cross_entropy(odds, wanted.flatten()), {"accuracy": right}
        return (F.l1_loss if self.masking.method == "simmim" else F.mse_loss)(predicted, wanted), {}

    @torch.no_grad()
    def evaluate(self, model: nn.Module, loader: Loader, workers: int, gather: Gather = own) -> dict[str, Any]:
        """Return the mean loss over all images, each under one fixed mask."""
        was = model.training
        model.eval()
        names = ("loss",) if self.masking.target == "pixels" else ("loss", "accuracy")
        rows: list[list[float]] = []  # per batch: its number of images, and the means times that
        try:
            for batch in loader.batches(workers=workers):
                if count := len(batch.labels):
                    loss, others = self.loss(model, batch)
                    rows.append([count, *({"loss": loss, **others}[name].item() * count for name in names)])
        finally:
            model.train(was)
        count, *sums = gather(torch.tensor(rows, dtype=torch.float64).reshape(-1, 1 + len(names))).sum(dim=0).tolist()
        return {name: value / count for name, value in zip(names, sums, strict=True)} if count else {"loss": float("nan")}

    @torch.no_grad()
    def reconstruct(self, model: Masked, batch: Batch) -> Iterator[tuple[str, Float[Tensor, "b c height width"]]]:
        """Yield ``original``, ``masked`` (grey where masked) and ``predicted`` images, with values from 0 to 1."""
        was, device = model.training, next(model.parameters()).device
        model.eval()
        try:
            images = batch.images.to(device)
            predicted, places = model(images, self.noise(batch).to(device))
        finally:
            model.train(was)
        patches = cut(images, self.patch)
        yield "original", self._bright(images)
        grey = torch.full_like(patches[:, :1], 0.5)
        yield "masked", joined(_put(cut(self._bright(images), self.patch), places, grey), self.patch, images)
        shown = self._shown(predicted.float(), take(patches, places), model.config)
        yield "predicted", joined(_put(cut(self._bright(images), self.patch), places, shown), self.patch, images)

    def _shown(self, predicted: Tensor, hidden: Tensor, config: ViTConfig) -> Float[Tensor, "b m k"]:
        """Turn predictions into pixels from 0 to 1; normalised ones get the mean and deviation of the true patch."""
        (p, q), channels = self.patch, config.channels
        if self.masking.target == "pixels":
            if self.masking.normalise:
                _, mean, deviation = apart(hidden)
                predicted = predicted * deviation + mean
            scale, shift = self._scale(predicted.device)
            flat = rearrange(predicted, "b m (p q c) -> b m p q c", p=p, q=q)
            return rearrange(flat * scale + shift, "b m p q c -> b m (p q c)").clamp(0, 1)
        cells = self.masking.cells
        number = rearrange(predicted, "b m (cell colour) -> b m cell colour", cell=cells**2).argmax(-1)
        levels = torch.stack([number // LEVELS**place % LEVELS for place in reversed(range(channels))], dim=-1)
        small = rearrange((levels + 0.5) / LEVELS, "b m (y x) c -> (b m) c y x", y=cells)
        whole = F.interpolate(small, (p, q), mode="nearest")
        return rearrange(whole, "(b m) c p q -> b m (p q c)", b=predicted.shape[0])

    def _bright(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b c height width"]:
        scale, shift = self._scale(images.device)
        return (images * scale[:, None, None] + shift[:, None, None]).clamp(0, 1)

    def _scale(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.preprocess.std, device=device), torch.tensor(self.preprocess.mean, device=device)


def cut(images: Float[Tensor, "b c height width"], patch: Pair) -> Float[Tensor, "b n k"]:
    """Cut images into patches in raster order, each flattened by rows, columns and channels."""
    return rearrange(images, "b c (y p) (x q) -> b (y x) (p q c)", p=patch[0], q=patch[1])


def joined(
    patches: Float[Tensor, "b n k"], patch: Pair, like: Float[Tensor, "b c height width"]
) -> Float[Tensor, "b c height width"]:
    rows = like.shape[2] // patch[0]
    return rearrange(patches, "b (y x) (p q c) -> b c (y p) (x q)", y=rows, p=patch[0], q=patch[1])


def apart(patches: Float[Tensor, "b m k"]) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise each patch by its own mean and standard deviation, and return both; the variance is unbiased (He et al.)."""
    mean = patches.mean(dim=-1, keepdim=True)
    deviation = (patches.var(dim=-1, keepdim=True) + TINY).sqrt()
    return (patches - mean) / deviation, mean, deviation


def colours(bright: Float[Tensor, "b c height width"], patch: Pair, cells: int) -> Int[Tensor, "b n k"]:
    """Quantise the mean colour of each of cells x cells parts of a patch to three bits per channel: an index below 512 for RGB.

    The images are from 0 to 1; the first channel is the most significant.
    """
    channels, rows = bright.shape[1], bright.shape[2] // patch[0]
    each = rearrange(bright, "b c (y p) (x q) -> (b y x) c p q", p=patch[0], q=patch[1])
    means = F.adaptive_avg_pool2d(each, (cells, cells))
    levels = (means * LEVELS).floor().clamp(0, LEVELS - 1).long()
    weights = torch.tensor([LEVELS**place for place in reversed(range(channels))], device=bright.device)
    number = (levels * weights[:, None, None]).sum(1)
    return rearrange(number, "(b y x) i j -> b (y x) (i j)", b=bright.shape[0], y=rows)


def _put(patches: Float[Tensor, "b n k"], places: Int[Tensor, "b m"], values: Float[Tensor, "b _ k"]) -> Tensor:
    where = places[..., None].expand(-1, -1, patches.shape[2])
    return patches.scatter(1, where, values.expand(-1, places.shape[1], -1).to(patches.dtype))
