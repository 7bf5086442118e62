"""Image classification: softmax or sigmoid loss with label smoothing, mixed images and class weights. b images, k classes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.augment.mix import targets
from vitrail.data.loader import Batch, Loader
from vitrail.tasks.task import Gather, own


@dataclass(frozen=True)
class Classify:
    """Single-label classification. ``sigmoid`` is one binary classifier per class (Beyer et al. 2020)."""

    classes: int
    kind: str = "softmax"
    smoothing: float = 0.0
    weights: Tensor | None = None  # one per class
    main: str = "top1"
    smaller: bool = False

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        device = next(model.parameters()).device
        logits = model(batch.images.to(device, non_blocking=True)).float()
        labels = batch.labels.to(device)
        if self.kind == "sigmoid":
            each = self._sigmoid(logits, batch, labels)
        else:
            each = self._softmax(logits, labels)
            if batch.others is not None and batch.share is not None:
                share = batch.share.to(device)
                each = share * each + (1 - share) * self._softmax(logits, batch.others.to(device))
        return each.mean(), {"accuracy": (logits.argmax(1) == labels).float().mean()}

    def _softmax(self, logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        each = F.cross_entropy(logits, labels, reduction="none", label_smoothing=self.smoothing)
        return each if self.weights is None else each * self.weights.to(each.device)[labels]

    def _sigmoid(self, logits: Float[Tensor, "b k"], batch: Batch, labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        others = labels if batch.others is None else batch.others.to(labels.device)
        share = torch.ones_like(logits[:, 0]) if batch.share is None else batch.share.to(labels.device)
        wanted = targets(labels, others, share, self.classes)
        wanted = wanted * (1 - self.smoothing) + self.smoothing / self.classes
        each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(1)
        return each if self.weights is None else each * self.weights.to(each.device)[labels]

    @torch.no_grad()
    def evaluate(self, model: nn.Module, loader: Loader, workers: int, gather: Gather = own) -> dict[str, Any]:
        """Return ``top1``, ``top5``, ``loss``, and the logits, labels and indices of the images for the report."""
        logits, labels, indices = (gather(column) for column in predictions(model, loader, workers))
        order = indices.argsort()
        logits, labels, indices = logits[order], labels[order], indices[order]
        return {**scores(logits, labels), "logits": logits, "labels": labels, "indices": indices}


@torch.inference_mode()
def predictions(
    model: nn.Module, loader: Loader, workers: int | None, seen: Callable[[int], None] = lambda images: None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, labels and indices of every image, in order, on the CPU; ``on_progress`` gets the image count."""
    was, device = model.training, next(model.parameters()).device
    model.eval()
    rows, done = [], 0
    try:
        for batch in loader.batches(workers=workers):
            rows.append((model(batch.images.to(device)).float().cpu(), batch.labels, batch.indices))
            done += batch.labels.shape[0]
            seen(done)
    finally:
        model.train(was)
    logits, labels, indices = (torch.cat(column) for column in zip(*rows, strict=True))
    return logits, labels, indices


def scores(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"]) -> dict[str, float]:
    """Return top-1 and top-5 accuracy as fractions, and the mean loss."""
    return {name: values.mean().item() for name, values in marks(logits, labels).items()}


def marks(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"]) -> dict[str, Float[Tensor, " b"]]:
    """Return top-1 and top-5 correctness of each image, as 0 or 1, and its loss.

    Of equal logits the first counts; NaN is never correct.
    """
    own, classes = logits.gather(1, labels[:, None]), logits.shape[1]
    behind = (logits < own) | ((logits == own) & (torch.arange(classes) >= labels[:, None]))  # the class itself included
    place = classes - behind.sum(1)
    return {
        "top1": (place == 0).double(),
        "top5": (place < min(5, classes)).double(),
        "loss": F.cross_entropy(logits.double(), labels, reduction="none"),
    }


def class_weights(labels: Int[Tensor, " n"], classes: int) -> Float[Tensor, " k"]:
    """Return class weights inverse to class frequency, with mean 1 over the images."""
    counts = torch.bincount(labels[labels >= 0], minlength=classes).double()
    weights = torch.where(counts > 0, counts.sum() / (counts.clamp(min=1) * (counts > 0).sum()), 0.0)
    return weights.float()
