"""Image classification: softmax or sigmoid loss with label smoothing, mixed images and class weights. b images, k classes."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.augment.mixup import soft_targets
from vitrail.data.loader import Batch
from vitrail.data.sources.dataset import Dataset, DatasetSplits
from vitrail.errors import VitrailError
from vitrail.recipes.task_config import Classification, LossName
from vitrail.tasks.task import ImageScore, Loss, Prediction, Task


@dataclass(frozen=True)
class ClassProbability:
    label: str
    probability: float


@dataclass(frozen=True)
class ClassPrediction(Prediction):
    """The most probable classes of an image; ``label`` and ``probability`` repeat the first of ``top``."""

    label: str | None = None
    probability: float | None = None
    top: tuple[ClassProbability, ...] = ()

    def cells(self) -> dict[str, Any]:
        return {
            name: value
            for rank, entry in enumerate(self.top, 1)
            for name, value in zip(_columns(rank), (entry.label, entry.probability), strict=True)
        }

    def text(self) -> list[str]:
        return [cell for entry in self.top for cell in (entry.label, f"{entry.probability:.2%}")]


def _columns(rank: int) -> tuple[str, str]:
    return ("label", "probability") if rank == 1 else (f"label_{rank}", f"probability_{rank}")


@dataclass(frozen=True)
class ClassificationTask(Task):
    """Single-label classification."""

    class_weights: Tensor | None = None  # one per class
    custom_loss: Loss | None = None  # in place of softmax and sigmoid

    config_class: ClassVar = Classification
    primary_metric: ClassVar[str] = "top1"
    has_classes: ClassVar[bool] = True
    fractions: ClassVar[tuple[str, ...]] = ("accuracy", "top1", "top5")
    image_score: ClassVar = ImageScore("top1", "accuracy")
    agreement_title: ClassVar[str] = "same top-1 prediction"
    output_name: ClassVar[str] = "logits"
    target_name: ClassVar[str] = "labels"
    prediction_class: ClassVar = ClassPrediction

    def with_data(self, data: DatasetSplits) -> "ClassificationTask":
        classes = len(data.class_names)
        if classes < 2:
            raise VitrailError(
                f"{data.name} has {classes} class{'' if classes == 1 else 'es'}; classification needs at least two"
            )
        if self.model.classes != classes:
            raise VitrailError(
                f"model.classes must be {classes}, the number of classes of {data.name}, got {self.model.classes}"
            )
        if not self.config.balanced_loss:
            return self
        return replace(self, class_weights=balanced_class_weights(torch.from_numpy(data.train.labels), classes))

    def with_loss(self, loss: Loss) -> "ClassificationTask":
        return replace(self, custom_loss=loss)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        device = next(model.parameters()).device
        logits = model(batch.images.to(device, non_blocking=True)).float()
        labels = batch.targets.to(device)
        metrics = {"accuracy": (logits.argmax(1) == labels).float().mean()}
        if self.custom_loss is not None:
            return self.custom_loss(logits, labels if batch.lam is None else self._soft_targets(batch, labels)), metrics
        if self.config.loss == "sigmoid":
            losses = self._sigmoid(logits, batch, labels)
        else:
            losses = self._softmax(logits, labels)
            if batch.mixed_targets is not None and batch.lam is not None:
                lam = batch.lam.to(device)
                losses = lam * losses + (1 - lam) * self._softmax(logits, batch.mixed_targets.to(device))
        return losses.mean(), metrics

    def _soft_targets(self, batch: Batch, labels: Int[Tensor, " b"]) -> Float[Tensor, "b k"]:
        """Return the class probabilities of images that may be mixed."""
        mixed_labels = labels if batch.mixed_targets is None else batch.mixed_targets.to(labels.device)
        lam = torch.ones(len(labels), device=labels.device) if batch.lam is None else batch.lam.to(labels.device)
        return soft_targets(labels, mixed_labels, lam, self.model.classes)

    def _softmax(self, logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=self.config.label_smoothing)
        return losses if self.class_weights is None else losses * self.class_weights.to(losses.device)[labels]

    def _sigmoid(self, logits: Float[Tensor, "b k"], batch: Batch, labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        smoothing = self.config.label_smoothing
        target = self._soft_targets(batch, labels) * (1 - smoothing) + smoothing / self.model.classes
        losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(1)
        return losses if self.class_weights is None else losses * self.class_weights.to(losses.device)[labels]

    def metrics(self, outputs: Float[Tensor, "b k"], targets: Int[Tensor, " b"]) -> dict[str, float]:
        scores = mean_scores(outputs, targets, self.config.loss)
        return scores if self.custom_loss is None else {**scores, "loss": float(self.custom_loss(outputs, targets))}

    def image_scores(self, outputs: Float[Tensor, "b k"], targets: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        """Return 1 for each image whose first prediction is correct, else 0."""
        return per_image_scores(outputs, targets, self.config.loss)["top1"]

    def baseline(self, train: Dataset, split: Dataset) -> dict[str, float]:
        """Return the accuracy of always predicting the most frequent class of the training images."""
        labels = train.labels[train.labels >= 0]
        majority = (split.labels == np.bincount(labels).argmax()).mean() if len(labels) and len(split) else 0.0
        return {"majority_class": float(majority)}

    @property
    def has_sigmoid(self) -> bool:
        return bool(self.config.loss == "sigmoid")

    def probabilities(self, outputs: Float[Tensor, "*b k"]) -> Float[Tensor, "*b k"]:
        return class_probabilities(outputs, self.config.loss)

    def predictions(self, outputs: Float[Tensor, "b k"], top_k: int) -> list[ClassPrediction]:
        """Return the most probable classes, of equal ones the first."""
        order = outputs.argsort(dim=1, descending=True, stable=True)[:, :top_k]
        probabilities = self.probabilities(outputs.double()).gather(1, order)
        rows = [
            tuple(ClassProbability(self.class_names[number], value) for number, value in zip(*row, strict=True))
            for row in zip(order.tolist(), probabilities.tolist(), strict=True)
        ]
        return [ClassPrediction(label=top[0].label, probability=top[0].probability, top=top) for top in rows]

    def columns(self, top_k: int) -> list[str]:
        return [column for rank in range(1, min(top_k, self.model.classes) + 1) for column in _columns(rank)]

    def table_columns(self) -> dict[str, int]:
        return {"label": max(map(len, self.class_names)), "probability": 11}

    def export_outputs(self, outputs: Float[Tensor, "b k"]) -> dict[str, Tensor]:
        return {self.output_name: outputs, "probabilities": self.probabilities(outputs)}

    def agreement(self, outputs: Float[Tensor, "b k"], expected: Float[Tensor, "b k"]) -> float:
        """Return the fraction of images with the same top-1 prediction."""
        return float((outputs.argmax(1) == expected.argmax(1)).double().mean())


def class_probabilities(logits: Float[Tensor, "*b k"], loss: LossName) -> Float[Tensor, "*b k"]:
    """Return the softmax or, for a model that was trained with the sigmoid loss, the sigmoid of each class."""
    return logits.sigmoid() if loss == "sigmoid" else logits.softmax(dim=-1)


def mean_scores(logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], loss: LossName = "softmax") -> dict[str, float]:
    """Return top-1 and top-5 accuracy as fractions, and the mean negative log-likelihood."""
    return {name: values.mean().item() for name, values in per_image_scores(logits, labels, loss).items()}


def per_image_scores(
    logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"], loss: LossName = "softmax"
) -> dict[str, Float[Tensor, " b"]]:
    """Return top-1 and top-5 correctness of each image, as 0 or 1, and its loss: the negative log-likelihood of its label.

    Of equal logits the first counts; NaN is never correct.
    """
    true_logit, classes = logits.gather(1, labels[:, None]), logits.shape[1]
    later_tie = (logits == true_logit) & (torch.arange(classes) >= labels[:, None])  # includes the class itself
    ranked_below = (logits < true_logit) | later_tie
    rank = classes - ranked_below.sum(1)
    return {
        "top1": (rank == 0).double(),
        "top5": (rank < min(5, classes)).double(),
        "loss": _negative_log_likelihood(logits.double(), labels, loss),
    }


def _negative_log_likelihood(logits: Tensor, labels: Int[Tensor, " b"], loss: LossName) -> Float[Tensor, " b"]:
    """Return the loss of each image without smoothing; of sigmoids, the sum over the classes."""
    if loss == "softmax":
        return F.cross_entropy(logits, labels, reduction="none")
    target = F.one_hot(labels, logits.shape[1]).to(logits)
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(1)


def balanced_class_weights(labels: Int[Tensor, " n"], classes: int) -> Float[Tensor, " k"]:
    """Return class weights inverse to class frequency, with mean 1 over the images."""
    counts = torch.bincount(labels[labels >= 0], minlength=classes).double()
    weights = torch.where(counts > 0, counts.sum() / (counts.clamp(min=1) * (counts > 0).sum()), 0.0)
    return weights.float()
