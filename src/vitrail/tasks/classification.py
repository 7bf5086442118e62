"""Image classification: softmax or sigmoid loss with label smoothing, mixed images and class weights. b images, k classes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.augment.mixup import soft_targets
from vitrail.data.loader import Batch, Loader
from vitrail.tasks.task import Gather, no_gather


@dataclass(frozen=True)
class ClassificationTask:
    """Single-label classification. ``sigmoid`` is one binary classifier per class (Beyer et al. 2020)."""

    classes: int
    kind: str = "softmax"
    label_smoothing: float = 0.0
    class_weights: Tensor | None = None  # one per class
    primary_metric: str = "top1"
    lower_is_better: bool = False

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        device = next(model.parameters()).device
        logits = model(batch.images.to(device, non_blocking=True)).float()
        labels = batch.labels.to(device)
        if self.kind == "sigmoid":
            losses = self._sigmoid(logits, batch, labels)
        else:
            losses = self._softmax(logits, labels)
            if batch.mixed_labels is not None and batch.lam is not None:
                lam = batch.lam.to(device)
                losses = lam * losses + (1 - lam) * self._softmax(logits, batch.mixed_labels.to(device))
        return losses.mean(), {"accuracy": (logits.argmax(1) == labels).float().mean()}

    def _softmax(self, logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=self.label_smoothing)
        return losses if self.class_weights is None else losses * self.class_weights.to(losses.device)[labels]

    def _sigmoid(self, logits: Float[Tensor, "b k"], batch: Batch, labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        mixed_labels = labels if batch.mixed_labels is None else batch.mixed_labels.to(labels.device)
        lam = torch.ones_like(logits[:, 0]) if batch.lam is None else batch.lam.to(labels.device)
        target = soft_targets(labels, mixed_labels, lam, self.classes)
        target = target * (1 - self.label_smoothing) + self.label_smoothing / self.classes
        losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(1)
        return losses if self.class_weights is None else losses * self.class_weights.to(losses.device)[labels]

    @torch.no_grad()
    def evaluate(self, model: nn.Module, loader: Loader, workers: int, gather: Gather = no_gather) -> dict[str, Any]:
        """Return ``top1``, ``top5``, ``loss``, and the logits, labels and indices of the images for the report."""
        logits, labels, indices = (gather(column) for column in run_model(model, loader, workers))
        order = indices.argsort()
        logits, labels, indices = logits[order], labels[order], indices[order]
        return {**mean_scores(logits, labels), "logits": logits, "labels": labels, "indices": indices}


@torch.inference_mode()
def run_model(
    model: nn.Module, loader: Loader, workers: int | None, on_progress: Callable[[int], None] = lambda images: None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, labels and indices of every image, in order, on the CPU; ``on_progress`` gets the image count."""
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    rows, count = [], 0
    try:
        for batch in loader.batches(workers=workers):
            rows.append((model(batch.images.to(device)).float().cpu(), batch.labels, batch.indices))
            count += batch.labels.shape[0]
            on_progress(count)
    finally:
        model.train(was_training)
    logits, labels, indices = (torch.cat(column) for column in zip(*rows, strict=True))
    return logits, labels, indices


def mean_scores(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"]) -> dict[str, float]:
    """Return top-1 and top-5 accuracy as fractions, and the mean loss."""
    return {name: values.mean().item() for name, values in per_image_scores(logits, labels).items()}


def per_image_scores(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"]) -> dict[str, Float[Tensor, " b"]]:
    """Return top-1 and top-5 correctness of each image, as 0 or 1, and its loss.

    Of equal logits the first counts; NaN is never correct.
    """
    true_logit, classes = logits.gather(1, labels[:, None]), logits.shape[1]
    later_tie = (logits == true_logit) & (torch.arange(classes) >= labels[:, None])  # includes the class itself
    ranked_below = (logits < true_logit) | later_tie
    rank = classes - ranked_below.sum(1)
    return {
        "top1": (rank == 0).double(),
        "top5": (rank < min(5, classes)).double(),
        "loss": F.cross_entropy(logits.double(), labels, reduction="none"),
    }


def balanced_class_weights(labels: Int[Tensor, " n"], classes: int) -> Float[Tensor, " k"]:
    """Return class weights inverse to class frequency, with mean 1 over the images."""
    counts = torch.bincount(labels[labels >= 0], minlength=classes).double()
    weights = torch.where(counts > 0, counts.sum() / (counts.clamp(min=1) * (counts > 0).sum()), 0.0)
    return weights.float()
