"""Expected calibration error and temperature scaling, after Guo et al. 2017.

The confidence is the softmax of the predicted class. It falls into one of 15 bins of equal width, open below and closed
above; the error is the gap between mean confidence and accuracy of a bin, averaged over the images.
b images, k classes, n bins.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

BINS = 15
HOTTEST = 100.0  # its inverse is the smallest temperature
CLOSE = 1e-9  # relative tolerance of the search
AT_ONCE = 2**15  # logits per softmax: those of all of ImageNet would not fit the CPU's cache


@dataclass(frozen=True)
class Reliability:
    """Image count, mean confidence and accuracy of each bin; both means are 0 in an empty bin."""

    pictures: Int[Tensor, " n"]
    confidence: Float[Tensor, " n"]
    accuracy: Float[Tensor, " n"]

    @property
    def error(self) -> float:
        """Expected calibration error (ECE)."""
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
    """Return the confidence, the correctness (0 or 1) and the bin of each image."""
    sure = logits.double().softmax(1).amax(1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
    return sure, (logits.argmax(1) == labels).double(), torch.bucketize(sure, edges)


def temperature(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"]) -> float:
    """Return the temperature to divide the logits by that minimises the loss on these images.

    The loss is convex in the inverse temperature, so Newton's method finds the minimum, kept between two values that enclose
    it. If there is none (every image is right, so more confidence is always better), the end of the range is returned.
    """
    low, high, inverse = 1 / HOTTEST, HOTTEST, 1.0
    ends = {low, high}  # whose slopes are not computed yet
    while high / low > 1 + CLOSE:
        slope, bend = _slopes(logits, labels, inverse)
        if slope == bend == 0:  # all logits equal, so any temperature will do; or so far apart that slopes underflow
            return 1.0 if _slopes(logits, labels, low)[0] == 0 else 1 / high
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        step = inverse - slope / bend if bend > 0 else 0.0
        if abs(step - inverse) <= CLOSE * inverse:
            return 1 / inverse
        if not low < step < high:
            end = high if slope < 0 else low
            if end in ends and math.copysign(1, slope) * _slopes(logits, labels, end)[0] >= 0:
                return 1 / end
            ends.discard(end)
            step = math.sqrt(low * high)
        inverse = step
    return 1 / inverse


def _slopes(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], inverse: float) -> tuple[float, float]:
    """Return the first and second derivative of the mean loss in the inverse temperature, computed in chunks of images."""
    slope = bend = 0.0
    each = max(AT_ONCE // logits.shape[1], 1)
    for part, right in zip(logits.split(each), labels.split(each), strict=True):
        beyond = part.double()
        beyond = beyond - beyond.gather(1, right[:, None])  # the right class
        chance = F.softmax(beyond * inverse, dim=1)
        mean = torch.linalg.vecdot(chance, beyond)
        beyond -= mean[:, None]
        slope += mean.sum().item()
        bend += torch.linalg.vecdot(chance, beyond.square_()).sum().item()
    return slope / len(labels), bend / len(labels)
