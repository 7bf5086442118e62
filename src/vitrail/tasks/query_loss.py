"""The loss of queries that predict masks (Cheng et al. 2022, Mask2Former): each segment of an image is matched with the query
that predicts it best, by an assignment with the smallest cost; the other queries are to predict that there is none.

Queries are matched at the resolution of their masks, and the masks of the matched ones are compared with the segments at the
resolution of the images, or at a lattice of their pixels. Ignored pixels count nowhere. It is a mean over the segments of each
image, then over images, so that micro-batches and ranks change nothing. b images, l predictions, q queries, s segments of an
image, k classes, o of them and none, y by x the grid of the masks; targets are height by width.
"""

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np
import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitrail.augment.counter_rng import uniforms
from vitrail.data.loader import Batch
from vitrail.data.sources.dataset import IGNORED
from vitrail.models.cost.eomt import MAX_PIXELS
from vitrail.tasks.linear_assignment import assign
from vitrail.tasks.segmentation_eomt import QueryLogits

CLASS_WEIGHT, MASK_WEIGHT, DICE_WEIGHT = 2.0, 5.0, 5.0  # the paper's, as the next two
NO_OBJECT_WEIGHT = 0.1  # of the queries that are to predict that there is no object
ANNEALING_POWER = 0.9
DICE_SMOOTHING = 1.0  # pixels
ANNEALING_STREAM = 20_000  # the random stream of the queries that attend to all patches


@dataclass(frozen=True)
class Segments:
    """The segments of the images of a batch, in the order of the images."""

    images: Int[Tensor, " s"]  # index of the image of each
    classes: Int[Tensor, " s"]
    masks: Bool[Tensor, "s height width"]


def semantic_segments(targets: Int[Tensor, "b height width"], classes: int) -> Segments:
    """Return a segment for each class that an image has."""
    counts = torch.stack([torch.bincount(target[target != IGNORED], minlength=classes) for target in targets])
    images, labels = counts.nonzero(as_tuple=True)
    return Segments(images, labels, targets[images] == labels[:, None, None])


def query_loss(logits: QueryLogits, segments: Segments, counted: Bool[Tensor, "b height width"]) -> Tensor:
    """Return the mean loss over the predictions, ``l`` of them for each image; ``counted``: pixels that are not ignored."""
    classes, masks = logits.classes.float(), logits.masks.float()
    coarse = _coarse(segments, counted, (masks.shape[3], masks.shape[4]))
    pixels = _Lattice(segments, counted)
    losses: list[Tensor] = []
    for step_classes, step_masks in zip(classes, masks, strict=True):
        pairs = match(QueryLogits(step_classes.detach(), step_masks.detach()), segments, *coarse)
        losses.append(_class_loss(step_classes, segments, pairs) + pixels.loss(step_masks, segments, pairs))
    return torch.stack(losses).mean()


def match(
    logits: QueryLogits, segments: Segments, inside: Float[Tensor, "s y x"], weights: Float[Tensor, "b y x"]
) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """Return the queries and the segments that are matched; ``inside``: the fraction of each cell of the grid that is in a
    segment, ``weights``: the fraction that is counted."""
    own = [segments.images == image for image in range(logits.classes.shape[0])]
    costs = [
        _costs(logits.classes[image], logits.masks[image], segments.classes[each], inside[each], weights[image])
        for image, each in enumerate(own)
    ]
    counts, device = [len(each) for each in costs], logits.classes.device
    chosen = [assign(each.numpy()) for each in torch.cat(costs).cpu().split(counts)]  # moved at once
    first = np.cumsum([0, *counts[:-1]])  # segments are in the order of their images
    matched = np.concatenate([start + rows for start, (rows, _) in zip(first, chosen, strict=True)])
    queries = np.concatenate([columns for _, columns in chosen])
    return torch.from_numpy(queries).to(device), torch.from_numpy(matched).to(device)


def _costs(
    classes: Float[Tensor, "q o"],
    masks: Float[Tensor, "q y x"],
    labels: Int[Tensor, " s"],
    inside: Float[Tensor, "s y x"],
    weights: Float[Tensor, "y x"],
) -> Float[Tensor, "s q"]:
    """Return the cost of every pair of a segment and a query, which is its loss but for the class, whose probability counts."""
    cells = max(inside.shape[1] * inside.shape[2], 1)
    pixels = weights.sum().clamp(min=1 / cells)
    outside = weights - inside
    cross_entropy = (
        einsum(inside, F.softplus(-masks), "s y x, q y x -> s q") + einsum(outside, F.softplus(masks), "s y x, q y x -> s q")
    ) / pixels
    probabilities = masks.sigmoid()
    overlap = einsum(inside, probabilities, "s y x, q y x -> s q")
    total = inside.sum((1, 2))[:, None] + einsum(weights, probabilities, "y x, q y x -> q")
    dice = 1 - (2 * overlap + DICE_SMOOTHING) / (total + DICE_SMOOTHING)
    return MASK_WEIGHT * cross_entropy + DICE_WEIGHT * dice - CLASS_WEIGHT * classes.softmax(-1)[:, labels].mT


def _coarse(
    segments: Segments, counted: Bool[Tensor, "b height width"], grid: tuple[int, int]
) -> tuple[Float[Tensor, "s y x"], Float[Tensor, "b y x"]]:
    """Return the fraction of each cell of a grid that is in a segment, and that is counted."""
    inside, weights = (F.adaptive_avg_pool2d(part.float()[:, None], grid)[:, 0] for part in (segments.masks, counted))
    return inside, weights


def _class_loss(
    classes: Float[Tensor, "b q o"], segments: Segments, pairs: tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]
) -> Tensor:
    """Return the cross-entropy of the classes, in each image a mean over the queries by their weight."""
    queries, matched = pairs
    none = classes.shape[2] - 1
    target = torch.full(classes.shape[:2], none, device=classes.device)
    target[segments.images[matched], queries] = segments.classes[matched]
    weights = torch.where(target == none, NO_OBJECT_WEIGHT, 1.0)
    losses = F.cross_entropy(classes.flatten(0, 1), target.flatten(), reduction="none").reshape(target.shape)
    return CLASS_WEIGHT * ((losses * weights).sum(1) / weights.sum(1)).mean()


class _Lattice:
    """The pixels at which masks are compared: all, or of large images every second or more along each axis."""

    def __init__(self, segments: Segments, counted: Bool[Tensor, "b height width"]) -> None:
        height, width = counted.shape[1:]
        step = ceil(sqrt(height * width / MAX_PIXELS))  # larger masks at every second pixel of each axis, or fewer
        self.size = height, width
        self.pixels = slice(step // 2, None, step)
        self.inside = segments.masks[:, self.pixels, self.pixels].float()
        self.counted = counted[:, self.pixels, self.pixels].float()

    def loss(
        self,
        masks: Float[Tensor, "b q y x"],
        segments: Segments,
        pairs: tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]],
    ) -> Tensor:
        """Return cross-entropy and Dice of the matched masks, in each image a mean over its segments."""
        queries, matched = pairs
        images = segments.images[matched]
        logits = self._at_pixels(masks[images, queries])
        target, counted = self.inside[matched], self.counted[images]
        losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        cross_entropy = (losses * counted).sum((1, 2)) / counted.sum((1, 2)).clamp(min=1)
        probabilities = logits.sigmoid() * counted
        overlap, total = (probabilities * target).sum((1, 2)), (probabilities + target).sum((1, 2))
        dice = 1 - (2 * overlap + DICE_SMOOTHING) / (total + DICE_SMOOTHING)
        per_segment = MASK_WEIGHT * cross_entropy + DICE_WEIGHT * dice
        count = torch.bincount(images, minlength=masks.shape[0]).to(per_segment)
        return (per_segment / count[images]).sum() / masks.shape[0]

    def _at_pixels(self, masks: Float[Tensor, "p y x"]) -> Float[Tensor, "p rows columns"]:
        return F.interpolate(masks[:, None], self.size, mode="bilinear")[:, 0, self.pixels, self.pixels]


def unmasked_probability(progress: Float[Tensor, " b"], query_blocks: int) -> Float[Tensor, "b l"]:
    """Return the probability that a query of a block attends to all patches, by the fraction of the training that is done.

    The training has two parts more than there are blocks. In the first, all queries are masked; then those of one block after
    the other are freed, each in a part of its own; in the last, none is masked, as when the model is used.
    """
    start = torch.arange(1, query_blocks + 1, device=progress.device)
    done = (progress[:, None] * (query_blocks + 2) - start).clamp(0, 1)
    return 1 - (1 - done) ** ANNEALING_POWER


def draw_unmasked(batch: Batch, queries: int, query_blocks: int, anneal: bool, seed: int) -> Bool[Tensor, "b l q"]:
    """Return which queries of each block attend to all patches, drawn from (seed, epoch, index) and the training's progress."""
    count = len(batch.images)
    if batch.progress is None or not anneal:
        return torch.ones(count, query_blocks, queries, dtype=torch.bool)
    epochs = torch.zeros_like(batch.indices) if batch.epochs is None else batch.epochs
    drawn = uniforms(seed, epochs.numpy(), batch.indices.numpy(), query_blocks * queries, ANNEALING_STREAM)
    levels = rearrange(torch.from_numpy(drawn), "b (l q) -> b l q", l=query_blocks)
    return levels < unmasked_probability(batch.progress.double(), query_blocks)[..., None]
