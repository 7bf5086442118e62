"""Linear probe of patch tokens on masks, after DINOv2 (Oquab et al. 2024): each channel of the tokens is standardised, one
linear layer gives the logits of a patch, and they are upsampled bilinearly; cross-entropy is minimised.

Candidates differ in the blocks whose tokens they see, the last one or the last four joined, and in their learning rate. All are
trained side by side on the same batches, and the best mean IoU on validation is kept. Train and validation tokens are computed
once and kept in memory, of at most as many images as fit; the loss is of pixels on a regular lattice, four along each side of a
patch. n images, of which b in a batch; k classes, l layers, d width, f channels; y by x patches; h high, w wide.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Float16, Int, Int16
from numpy import ndarray
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.augment.counter_rng import permutation
from vitrail.data.loader import Loader, build_pixel_loader
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import IGNORED, Dataset, DatasetSplits, Progress, evenly_spaced, select_images
from vitrail.errors import VitrailError
from vitrail.inference.predictor import Predictor, TorchPredictor
from vitrail.inference.run import iter_outputs
from vitrail.models.vit import ViT
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.registry import build_task
from vitrail.tasks.resampling import finite_interval
from vitrail.tasks.segmentation import ImageComparison, SegmentationTask
from vitrail.tasks.segmentation_metrics import bootstrap_segmentation, class_rows, confusion_matrix, segmentation_scores

LEARNING_RATES = (1e-2, 3e-2, 1e-1)
NUM_JOINED = 4  # blocks
NUM_STEPS, BATCH_SIZE, WEIGHT_DECAY = 300, 32, 1e-4
PIXELS_PER_SIDE = 4  # of a patch, in the loss
MAX_CACHED_BYTES = 2**30  # of tokens of train, and of validation
EPSILON = 1e-5  # as in batch normalisation

OnStep = Callable[[int], None]


@dataclass(frozen=True)
class MaskCandidate:
    layers: int  # how many of the last blocks it sees
    learning_rate: float
    miou: float  # on validation


@dataclass(frozen=True)
class MaskProbeResult:
    """Result of a linear probe on masks, at the images' own sizes; ``layers`` and ``learning_rate`` were best on validation."""

    miou: float
    pixel_accuracy: float
    boundary_iou: float
    iou: dict[str, float]  # by class name
    interval: dict[str, tuple[float, float]]
    classes: tuple[dict[str, Any], ...]  # as ``class_rows`` has them
    layers: int
    learning_rate: float
    candidates: tuple[MaskCandidate, ...]


@dataclass(frozen=True)
class TokenSet:
    """Patch tokens of images, and the classes of some of their pixels."""

    tokens: Float16[Tensor, "n l y x d"]
    pixels: Int16[Tensor, "n rows columns"]


def mask_probe(
    predictor: Predictor,
    data: DatasetSplits,
    eval_split: str,
    batch_size: int,
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[dict[str, int], int, int, MaskProbeResult]:
    """Probe masks; return how many images of each split were used, how many are unreadable or did not fit, and the result."""
    classes = len(data.class_names)
    preprocess = whole_image(predictor.preprocess)
    task = build_task(Segmentation(classes=classes), predictor.config, preprocess, data.class_names)
    assert isinstance(task, SegmentationTask)
    probe, sets, unreadable, left_out = _MaskProbe(predictor, task, batch_size, workers), dict[str, TokenSet](), 0, 0
    for split in ("train", "validation"):
        on_images = _reporter(progress, f"tokens of {split}", len(data.splits[split]))
        sets[split], missing, bad = probe.collect(data.splits[split], on_images)
        unreadable, left_out = unreadable + bad, left_out + missing
    heads = fit_heads(sets["train"], classes, steps=NUM_STEPS, on_step=_reporter(progress, "linear probe", NUM_STEPS))
    best, candidates = select_head(heads, sets["validation"], classes)
    source = data.splits[eval_split]
    compared, bad = probe.evaluate(heads[best][1], source, _reporter(progress, f"evaluating {eval_split}", len(source)))
    counts = {split: len(part.tokens) for split, part in sets.items()} | {eval_split: len(compared)}
    unreadable += bad if eval_split == "test" else 0
    return counts, unreadable, left_out, summarise_probe(task, compared, candidates, best)


def _reporter(progress: Progress | None, description: str, total: int) -> OnStep:
    return (lambda done: None) if progress is None else lambda done: progress(description, done, total)


class _MaskProbe:
    """Computes the tokens of a predictor, for a task whose preprocessing shows all of an image."""

    def __init__(self, predictor: Predictor, task: SegmentationTask, batch_size: int, workers: int | None) -> None:
        if not isinstance(predictor, TorchPredictor) or not isinstance(predictor.encoder, ViT):
            raise VitrailError(f"a probe on masks needs the patch tokens of a ViT, which {predictor.source} does not give")
        self.predictor, self.task, self.batch_size, self.workers = predictor, task, batch_size, workers
        self.encoder = predictor.encoder
        depth = self.encoder.config.depth
        self.layers = tuple(range(max(depth - NUM_JOINED, 0) + 1, depth + 1))

    def loader(self, source: Dataset) -> Loader:
        return build_pixel_loader(source, self.task.preprocess, self.batch_size)

    def iter_tokens(self, loader: Loader) -> Iterator[tuple[Int[ndarray, " b"], Float[Tensor, "b l y x d"]]]:
        """Yield the indices of readable images and the tokens of their patches, after the last norm."""
        for batch in iter_outputs(self._tokens, loader, self.workers):
            if len(batch.indices):
                yield batch.indices, torch.from_numpy(batch.values)

    def collect(self, source: Dataset, on_images: OnStep) -> tuple[TokenSet, int, int]:
        """Return the tokens of a split, of evenly spaced images if not all fit; how many were left out, and are unreadable."""
        rows, columns = self.encoder.config.grid
        each = 2 * len(self.layers) * rows * columns * self.encoder.config.width
        chosen = select_images(source, evenly_spaced(len(source), max(MAX_CACHED_BYTES // each, 1)))
        loader, tokens, pixels, done = self.loader(chosen), [], [], 0
        lattice = (PIXELS_PER_SIDE * rows, PIXELS_PER_SIDE * columns)
        for indices, values in self.iter_tokens(loader):
            tokens.append(values.half())
            pixels += [sample_pixels(chosen.mask(index), lattice) for index in indices.tolist()]
            done += len(indices)
            on_images(done)
        if not tokens:
            raise VitrailError(f"no image of {source.name} can be read; `vitrail data check` gives the reasons")
        return TokenSet(torch.cat(tokens), torch.stack(pixels)), len(source) - len(chosen), len(loader.read_errors)

    def evaluate(self, head: "LinearProbeHead", source: Dataset, on_images: OnStep) -> tuple[list[ImageComparison], int]:
        """Compare the masks of a split with what a head predicts; return also how many images are unreadable."""
        compared, loader = list[ImageComparison](), self.loader(source)
        for indices, values in self.iter_tokens(loader):
            for index, logits in zip(indices.tolist(), head(values), strict=True):
                compared.append(self.task.compare(logits, source.mask(index)).without_mask())
            on_images(len(compared))
        return compared, len(loader.read_errors)

    @torch.inference_mode()
    def _tokens(self, images: ndarray) -> ndarray:
        pixels = self.predictor.normalised(images)
        grid, prefix = self.encoder.grid(pixels), self.encoder.config.prefix_tokens
        outputs = self.encoder.encode_layers(self.encoder.embed_patches(pixels), grid, self.layers)
        tokens = torch.stack([self.encoder.norm(layer)[:, prefix:] for layer in outputs], dim=1)
        if not tokens.isfinite().all():
            raise VitrailError(f"the tokens of {self.predictor.source} are not finite (NaN/Inf); its weights may be damaged")
        return rearrange(tokens, "b l (y x) d -> b l y x d", y=grid[0]).float().cpu().numpy()


class LinearProbeHead(nn.Module):
    """Logits of patches from standardised tokens of the last blocks."""

    def __init__(self, mean: Float[Tensor, "l d"], std: Float[Tensor, "l d"], classes: int, layers: int) -> None:
        super().__init__()
        self.layers = layers
        self.mean, self.std = mean, std
        self.linear = nn.Linear(layers * mean.shape[1], classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    @torch.no_grad()
    def forward(self, tokens: Float[Tensor, "b l y x d"]) -> Float[Tensor, "b k y x"]:
        x = standardise(tokens, self.mean, self.std)[..., -self.linear.in_features :]
        return rearrange(self.linear(x), "b y x k -> b k y x")


def standardise(
    tokens: Float[Tensor, "b l y x d"], mean: Float[Tensor, "l d"], std: Float[Tensor, "l d"]
) -> Float[Tensor, "b y x f"]:
    """Return tokens of mean 0 and deviation 1 in every channel, the layers joined, the last at the end."""
    return (rearrange(tokens.float(), "b l y x d -> b y x (l d)") - mean.flatten()) / std.flatten()


def sample_pixels(mask: Int16[ndarray, "h w"], lattice: tuple[int, int]) -> Int16[Tensor, "rows columns"]:
    """Return the classes of the pixels nearest to the points of a lattice."""
    rows, columns = (
        ((np.arange(count) + 0.5) * side / count).astype(np.int64) for side, count in zip(mask.shape, lattice, strict=True)
    )
    return torch.from_numpy(np.ascontiguousarray(mask[rows[:, None], columns]))


def token_statistics(tokens: Float16[Tensor, "n l y x d"]) -> tuple[Float[Tensor, "l d"], Float[Tensor, "l d"]]:
    """Return mean and standard deviation of every channel."""
    total, squares, count = torch.zeros(()), torch.zeros(()), 0
    for part in tokens.split(64):
        values = rearrange(part.double(), "b l y x d -> (b y x) l d")
        total, squares, count = total + values.sum(0), squares + values.square().sum(0), count + len(values)
    mean = total / count
    return mean.float(), ((squares / count - mean.square()).clamp(min=0) + EPSILON).sqrt().float()


def fit_heads(
    train: TokenSet,
    classes: int,
    rates: Sequence[float] = LEARNING_RATES,
    steps: int = NUM_STEPS,
    on_step: OnStep | None = None,
) -> list[tuple[float, LinearProbeHead]]:
    """Train heads of the last block and of all, at every learning rate, on the same batches by AdamW with a cosine schedule."""
    mean, std = token_statistics(train.tokens)
    choices = [(rate, layers) for layers in dict.fromkeys((1, train.tokens.shape[1])) for rate in rates]
    heads = [(rate, LinearProbeHead(mean, std, classes, layers)) for rate, layers in choices]
    groups = [{"params": list(head.parameters()), "lr": rate} for rate, head in heads]
    optimiser = torch.optim.AdamW(groups, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for step, rows in enumerate(_iter_batches(len(train.tokens), steps)):
        x = standardise(train.tokens[rows], mean, std)
        logits = torch.stack([rearrange(_project(head, x), "b y x k -> b k y x") for _, head in heads])
        logits = F.interpolate(logits.flatten(0, 1), train.pixels.shape[1:], mode="bilinear")
        target = train.pixels[rows].long().repeat(len(heads), 1, 1)
        losses = F.cross_entropy(logits, target, ignore_index=IGNORED, reduction="sum")
        optimiser.zero_grad()
        (losses / (train.pixels[rows] != IGNORED).sum().clamp(min=1)).backward()
        optimiser.step()
        schedule.step()
        if on_step is not None:
            on_step(step + 1)
    return heads


def _project(head: LinearProbeHead, x: Float[Tensor, "b y x f"]) -> Float[Tensor, "b y x k"]:
    projected: Tensor = head.linear(x[..., -head.linear.in_features :])
    return projected


def _iter_batches(num_images: int, steps: int) -> Iterator[Int[Tensor, " b"]]:
    """Yield batches of shuffled images, epoch after epoch; which ones follows from their number alone."""
    order, epoch = torch.zeros(0, dtype=torch.int64), 0
    for _ in range(steps):
        while len(order) < min(BATCH_SIZE, num_images):
            order, epoch = torch.cat([order, torch.from_numpy(permutation(0, epoch, num_images))]), epoch + 1
        yield order[:BATCH_SIZE]
        order = order[BATCH_SIZE:]


def select_head(
    heads: Sequence[tuple[float, LinearProbeHead]], validation: TokenSet, classes: int
) -> tuple[int, tuple[MaskCandidate, ...]]:
    """Return which head has the best mean IoU on validation, on the lattice of the loss."""
    confusion = torch.zeros(len(heads), classes, classes, dtype=torch.int64)
    for tokens, pixels in zip(validation.tokens.split(BATCH_SIZE), validation.pixels.split(BATCH_SIZE), strict=True):
        for number, (_, head) in enumerate(heads):
            logits = F.interpolate(head(tokens), pixels.shape[1:], mode="bilinear")
            confusion[number] += confusion_matrix(logits.argmax(1).flatten(1), pixels.flatten(1), classes)
    scores = segmentation_scores(confusion)["miou"].tolist()
    candidates = tuple(MaskCandidate(head.layers, rate, score) for (rate, head), score in zip(heads, scores, strict=True))
    return int(np.nanargmax(scores)), candidates


def summarise_probe(
    task: SegmentationTask, compared: Sequence[ImageComparison], candidates: tuple[MaskCandidate, ...], best: int
) -> MaskProbeResult:
    confusion, boundary, _ = task.stack_counts(compared)
    scores, rows = task.scores(confusion, boundary), class_rows(task.class_names, confusion, boundary)
    samples, _ = bootstrap_segmentation(confusion, boundary)
    return MaskProbeResult(
        miou=scores["miou"],
        pixel_accuracy=scores["pixel_accuracy"],
        boundary_iou=scores["boundary_iou"],
        iou={row["name"]: row["iou"] for row in rows},
        interval={name: finite_interval(values) for name, values in samples.items()},
        classes=tuple(rows),
        layers=candidates[best].layers,
        learning_rate=candidates[best].learning_rate,
        candidates=candidates,
    )


def whole_image(preprocess: Preprocess) -> Preprocess:
    """Return the preprocessing that shows all of an image."""
    return preprocess if preprocess.fit == "pad" else preprocess.with_fit("stretch")
