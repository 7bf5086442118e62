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
AT_ONCE = 2**15  # logits whose softmax is computed at a time: all those of ImageNet would leave the processor's cache


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
    low, high, inverse = 1 / HOTTEST, HOTTEST, 1.0
    ends = {low, high}  # whose slopes nobody has looked at
    while high / low > 1 + CLOSE:
        slope, bend = _slopes(logits, labels, inverse)
        if slope == bend == 0:  # all logits are equal, and any temperature is as good; or so far apart that it looks like it
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
    """First and second derivative of the mean loss by the inverse temperature, a few pictures at a time."""
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
