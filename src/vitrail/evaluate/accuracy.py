"""Class by class: how many were found, how many were right when said, and what was taken for what. b pictures, k classes.

Top-1, top-5 and loss are the task's own (``tasks/classify.py``). The conventions are scikit-learn's: what was never said has
precision 0, and means over classes are over those that have pictures.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class ByClass:
    """Counts of each class, and the shares that follow from them."""

    support: Int[Tensor, " k"]  # pictures that show it
    said: Int[Tensor, " k"]  # pictures it was seen in
    right: Int[Tensor, " k"]  # both

    @property
    def precision(self) -> Float[Tensor, " k"]:
        return self.right.double() / self.said.clamp(min=1)

    @property
    def recall(self) -> Float[Tensor, " k"]:
        return self.right.double() / self.support.clamp(min=1)

    @property
    def f1(self) -> Float[Tensor, " k"]:
        """The harmonic mean of the two."""
        return 2 * self.right.double() / (self.support + self.said).clamp(min=1)

    @property
    def occurring(self) -> Int[Tensor, " m"]:
        """Classes that are shown or said."""
        return (self.support + self.said).nonzero()[:, 0]

    def macro(self) -> dict[str, float]:
        """Every class that has pictures counts alike, however many it has."""
        there = self.support > 0
        return {name: getattr(self, name)[there].mean().item() for name in ("precision", "recall", "f1")}


def by_class(guesses: Int[Tensor, " b"], labels: Int[Tensor, " b"], classes: int) -> ByClass:
    support, said, right = (torch.bincount(each, minlength=classes) for each in (labels, guesses, labels[labels == guesses]))
    return ByClass(support, said, right)


def confusion(guesses: Int[Tensor, " b"], labels: Int[Tensor, " b"], classes: int) -> Int[Tensor, "k k"]:
    """Rows are what is shown, columns what was said."""
    return torch.bincount(labels * classes + guesses, minlength=classes**2).view(classes, classes)


def confused(guesses: Int[Tensor, " b"], labels: Int[Tensor, " b"]) -> list[tuple[int, int, int]]:
    """What is shown, what was said instead, how often: the most frequent first. Needs no matrix, which may be huge."""
    wrong = torch.stack([labels, guesses], dim=1)[labels != guesses]
    pairs, times = torch.unique(wrong, dim=0, return_counts=True)
    order = times.argsort(descending=True, stable=True)
    return [(shown, said, count) for (shown, said), count in zip(pairs[order].tolist(), times[order].tolist(), strict=True)]
