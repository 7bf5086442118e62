"""Segmentation: a class for every pixel. b images, k classes; the model's input is height by width, an image h high and w wide.

The loss is computed at the model's input size, the metrics at the size of each image, to which the logits are interpolated.
The loss is a mean over the pixels of each image, and then over images, so that micro-batches and ranks change nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int16, Int32
from numpy import ndarray
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.data.connected_components import connected_components
from vitrail.data.decode import ImageSize
from vitrail.data.loader import Batch, Loader
from vitrail.data.sources.dataset import IGNORED, Dataset, DatasetSplits, evenly_spaced
from vitrail.errors import VitrailError
from vitrail.models.build import Model
from vitrail.models.vit import ViT
from vitrail.recipes.task_config import Segmentation
from vitrail.tasks.boundary_iou import boundary_counts
from vitrail.tasks.dense import classes_of_pixels, restored_bands
from vitrail.tasks.pixel_loss import mean_over_pixels
from vitrail.tasks.segmentation_heads import HEADS
from vitrail.tasks.segmentation_metrics import class_rows, confusion_matrix, iou_per_class, segmentation_scores
from vitrail.tasks.task import Gather, ImageScore, Prediction, Task, no_gather

NUM_COUNTED = 500  # masks whose pixels are counted for the weights of the classes


@dataclass(frozen=True)
class SegmentationPrediction(Prediction):
    """The class of every pixel of an image at its own size, and how much of the image each class covers."""

    mask: Int16[ndarray, "h w"] | None = None
    classes: dict[str, float] = field(default_factory=dict)  # fraction of the pixels by class, the largest first

    def cells(self) -> dict[str, Any]:
        return dict(self.classes)

    def plain(self) -> dict[str, Any]:
        """Return the prediction without its mask, which is no part of a row of JSON."""
        size = None if self.mask is None else list(self.mask.shape)
        return {"file": self.file, "error": self.error, "size": size, "classes": self.classes}

    def text(self) -> list[str]:
        present = ", ".join(f"{name} {fraction:.1%}" for name, fraction in self.classes.items() if fraction)
        return ["" if self.mask is None else f"{self.mask.shape[1]} x {self.mask.shape[0]}", present]


@dataclass(frozen=True)
class ImageComparison:
    """A prediction compared with the mask of its image, at the size of the image."""

    predicted: Int16[ndarray, "h w"]
    confusion: Int[Tensor, "k k"]
    boundary: Int[Tensor, "k 3"]  # pixels of the boundary of each class in the mask, in the prediction, and in both
    loss: float  # mean negative log-likelihood

    def without_mask(self) -> "ImageComparison":
        """Return the counts alone, of which there are few."""
        return replace(self, predicted=np.zeros((0, 0), np.int16))


@dataclass(frozen=True)
class SegmentationTask(Task):
    """A class for every pixel."""

    class_weights: Float[Tensor, " k"] | None = None

    config_class: ClassVar = Segmentation
    has_pixel_classes: ClassVar[bool] = True
    primary_metric: ClassVar[str] = "miou"
    fractions: ClassVar[tuple[str, ...]] = (
        "accuracy",
        "miou",
        "dice",
        "pixel_accuracy",
        "boundary_iou",
        "iou",
        "pq",
        "sq",
        "rq",
    )
    metric_titles: ClassVar[Mapping[str, str]] = {
        "iou": "IoU",
        "miou": "mean IoU",
        "dice": "mean Dice",
        "pixel_accuracy": "pixel accuracy",
        "boundary_iou": "boundary IoU",
        "nll": "NLL",
        "pq": "panoptic quality",
        "sq": "segmentation quality",
        "rq": "recognition quality",
    }
    image_score: ClassVar = ImageScore("pixel_accuracy", "pixel accuracy")
    output_name: ClassVar[str] = "logits"
    target_name: ClassVar[str] = "masks"
    agreement_title: ClassVar[str] = "same class of a pixel"
    prediction_class: ClassVar = SegmentationPrediction

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def description(self) -> str:
        return "a segmentation model"

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.class_names

    def require_targets(self, dataset: Dataset, name: str) -> None:
        if len(dataset) and not dataset.has_mask_targets:
            raise VitrailError(f"{name} has no masks, which segmentation needs; name a folder with images/ and masks/")

    def with_data(self, data: DatasetSplits) -> "SegmentationTask":
        super().with_data(data)
        if self.config.classes != len(data.class_names):
            raise VitrailError(
                f"task.classes must be {len(data.class_names)}, the number of classes of {data.name}, got {self.config.classes}"
            )
        if len(data.class_names) < 2:
            raise VitrailError(f"{data.name} has a single class of pixels; segmentation needs at least two, such as background")
        return replace(self, class_weights=pixel_class_weights(data.train)) if self.config.balanced_loss else self

    def build_model(self, encoder: Model) -> nn.Module:
        assert isinstance(encoder, ViT)  # others are refused by the settings' ``check``
        return HEADS[self.config.head].build(encoder, self.config)

    def targets(self, dataset: Dataset, indices: ndarray) -> Int[Tensor, " b"]:
        """Return the indices of the images: masks have different sizes, and are read when they are compared."""
        return torch.from_numpy(indices)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        device = next(model.parameters()).device
        images, masks = batch.images.to(device, non_blocking=True), batch.targets.to(device).long()
        moved = replace(batch, images=images, targets=masks)
        loss, logits = HEADS[self.config.head].loss(self, model, moved)
        return loss, {"accuracy": mean_over_pixels((classes_of_pixels(logits) == masks).float(), masks != IGNORED)}

    @torch.no_grad()
    def evaluate(self, model: nn.Module, loader: Loader, workers: int, gather: Gather = no_gather) -> dict[str, Any]:
        """Return the metrics at the images' own sizes, and what they come from: the counts of each image."""
        was_training, device = model.training, next(model.parameters()).device
        model.eval()
        rows: dict[int, ImageComparison] = {}
        try:
            for batch in loader.batches(workers=workers):
                outputs = model(batch.images.to(device)).float().cpu()
                for index, logits in zip(batch.indices.tolist(), outputs, strict=True):
                    if (mask := loader.mask(index)) is not None:
                        rows[index] = self.compare(logits, mask).without_mask()
        finally:
            model.train(was_training)
        indices = gather(torch.tensor(list(rows), dtype=torch.int64))
        confusion, boundary, losses = map(gather, self.stack_counts(list(rows.values())))
        order = indices.argsort()
        confusion, boundary, losses = confusion[order], boundary[order], losses[order]
        return {
            "loss": losses.mean().item(),
            **self.scores(confusion, boundary),
            "confusion": confusion,
            "boundary": boundary,
            "losses": losses,
            "indices": indices[order],
        }

    def compare(self, logits: Float[Tensor, "k height width"], mask: Int16[ndarray, "h w"]) -> ImageComparison:
        """Compare the prediction for an image with its mask, at the size of the mask."""
        target, predicted = torch.from_numpy(mask), np.empty(mask.shape, np.int16)
        confusion, loss, counted = torch.zeros(self.classes, self.classes, dtype=torch.int64), 0.0, 0
        for band, restored in restored_bands(logits, self.preprocess, (mask.shape[0], mask.shape[1])):
            rows, labels = target[band].long(), classes_of_pixels(restored)
            confusion += confusion_matrix(labels, rows, self.classes)
            loss += F.cross_entropy(restored[None], rows[None], ignore_index=IGNORED, reduction="sum").item()
            counted += int((rows != IGNORED).sum())
            predicted[band] = labels.numpy()
        return ImageComparison(predicted, confusion, boundary_counts(predicted, mask, self.classes), loss / max(counted, 1))

    def objects(self, predicted: Int16[ndarray, "h w"], has_objects: Bool[ndarray, " k"]) -> Int32[ndarray, "h w"]:
        """Return the object of each pixel of a predicted mask, from 1: the components of classes that have objects."""
        return connected_components(predicted, has_objects[predicted])

    def image_targets(self, dataset: Dataset, indices: ndarray) -> list[Int16[ndarray, "h w"]]:
        """Return the masks of some images."""
        return [dataset.mask(index) for index in indices.tolist()]

    def image_scores(
        self, outputs: Float[Tensor, "b k height width"], targets: Sequence[Int16[ndarray, "h w"]]
    ) -> Float[Tensor, " b"]:
        """Return the pixel accuracy of each image at its own size; an image without a counted pixel has 1."""
        scores = []
        for logits, mask in zip(outputs, targets, strict=True):
            correct = sum(
                int((labels == mask[band])[mask[band] != IGNORED].sum())
                for band, labels, _ in self.predict_mask(logits, mask.shape)
            )
            counted = int((mask != IGNORED).sum())
            scores.append(correct / counted if counted else 1.0)
        return torch.tensor(scores, dtype=torch.float64)

    def stack_counts(self, rows: Sequence[ImageComparison]) -> tuple[Int[Tensor, "b k k"], Int[Tensor, "b k 3"], Tensor]:
        """Return the confusion matrices, the counts of the boundaries and the losses of images, which may be none."""
        nothing = torch.zeros(0, self.classes, self.classes, dtype=torch.int64)
        confusion = torch.stack([row.confusion for row in rows]) if rows else nothing
        boundary = torch.stack([row.boundary for row in rows]) if rows else nothing.new_zeros(0, self.classes, 3)
        return confusion, boundary, torch.tensor([row.loss for row in rows], dtype=torch.float64)

    def scores(self, confusion: Int[Tensor, "b k k"], boundary: Int[Tensor, "b k 3"]) -> dict[str, float]:
        """Return the metrics of a split from the counts of its images."""
        return {name: float(value) for name, value in segmentation_scores(confusion.sum(0), boundary.sum(0)).items()}

    def result_metrics(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        iou = iou_per_class(scores["confusion"].sum(0)).tolist()
        return {**super().result_metrics(scores), "iou": dict(zip(self.class_names, iou, strict=True))}

    def split_details(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        return {"classes": class_rows(self.class_names, scores["confusion"], scores["boundary"])}

    def predict_mask(
        self, logits: Float[Tensor, "k height width"], size: ImageSize
    ) -> Iterator[tuple[slice, Int16[ndarray, "rows w"], Float[ndarray, "rows w"]]]:
        """Yield the class of each pixel of an image, and its probability, a band of rows at a time."""
        for band, restored in restored_bands(logits, self.preprocess, size):
            yield band, classes_of_pixels(restored).numpy(), restored.softmax(0).amax(0).numpy()

    def mask_prediction(self, mask: Int16[ndarray, "h w"]) -> SegmentationPrediction:
        """Return the prediction that a mask at the image's own size is."""
        fractions = np.bincount(mask.ravel(), minlength=self.classes) / max(mask.size, 1)
        order = np.argsort(-fractions, kind="stable")
        return SegmentationPrediction(
            mask=mask, classes={self.class_names[label]: float(fractions[label]) for label in order.tolist()}
        )

    def dense_prediction(
        self, bands: Iterator[tuple[slice, Float[Tensor, "k rows w"]]], size: ImageSize
    ) -> SegmentationPrediction:
        mask = np.empty(size, np.int16)
        for band, logits in bands:
            mask[band] = classes_of_pixels(logits).numpy()
        return self.mask_prediction(mask)

    def columns(self, top_k: int) -> list[str]:
        return list(self.class_names)

    def table_columns(self) -> dict[str, int]:
        return {"pixels": 12, "classes": 24}

    def predictions(self, outputs: Float[Tensor, "b k height width"], top_k: int) -> list[SegmentationPrediction]:
        """Return predictions at the size of the model's input, of images whose own sizes are not known."""
        return [self.mask_prediction(mask) for mask in classes_of_pixels(outputs).numpy()]

    def saved_predictions(self, saved: Mapping[str, Tensor], top_k: int) -> list[SegmentationPrediction]:
        """Return the fractions of the classes alone, of the pixels that count: masks are not saved."""
        predicted = saved["confusion"].sum(1).double()
        fractions = predicted / predicted.sum(1, keepdim=True).clamp(min=1)
        return [SegmentationPrediction(classes=dict(zip(self.class_names, row, strict=True))) for row in fractions.tolist()]

    def probabilities(self, outputs: Float[Tensor, "b k height width"]) -> Float[Tensor, "b k height width"]:
        return outputs.softmax(1)

    def agreement(self, outputs: Float[Tensor, "b k height width"], expected: Float[Tensor, "b k height width"]) -> float:
        """Return the fraction of the pixels with the same class."""
        return float((classes_of_pixels(outputs) == classes_of_pixels(expected)).double().mean())


def pixel_class_weights(train: Dataset) -> Float[Tensor, " k"]:
    """Return class weights inverse to the square root of the pixels of a class, with mean 1 over the pixels of some masks."""
    counts = np.zeros(len(train.class_names))
    for index in evenly_spaced(len(train), NUM_COUNTED).tolist():
        mask = train.mask(index)
        counts += np.bincount(mask[mask != IGNORED], minlength=len(counts))
    weights = np.where(counts > 0, 1 / np.sqrt(np.maximum(counts, 1)), 0.0)
    return torch.from_numpy(weights * counts.sum() / (weights * counts).sum()).float()
