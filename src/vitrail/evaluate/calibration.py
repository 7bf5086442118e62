"""Is a model as often right as it is sure? Expected calibration error and temperature scaling, after Guo et al. 2017.

The confidence is the softmax of the label that is said. It falls into one of 15 bins of equal width, open below and closed
above; the error is the gap between mean confidence and accuracy of a bin, averaged over the pictures.
b pictures, k classes, n bins.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

BINS = 15
HOTTEST = 100.0  # of a temperature; its inverse is the coldest
CLOSE = 1e-9  # relative, to where two steps of the search for it may end


@dataclass(frozen=True)
class Reliability:
    """Of each bin the pictures, their mean confidence and the share that is right; both 0 where there are none."""

    pictures: Int[Tensor, " n"]
    confidence: Float[Tensor, " n"]
    accuracy: Float[Tensor, " n"]

    @property
    def error(self) -> float:
        """The expected calibration error."""
        gaps = (self.confidence - self.accuracy).abs() * self.pictures
        return (gaps.sum() / self.pictures.sum().clamp(min=1)).item()


def reliability(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], bins: int = BINS) -> Reliability:
    sure, right, place = binned(logits, labels, bins)
    pictures = torch.bincount(place, minlength=bins)
    confidence, accuracy = (torch.bincount(place, each, minlength=bins) / pictures.clamp(min=1) for each in (sure, right))
    return Reliability(pictures, confidence, accuracy)


def binned(
    logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], bins: int = BINS
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"], Int[Tensor, " b"]]:
    """Of each picture the confidence, whether it is right as 0 or 1, and the bin."""
    sure = logits.double().softmax(1).amax(1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
    return sure, (logits.argmax(1) == labels).double(), torch.bucketize(sure, edges)


def temperature(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"]) -> float:
    """What to divide logits by, so that their loss here is least.

    The loss is convex in the inverse temperature, so Newton's method finds the least, held between two values that enclose it.
    Where there is none (every picture right: the surer the better), the answer is the end of the range.
    """
    logits = logits.double() - logits.double().gather(1, labels[:, None])
    low, high = 1 / HOTTEST, HOTTEST
    rises, falls = _slopes(logits, low)[0] >= 0, _slopes(logits, high)[0] <= 0
    if rises or falls:  # both: all logits are equal, and any temperature is as good
        return 1.0 if rises and falls else HOTTEST if rises else 1 / HOTTEST
    inverse = 1.0
    while high / low > 1 + CLOSE:
        slope, bend = _slopes(logits, inverse)
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        step = inverse - slope / bend if bend > 0 else 0.0
        if abs(step - inverse) <= CLOSE * inverse:
            return 1 / inverse
        inverse = step if low < step < high else math.sqrt(low * high)
    return 1 / inverse


def _slopes(logits: Float[Tensor, "b k"], inverse: float) -> tuple[float, float]:
    """First and second derivative of the mean loss by the inverse temperature; logits are relative to the right class."""
    chance = F.softmax(logits * inverse, dim=1)
    mean = (chance * logits).sum(1, keepdim=True)
    return mean.mean().item(), (chance * (logits - mean) ** 2).sum(1).mean().item()
