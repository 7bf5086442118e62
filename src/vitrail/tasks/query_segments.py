"""Segments that do not overlap, each with a class, from the predictions of queries: things, and one segment for each class of
stuff (Kirillov et al. 2019; Cheng et al. 2021). q queries, o classes and none; the input is height by width."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitrail.models.config import Pair

MIN_SCORE = 0.8  # of the class of a query, as Cheng et al. have it, like the next
MIN_VISIBLE = 0.8  # fraction of a mask that other masks leave to it
MASK_LEVEL = 0.5  # probability from which on a pixel belongs to a mask


@dataclass(frozen=True)
class SegmentMap:
    """The segments of an image: the index of a pixel's, from 1, 0 without one; and the class and score of each."""

    ids: Int[Tensor, "height width"]
    classes: tuple[int, ...]
    scores: tuple[float, ...]


@torch.no_grad()
def find_segments(
    classes: Float[Tensor, "q o"],
    masks: Float[Tensor, "q y x"],
    size: Pair,
    stuff: Collection[int] = (),
    min_score: float = MIN_SCORE,
    min_visible: float = MIN_VISIBLE,
) -> SegmentMap:
    """Return the segments of an image at a size; queries that predict one class of ``stuff`` make one segment."""
    scores, labels = classes.float().softmax(-1).max(-1)
    kept = (labels < classes.shape[1] - 1) & (scores > min_score)
    scores, labels = scores[kept], labels[kept]
    if not len(scores):
        return SegmentMap(torch.zeros(size, dtype=torch.int32, device=masks.device), (), ())
    probabilities = F.interpolate(masks[kept][None].float(), size, mode="bilinear")[0].sigmoid()
    ids = torch.zeros(size, dtype=torch.int32, device=masks.device)
    found: list[tuple[int, float]] = []
    of_stuff: dict[int, int] = {}
    winner = (probabilities * scores[:, None, None]).argmax(0)
    for query, (label, score) in enumerate(zip(labels.tolist(), scores.tolist(), strict=True)):
        own, inside = winner == query, probabilities[query] >= MASK_LEVEL
        visible = own & inside
        if not visible.any() or own.sum() <= min_visible * inside.sum():
            continue
        if label not in of_stuff:
            found.append((label, score))
        index = of_stuff.get(label, len(found))
        if label in stuff:
            of_stuff[label] = index
        ids[visible] = index
    return SegmentMap(ids, tuple(label for label, _ in found), tuple(score for _, score in found))
