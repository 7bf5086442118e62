"""Per-class metrics: precision, recall, F1 and the confusion matrix. b images, k classes.

Top-1, top-5 and loss are the task's own (``tasks/classification.py``). The conventions are scikit-learn's: a class that is
never predicted has precision 0, and macro averages are over the classes that have images.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class ByClass:
    """Per-class counts, and the metrics that follow from them."""

    support: Int[Tensor, " k"]  # images of the class
    said: Int[Tensor, " k"]  # images predicted as it
    right: Int[Tensor, " k"]  # true positives

    @property
    def precision(self) -> Float[Tensor, " k"]:
        return self.right.double() / self.said.clamp(min=1)

    @property
    def recall(self) -> Float[Tensor, " k"]:
        return self.right.double() / self.support.clamp(min=1)

    @property
    def f1(self) -> Float[Tensor, " k"]:
        """Harmonic mean of precision and recall."""
        return 2 * self.right.double() / (self.support + self.said).clamp(min=1)

    @property
    def occurring(self) -> Int[Tensor, " m"]:
        """Classes that have images or are predicted."""
        return (self.support + self.said).nonzero()[:, 0]

    def macro(self) -> dict[str, float]:
        """Return the unweighted means over the classes that have images."""
        there = self.support > 0
        return {name: getattr(self, name)[there].mean().item() for name in ("precision", "recall", "f1")}


def by_class(guesses: Int[Tensor, " b"], labels: Int[Tensor, " b"], classes: int) -> ByClass:
    support, said, right = (torch.bincount(each, minlength=classes) for each in (labels, guesses, labels[labels == guesses]))
    return ByClass(support, said, right)


def confusion(guesses: Int[Tensor, " b"], labels: Int[Tensor, " b"], classes: int) -> Int[Tensor, "k k"]:
    """Return the confusion matrix: rows are true classes, columns predicted ones."""
    return torch.bincount(labels * classes + guesses, minlength=classes**2).view(classes, classes)


def confused(guesses: Int[Tensor, " b"], labels: Int[Tensor, " b"]) -> list[tuple[int, int, int]]:
    """Return (true class, predicted class, count), the most frequent confusion first. Needs no matrix, which may be huge."""
    wrong = torch.stack([labels, guesses], dim=1)[labels != guesses]
    pairs, times = torch.unique(wrong, dim=0, return_counts=True)
    order = times.argsort(descending=True, stable=True)
    return [(shown, said, count) for (shown, said), count in zip(pairs[order].tolist(), times[order].tolist(), strict=True)]
