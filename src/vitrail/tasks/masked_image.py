"""Masked image modelling: targets of the masked patches, the loss, and reconstructed images.

Targets come from the clean, preprocessed image. Which patches are masked is drawn from (seed, epoch, index).
b images, n patches, m of them masked, c channels, p and q the sides of a patch, k numbers per patch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.augment.counter_rng import uniforms
from vitrail.data.loader import Batch, Loader
from vitrail.layers.token_merging import gather_tokens
from vitrail.models.build import Model
from vitrail.models.config import Pair, ViTConfig
from vitrail.models.masked_autoencoders import MaskedModel, build_masked_model
from vitrail.models.masking_config import COLOUR_LEVELS, Masking, check_masking
from vitrail.models.vit import ViT
from vitrail.recipes.task_config import MaskedImage
from vitrail.tasks.task import Gather, Task, no_gather

NOISE_STREAM = 10_000  # the random stream of an image's mask
VARIANCE_EPS = 1e-6  # He et al.'s, added to a patch's variance


@dataclass(frozen=True)
class MaskedImageTask(Task):
    """Predict the masked patches. The loss is over masked patches only."""

    config_class: ClassVar = MaskedImage
    primary_metric: ClassVar[str] = "loss"
    lower_is_better: ClassVar[bool] = True
    fractions: ClassVar[tuple[str, ...]] = ("accuracy", "knn")
    monitors: ClassVar[tuple[str, ...]] = ("attention", "reconstructions", "knn")
    keeps_decoder: ClassVar[bool] = False

    @property
    def masking(self) -> Masking:
        return self.config.masking

    @property
    def patch(self) -> Pair:
        return check_masking(self.masking, self.model).patch

    def build_model(self, encoder: Model) -> MaskedModel:
        assert isinstance(encoder, ViT)  # others are refused by ``check_masking``
        return build_masked_model(encoder, self.masking)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        device = next(model.parameters()).device
        images = batch.images.to(device, non_blocking=True)
        predicted, masked_indices = model(images, self.noise(batch).to(device))
        return self.score(predicted.float(), self.patch_targets(images, masked_indices))

    def noise(self, batch: Batch) -> Float[Tensor, "b slots"]:
        grid = batch.images.shape[2] // self.patch[0], batch.images.shape[3] // self.patch[1]
        epochs = torch.zeros_like(batch.indices) if batch.epochs is None else batch.epochs
        drawn = uniforms(self.seed, epochs.numpy(), batch.indices.numpy(), self.masking.num_noise_values(grid), NOISE_STREAM)
        return torch.from_numpy(drawn).float()

    def patch_targets(self, images: Float[Tensor, "b c height width"], masked_indices: Int[Tensor, "b m"]) -> Tensor:
        """Return the targets of the masked patches: pixels (b m k), or the colour index of each of its cells (b m k)."""
        if self.masking.target != "pixels":
            return gather_tokens(
                quantise_colours(self._denormalise(images), self.patch, self.masking.cells_per_side), masked_indices
            )
        patches = gather_tokens(patchify(images, self.patch), masked_indices)
        return normalise_patches(patches)[0] if self.masking.norm_pix_target else patches

    def score(self, predicted: Float[Tensor, "b m k"], target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if self.masking.target != "pixels":
            logits = rearrange(predicted, "b m (cell colour) -> (b m cell) colour", cell=self.masking.cells_per_side**2)
            accuracy = (logits.argmax(1) == target.flatten()).float().mean()
            return F.cross_entropy(logits, target.flatten()), {"accuracy": accuracy}
        return (F.l1_loss if self.masking.method == "simmim" else F.mse_loss)(predicted, target), {}

    @torch.no_grad()
    def evaluate(self, model: nn.Module, loader: Loader, workers: int, gather: Gather = no_gather) -> dict[str, Any]:
        """Return the mean loss over all images, each under one fixed mask."""
        was_training = model.training
        model.eval()
        names = ("loss",) if self.masking.target == "pixels" else ("loss", "accuracy")
        rows: list[list[float]] = []  # per batch: its number of images, and the means times that
        try:
            for batch in loader.batches(workers=workers):
                if count := len(batch.images):
                    loss, extra = self.loss(model, batch)
                    rows.append([count, *({"loss": loss, **extra}[name].item() * count for name in names)])
        finally:
            model.train(was_training)
        count, *sums = gather(torch.tensor(rows, dtype=torch.float64).reshape(-1, 1 + len(names))).sum(dim=0).tolist()
        return {name: value / count for name, value in zip(names, sums, strict=True)} if count else {"loss": float("nan")}

    @torch.no_grad()
    def reconstruct(self, model: MaskedModel, batch: Batch) -> Iterator[tuple[str, Float[Tensor, "b c height width"]]]:
        """Yield ``original``, ``masked`` (grey where masked) and ``predicted`` images, with values from 0 to 1."""
        was_training, device = model.training, next(model.parameters()).device
        model.eval()
        try:
            images = batch.images.to(device)
            predicted, masked_indices = model(images, self.noise(batch).to(device))
        finally:
            model.train(was_training)
        patches = patchify(images, self.patch)
        yield "original", self._denormalise(images)
        grey = torch.full_like(patches[:, :1], 0.5)
        yield (
            "masked",
            unpatchify(
                _scatter_patches(patchify(self._denormalise(images), self.patch), masked_indices, grey), self.patch, images
            ),
        )
        pixels = self._to_pixels(predicted.float(), gather_tokens(patches, masked_indices), model.config)
        yield (
            "predicted",
            unpatchify(
                _scatter_patches(patchify(self._denormalise(images), self.patch), masked_indices, pixels), self.patch, images
            ),
        )

    def _to_pixels(self, predicted: Tensor, true_patches: Tensor, config: ViTConfig) -> Float[Tensor, "b m k"]:
        """Turn predictions into pixels from 0 to 1; normalised ones get the mean and deviation of the true patch."""
        (p, q), channels = self.patch, config.channels
        if self.masking.target == "pixels":
            if self.masking.norm_pix_target:
                _, mean, deviation = normalise_patches(true_patches)
                predicted = predicted * deviation + mean
            scale, shift = self._std_and_mean(predicted.device)
            flat = rearrange(predicted, "b m (p q c) -> b m p q c", p=p, q=q)
            return rearrange(flat * scale + shift, "b m p q c -> b m (p q c)").clamp(0, 1)
        cells = self.masking.cells_per_side
        colour_index = rearrange(predicted, "b m (cell colour) -> b m cell colour", cell=cells**2).argmax(-1)
        levels = torch.stack(
            [colour_index // COLOUR_LEVELS**channel % COLOUR_LEVELS for channel in reversed(range(channels))], dim=-1
        )
        cell_colours = rearrange((levels + 0.5) / COLOUR_LEVELS, "b m (y x) c -> (b m) c y x", y=cells)
        upsampled = F.interpolate(cell_colours, (p, q), mode="nearest")
        return rearrange(upsampled, "(b m) c p q -> b m (p q c)", b=predicted.shape[0])

    def _denormalise(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b c height width"]:
        scale, shift = self._std_and_mean(images.device)
        return (images * scale[:, None, None] + shift[:, None, None]).clamp(0, 1)

    def _std_and_mean(self, device: torch.device) -> tuple[Tensor, Tensor]:
        std, mean = self.preprocess.std, self.preprocess.mean
        if self.preprocess.raw:  # bands are drawn from two standard deviations below the mean to two above
            std, mean = (0.25,) * len(std), (0.5,) * len(mean)
        return torch.tensor(std, device=device), torch.tensor(mean, device=device)


def patchify(images: Float[Tensor, "b c height width"], patch: Pair) -> Float[Tensor, "b n k"]:
    """Cut images into patches in raster order, each flattened by rows, columns and channels."""
    return rearrange(images, "b c (y p) (x q) -> b (y x) (p q c)", p=patch[0], q=patch[1])


def unpatchify(
    patches: Float[Tensor, "b n k"], patch: Pair, reference: Float[Tensor, "b c height width"]
) -> Float[Tensor, "b c height width"]:
    rows = reference.shape[2] // patch[0]
    return rearrange(patches, "b (y x) (p q c) -> b c (y p) (x q)", y=rows, p=patch[0], q=patch[1])


def normalise_patches(patches: Float[Tensor, "b m k"]) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise each patch by its own mean and standard deviation, and return both; the variance is unbiased (He et al.)."""
    mean = patches.mean(dim=-1, keepdim=True)
    deviation = (patches.var(dim=-1, keepdim=True) + VARIANCE_EPS).sqrt()
    return (patches - mean) / deviation, mean, deviation


def quantise_colours(images: Float[Tensor, "b c height width"], patch: Pair, cells: int) -> Int[Tensor, "b n k"]:
    """Quantise the mean colour of each of cells x cells parts of a patch to three bits per channel: an index below 512 for RGB.

    The images are from 0 to 1; the first channel is the most significant.
    """
    channels, rows = images.shape[1], images.shape[2] // patch[0]
    patches = rearrange(images, "b c (y p) (x q) -> (b y x) c p q", p=patch[0], q=patch[1])
    means = F.adaptive_avg_pool2d(patches, (cells, cells))
    levels = (means * COLOUR_LEVELS).floor().clamp(0, COLOUR_LEVELS - 1).long()
    weights = torch.tensor([COLOUR_LEVELS**channel for channel in reversed(range(channels))], device=images.device)
    index = (levels * weights[:, None, None]).sum(1)
    return rearrange(index, "(b y x) i j -> b (y x) (i j)", b=images.shape[0], y=rows)


def _scatter_patches(patches: Float[Tensor, "b n k"], indices: Int[Tensor, "b m"], values: Float[Tensor, "b _ k"]) -> Tensor:
    index = indices[..., None].expand(-1, -1, patches.shape[2])
    return patches.scatter(1, index, values.expand(-1, indices.shape[1], -1).to(patches.dtype))
