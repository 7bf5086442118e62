"""Expected calibration error and temperature scaling, after Guo et al. 2017.

The confidence is the probability of the predicted class: its softmax or, of a model trained with the sigmoid loss, its sigmoid.
It falls into one of 15 bins of equal width, open below and closed
above; the error is the gap between mean confidence and accuracy of a bin, averaged over the images.
b images, k classes, n bins.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitrail.recipes.task_config import LossName
from vitrail.tasks.classification import class_probabilities

NUM_BINS = 15
MAX_TEMPERATURE = 100.0  # its inverse is the smallest temperature
TEMPERATURE_RTOL = 1e-9  # relative tolerance of the search
SOFTMAX_CHUNK_NUMEL = 2**15  # logits per softmax: those of all of ImageNet would not fit the CPU's cache


@dataclass(frozen=True)
class Reliability:
    """Image count, mean confidence and accuracy of each bin; both means are 0 in an empty bin."""

    counts: Int[Tensor, " n"]
    confidence: Float[Tensor, " n"]
    accuracy: Float[Tensor, " n"]

    @property
    def ece(self) -> float:
        """Expected calibration error (ECE)."""
        gaps = (self.confidence - self.accuracy).abs() * self.counts
        return (gaps.sum() / self.counts.sum().clamp(min=1)).item()


def compute_reliability(
    logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], bins: int = NUM_BINS, loss: LossName = "softmax"
) -> Reliability:
    confidences, correct, bin_index = assign_bins(logits, labels, bins, loss)
    counts = torch.bincount(bin_index, minlength=bins)
    confidence, accuracy = (
        torch.bincount(bin_index, each, minlength=bins) / counts.clamp(min=1) for each in (confidences, correct)
    )
    return Reliability(counts, confidence, accuracy)


def assign_bins(
    logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], bins: int = NUM_BINS, loss: LossName = "softmax"
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"], Int[Tensor, " b"]]:
    """Return the confidence, the correctness (0 or 1) and the bin of each image."""
    confidence = class_probabilities(logits.double(), loss).amax(1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
    return confidence, (logits.argmax(1) == labels).double(), torch.bucketize(confidence, edges)


def fit_temperature(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], loss: LossName = "softmax") -> float:
    """Return the temperature to divide the logits by that minimises the loss on these images.

    The loss is convex in the inverse temperature, so Newton's method finds the minimum, kept between two values that enclose
    it. If there is none (every image is right, so more confidence is always better), the end of the range is returned.
    """
    low, high, inverse = 1 / MAX_TEMPERATURE, MAX_TEMPERATURE, 1.0
    unchecked_ends = {low, high}  # whose slopes are not computed yet
    while high / low > 1 + TEMPERATURE_RTOL:
        slope, curvature = _loss_derivatives(logits, labels, inverse, loss)
        if slope == curvature == 0:  # all logits equal, so any temperature will do; or so far apart that slopes underflow
            return 1.0 if _loss_derivatives(logits, labels, low, loss)[0] == 0 else 1 / high
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        step = inverse - slope / curvature if curvature > 0 else 0.0
        if abs(step - inverse) <= TEMPERATURE_RTOL * inverse:
            return 1 / inverse
        if not low < step < high:
            end = high if slope < 0 else low
            if end in unchecked_ends and math.copysign(1, slope) * _loss_derivatives(logits, labels, end, loss)[0] >= 0:
                return 1 / end
            unchecked_ends.discard(end)
            step = math.sqrt(low * high)
        inverse = step
    return 1 / inverse


def _loss_derivatives(
    logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], inverse: float, loss: LossName
) -> tuple[float, float]:
    """Return the first and second derivative of the mean loss in the inverse temperature, computed in chunks of images."""
    slope = curvature = 0.0
    chunk = max(SOFTMAX_CHUNK_NUMEL // logits.shape[1], 1)
    derivatives = _softmax_derivatives if loss == "softmax" else _sigmoid_derivatives
    for part, targets in zip(logits.split(chunk), labels.split(chunk), strict=True):
        first, second = derivatives(part.double(), targets, inverse)
        slope, curvature = slope + first, curvature + second
    return slope / len(labels), curvature / len(labels)


def _softmax_derivatives(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], inverse: float) -> tuple[float, float]:
    margins = logits - logits.gather(1, labels[:, None])  # the right class
    probabilities = F.softmax(margins * inverse, dim=1)
    mean = torch.linalg.vecdot(probabilities, margins)
    margins -= mean[:, None]
    return mean.sum().item(), torch.linalg.vecdot(probabilities, margins.square_()).sum().item()


def _sigmoid_derivatives(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], inverse: float) -> tuple[float, float]:
    probabilities = (logits * inverse).sigmoid()
    slope = (logits * probabilities).sum() - logits.gather(1, labels[:, None]).sum()
    return slope.item(), (logits.square() * probabilities * (1 - probabilities)).sum().item()
