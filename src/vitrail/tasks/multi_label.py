"""Multi-label classification: a binary classifier per class, for images with several labels or none. b images, k classes.

Losses: binary cross-entropy with weighted positives; focal loss (Lin et al. 2017, https://arxiv.org/abs/1708.02002); asymmetric
loss (Ridnik et al. 2021, https://arxiv.org/abs/2009.14119). Each is the sum over the classes, for hard and for mixed targets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, UInt8
from numpy import ndarray
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.data.loader import Batch, Loader
from vitrail.data.sources.dataset import Dataset, DatasetSplits, as_label_sets, class_counts
from vitrail.errors import VitrailError
from vitrail.models.build import Model
from vitrail.recipes.task_config import MultiLabel
from vitrail.tasks.classification import ClassProbability
from vitrail.tasks.label_metrics import (
    average_precision,
    best_thresholds,
    count_labels,
    coverage,
    label_calibration_error,
    label_losses,
    ranking_precision,
)
from vitrail.tasks.task import Gather, ImageScore, Loss, Prediction, Task, no_gather
from vitrail.tasks.thresholds import check_threshold, read_thresholds

MIN_POSITIVES = 5  # images of a class on validation for a threshold of its own
THRESHOLD_METRICS = ("f1_macro", "f1_micro", "hamming", "subset_accuracy")
LABEL_SEPARATOR = ";"  # between the labels of an image in a CSV file


@dataclass(frozen=True)
class MultiLabelPrediction(Prediction):
    """The classes of an image whose probability reaches their threshold, most probable first, and the most probable classes of
    all as ``top``."""

    labels: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()  # of ``labels``
    top: tuple[ClassProbability, ...] = ()

    def cells(self) -> dict[str, Any]:
        cells: dict[str, Any] = {"labels": LABEL_SEPARATOR.join(self.labels)}
        for rank, entry in enumerate(self.top, 1):
            cells |= {f"label_{rank}": entry.label, f"probability_{rank}": entry.probability}
        return cells

    def text(self) -> list[str]:
        chosen = [f"{label} {value:.1%}" for label, value in zip(self.labels, self.probabilities, strict=True)]
        others = [f"({entry.label} {entry.probability:.1%})" for entry in self.top if entry.label not in self.labels]
        return ["  ".join([*(chosen or ["none"]), *others])]


@dataclass(frozen=True)
class MultiLabelTask(Task):
    """Several labels per image, or none."""

    positive_weights: Float[Tensor, " k"] | None = None  # of the loss, one per class
    frequencies: Float[Tensor, " k"] | None = None  # of the classes in the training images
    thresholds: tuple[float, ...] | None = None  # of the probabilities; None: 0.5
    custom_loss: Loss | None = None

    config_class: ClassVar = MultiLabel
    primary_metric: ClassVar[str] = "map"
    has_classes: ClassVar[bool] = True
    fits_validation: ClassVar[bool] = True
    fractions: ClassVar[tuple[str, ...]] = (
        "map", "map_micro", "map_weighted", "f1_macro", "f1_micro", "f1_macro_at_0.5", "f1_micro_at_0.5", "hamming",
        "subset_accuracy", "ece",
    )  # fmt: skip
    curves: ClassVar[tuple[str, ...] | None] = ("map", "map_micro", "f1_micro_at_0.5")
    metric_titles: ClassVar[Mapping[str, str]] = {
        "map": "mAP",
        "map_micro": "mAP, micro average",
        "map_weighted": "mAP, weighted by frequency",
        "f1_macro": "F1, macro average",
        "f1_micro": "F1, micro average",
        "f1_macro_at_0.5": "F1 at 0.5, macro average",
        "f1_micro_at_0.5": "F1 at 0.5, micro average",
        "hamming": "Hamming loss",
        "subset_accuracy": "all labels right",
        "nll": "NLL",
        "ece": "ECE",
    }
    image_score: ClassVar = ImageScore("ranking_precision", "ranking precision")
    agreement_title: ClassVar[str] = "same decision, over images and labels"
    output_name: ClassVar[str] = "logits"
    prediction_class: ClassVar = MultiLabelPrediction

    def with_data(self, data: DatasetSplits) -> "MultiLabelTask":
        classes = len(data.class_names)
        if not classes:
            raise VitrailError(f"{data.name} has no labels; name their column by labels_column=NAME")
        if self.model.classes != classes:
            raise VitrailError(
                f"model.classes must be {classes}, the number of labels of {data.name}, got {self.model.classes}"
            )
        counts = torch.from_numpy(class_counts(as_label_sets(data.train))).double()
        images = max(len(data.train), 1)
        task = replace(self, frequencies=((counts + 1) / (images + 2)).float())  # Laplace's rule: none is 0 or 1
        if not self.config.balanced_loss:
            return task
        ratios = (images - counts) / counts.clamp(min=1)
        return replace(task, positive_weights=ratios.clamp(1, self.config.max_positive_weight).float())

    def with_loss(self, loss: Loss) -> "MultiLabelTask":
        return replace(self, custom_loss=loss)

    def with_validation(self, scores: Mapping[str, Any]) -> "MultiLabelTask":
        """Return the task with thresholds chosen for F1 on the validation images."""
        outputs, targets = scores[self.output_name], scores[self.target_name]
        chosen = best_thresholds(self.probabilities(outputs.double()), targets.bool(), MIN_POSITIVES)
        return replace(self, thresholds=tuple(chosen))

    def validation_metrics(self, scores: Mapping[str, Any]) -> dict[str, float]:
        return self.metrics(scores[self.output_name], scores[self.target_name])

    def state(self) -> dict[str, Any]:
        return {} if self.thresholds is None else {"thresholds": list(self.thresholds)}

    def with_state(self, state: Mapping[str, Any]) -> "MultiLabelTask":
        return replace(self, thresholds=read_thresholds(state, self.model.classes))

    def with_threshold(self, threshold: float) -> "MultiLabelTask":
        return replace(self, thresholds=(check_threshold(threshold),) * self.model.classes)

    def build_model(self, encoder: Model) -> nn.Module:
        """Start a new classifier at the frequency of each class, so that rare ones need not be unlearned first."""
        bias = getattr(getattr(encoder, "head", None), "bias", None)
        if isinstance(bias, Tensor) and self.frequencies is not None and not bias.any():
            with torch.no_grad():
                bias.copy_(self.frequencies.logit())
        return encoder

    def targets(self, dataset: Dataset, indices: ndarray) -> UInt8[Tensor, "b k"]:
        label_sets = as_label_sets(dataset).label_sets
        if label_sets is None:
            raise VitrailError(f"{dataset.name} has no labels, which {self.config.name} needs; name a labelled dataset")
        return torch.from_numpy(label_sets.rows(indices))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        device = next(model.parameters()).device
        logits = model(batch.images.to(device, non_blocking=True)).float()
        targets = batch.targets.to(device).float()
        if batch.mixed_targets is not None and batch.lam is not None:
            lam = batch.lam.to(device)[:, None]
            targets = lam * targets + (1 - lam) * batch.mixed_targets.to(device).float()
        if self.custom_loss is not None:
            return self.custom_loss(logits, targets), {}
        smoothing = self.config.label_smoothing
        return self._losses(logits, targets * (1 - smoothing) + smoothing / 2).sum(1).mean(), {}

    def _losses(self, logits: Float[Tensor, "b k"], targets: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
        config = self.config
        if config.loss == "focal":
            return focal_loss(logits, targets, config.focal_gamma, config.focal_alpha)
        if config.loss == "asymmetric":
            return asymmetric_loss(logits, targets, config.gamma_positive, config.gamma_negative, config.margin)
        weights = None if self.positive_weights is None else self.positive_weights.to(logits.device)
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none", pos_weight=weights)

    def evaluate(self, model: nn.Module, loader: Loader, workers: int, gather: Gather = no_gather) -> dict[str, Any]:
        """Return the metrics and outputs; before the thresholds are chosen, without the metrics that depend on them."""
        scores = super().evaluate(model, loader, workers, gather)
        left_out = THRESHOLD_METRICS if self.thresholds is None else ()
        return {name: value for name, value in scores.items() if name not in left_out}

    def metrics(self, outputs: Float[Tensor, "b k"], targets: UInt8[Tensor, "b k"]) -> dict[str, float]:
        positive, probabilities = targets.bool(), self.probabilities(outputs.double())
        losses = label_losses(outputs, positive).mean() if self.custom_loss is None else self.custom_loss(outputs, targets)
        precisions = torch.cat([average_precision(*column) for column in zip(outputs.T, positive.T, strict=True)])
        support, predicted = positive.sum(0), self.decisions(probabilities)
        chosen, at_half = count_labels(predicted, positive), count_labels(probabilities >= 0.5, positive)
        values = {
            "loss": losses,
            "map": precisions.mean(),
            "map_micro": average_precision(outputs.flatten(), positive.flatten())[0],
            "map_weighted": (precisions * support).sum() / support.sum().clamp(min=1),
            "f1_macro": chosen.f1_macro,
            "f1_micro": chosen.f1_micro,
            "f1_macro_at_0.5": at_half.f1_macro,
            "f1_micro_at_0.5": at_half.f1_micro,
            "hamming": (predicted != positive).double().mean(),
            "subset_accuracy": (predicted == positive).all(1).double().mean(),
            "coverage": coverage(outputs, positive).mean(),
            "ece": label_calibration_error(probabilities, positive).mean(),
        }
        return {name: float(value) for name, value in values.items()}

    def details(self, outputs: Float[Tensor, "b k"], targets: UInt8[Tensor, "b k"]) -> dict[str, Any]:
        positive, probabilities = targets.bool(), self.probabilities(outputs.double())
        counts, thresholds = count_labels(self.decisions(probabilities), positive), self.threshold_row().tolist()
        errors = label_calibration_error(probabilities, positive)
        return {
            "classes": [
                {
                    "name": name,
                    "ap": float(average_precision(outputs[:, label], positive[:, label])),
                    "threshold": thresholds[label],
                    "precision": float(counts.precision[label]),
                    "recall": float(counts.recall[label]),
                    "f1": float(counts.f1[label]),
                    "ece": float(errors[label]),
                    "support": int(counts.support[label]),
                }
                for label, name in enumerate(self.class_names)
            ]
        }

    def image_scores(self, outputs: Float[Tensor, "b k"], targets: UInt8[Tensor, "b k"]) -> Float[Tensor, " b"]:
        """Return the average precision of the ranking of each image's classes."""
        return ranking_precision(outputs, targets.bool())

    def baseline(self, train: Dataset, split: Dataset) -> dict[str, float]:
        """Return the mAP of a random ranking: the mean frequency of the classes."""
        label_sets = as_label_sets(split).label_sets
        if label_sets is None or not len(split):
            return {}
        return {"random_ranking": float((label_sets.counts() / len(split)).mean())}

    @property
    def has_sigmoid(self) -> bool:
        return True

    def probabilities(self, outputs: Float[Tensor, "*b k"]) -> Float[Tensor, "*b k"]:
        return outputs.sigmoid()

    def threshold_row(self) -> Float[Tensor, " k"]:
        """Return the threshold of each class."""
        thresholds = (0.5,) * self.model.classes if self.thresholds is None else self.thresholds
        return torch.tensor(thresholds, dtype=torch.float64)

    def decisions(self, probabilities: Float[Tensor, "b k"]) -> Tensor:
        """Return which labels each image is predicted to have."""
        return probabilities >= self.threshold_row().to(probabilities.device)

    def predictions(self, outputs: Float[Tensor, "b k"], top_k: int) -> list[MultiLabelPrediction]:
        """Return the predicted labels, and the most probable classes, of equal ones the first."""
        probabilities = self.probabilities(outputs.double())
        order = outputs.argsort(dim=1, descending=True, stable=True)
        ranked, chosen = probabilities.gather(1, order), self.decisions(probabilities).gather(1, order)
        predictions = []
        for row, flags, values in zip(order.tolist(), chosen.tolist(), ranked.tolist(), strict=True):
            classes = [ClassProbability(self.class_names[label], value) for label, value in zip(row, values, strict=True)]
            predicted = [each for each, is_chosen in zip(classes, flags, strict=True) if is_chosen]
            predictions.append(
                MultiLabelPrediction(
                    labels=tuple(each.label for each in predicted),
                    probabilities=tuple(each.probability for each in predicted),
                    top=tuple(classes[:top_k]),
                )
            )
        return predictions

    def columns(self, top_k: int) -> list[str]:
        ranks = range(1, min(top_k, self.model.classes) + 1)
        return ["labels", *(f"{column}_{rank}" for rank in ranks for column in ("label", "probability"))]

    def table_columns(self) -> dict[str, int]:
        return {"labels, and in brackets the most probable others": 0}

    def export_outputs(self, outputs: Float[Tensor, "b k"]) -> dict[str, Tensor]:
        return {self.output_name: outputs, "probabilities": self.probabilities(outputs)}

    def agreement(self, outputs: Float[Tensor, "b k"], expected: Float[Tensor, "b k"]) -> float:
        """Return the fraction of equal decisions, over images and classes."""
        decisions = (self.decisions(self.probabilities(each.double())) for each in (outputs, expected))
        first, second = decisions
        return float((first == second).double().mean())


def focal_loss(
    logits: Float[Tensor, "b k"], targets: Float[Tensor, "b k"], gamma: float, alpha: float | None = None
) -> Float[Tensor, "b k"]:
    """Return the focal loss of every class; ``alpha`` is the weight of positives, 1 - alpha that of negatives, None: 1 each."""
    log_p, log_not_p = F.logsigmoid(logits), F.logsigmoid(-logits)
    positives = targets * (log_not_p.exp() ** gamma) * log_p
    negatives = (1 - targets) * (log_p.exp() ** gamma) * log_not_p
    return -(positives + negatives) if alpha is None else -(alpha * positives + (1 - alpha) * negatives)


def asymmetric_loss(
    logits: Float[Tensor, "b k"], targets: Float[Tensor, "b k"], gamma_positive: float, gamma_negative: float, margin: float
) -> Float[Tensor, "b k"]:
    """Return the asymmetric loss of every class: negatives below the margin do not count, and easy ones count less."""
    p = logits.sigmoid()
    shifted = (p - margin).clamp(min=0)
    positives = targets * (1 - p) ** gamma_positive * F.logsigmoid(logits)
    negatives = (1 - targets) * shifted**gamma_negative * torch.log1p(-shifted.clamp(max=1 - 1e-7))
    return -(positives + negatives)
