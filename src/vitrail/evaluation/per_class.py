"""Per-class metrics: precision, recall, F1 and the confusion matrix. b images, k classes.

Top-1, top-5 and loss are the task's own (``tasks/classification.py``). The conventions are scikit-learn's: a class that is
never predicted has precision 0, and macro averages are over the classes that have images.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class PerClassMetrics:
    """Per-class counts, and the metrics that follow from them."""

    support: Int[Tensor, " k"]  # images of the class
    predicted: Int[Tensor, " k"]  # images predicted as it
    true_positives: Int[Tensor, " k"]  # images of the class predicted as it

    @property
    def precision(self) -> Float[Tensor, " k"]:
        return self.true_positives.double() / self.predicted.clamp(min=1)

    @property
    def recall(self) -> Float[Tensor, " k"]:
        return self.true_positives.double() / self.support.clamp(min=1)

    @property
    def f1(self) -> Float[Tensor, " k"]:
        """Harmonic mean of precision and recall."""
        return 2 * self.true_positives.double() / (self.support + self.predicted).clamp(min=1)

    @property
    def present(self) -> Int[Tensor, " m"]:
        """Classes that have images or are predicted."""
        return (self.support + self.predicted).nonzero()[:, 0]

    def macro_average(self) -> dict[str, float]:
        """Return the unweighted means over the classes that have images."""
        has_images = self.support > 0
        return {name: getattr(self, name)[has_images].mean().item() for name in ("precision", "recall", "f1")}


def per_class_metrics(predicted: Int[Tensor, " b"], labels: Int[Tensor, " b"], classes: int) -> PerClassMetrics:
    support, predicted_counts, true_positives = (
        torch.bincount(each, minlength=classes) for each in (labels, predicted, labels[labels == predicted])
    )
    return PerClassMetrics(support, predicted_counts, true_positives)


def confusion_matrix(predicted: Int[Tensor, " b"], labels: Int[Tensor, " b"], classes: int) -> Int[Tensor, "k k"]:
    """Return the confusion matrix: rows are true classes, columns predicted ones."""
    return torch.bincount(labels * classes + predicted, minlength=classes**2).view(classes, classes)


def most_confused(predicted: Int[Tensor, " b"], labels: Int[Tensor, " b"]) -> list[tuple[int, int, int]]:
    """Return (true class, predicted class, count), the most frequent confusion first. Needs no matrix, which may be huge."""
    wrong = torch.stack([labels, predicted], dim=1)[labels != predicted]
    pairs, counts = torch.unique(wrong, dim=0, return_counts=True)
    order = counts.argsort(descending=True, stable=True)
    return [
        (label, prediction, count)
        for (label, prediction), count in zip(pairs[order].tolist(), counts[order].tolist(), strict=True)
    ]
