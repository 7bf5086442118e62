"""Detection: boxes with classes. b images, k classes, m detections; the model's input is height by width.

The loss is computed at the model's input size, the metrics in pixels of each image, to which the boxes are brought back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor, nn

from vitrail.augment.crop import clip_boxes
from vitrail.data.decode import ImageSize
from vitrail.data.loader import Batch, Loader
from vitrail.data.sources.dataset import Dataset, DatasetSplits, evenly_spaced
from vitrail.data.sources.objects import Objects, box_areas
from vitrail.data.transforms import boxes_to_input, crop_window, upright_size
from vitrail.errors import VitrailError
from vitrail.models.build import Model
from vitrail.models.config import ViTConfig
from vitrail.models.vit import ViT
from vitrail.recipes.task_config import Detection
from vitrail.tasks.box_decoding import Detections
from vitrail.tasks.box_matching import box_agreement
from vitrail.tasks.detected_images import load_detected_images, stack_detected_images
from vitrail.tasks.detection_heads import HEADS, DetectionHead
from vitrail.tasks.detection_metrics import (
    METRIC_TITLES,
    best_score_thresholds,
    class_rows,
    detection_scores,
    image_average_precision,
)
from vitrail.tasks.task import Gather, ImageScore, Prediction, Task, no_gather
from vitrail.tasks.thresholds import DEFAULT_THRESHOLD, check_threshold, read_thresholds

Box = tuple[float, float, float, float]  # left, top, right, bottom
NUM_COUNTED = 500  # images whose objects are counted for the weights of the classes
ROW_COLUMNS = ("label", "score", "left", "top", "right", "bottom")  # of a CSV file with a row per box


@dataclass(frozen=True)
class DetectedBox:
    """An object that is found in an image."""

    label: str
    score: float
    box: Box  # in pixels of the image, right and bottom exclusive


@dataclass(frozen=True)
class DetectionPrediction(Prediction):
    """The objects that are found in an image, those with the highest scores first."""

    boxes: list[DetectedBox] = field(default_factory=list)
    size: ImageSize | None = None  # height and width of the image

    def above(self, threshold: float) -> "DetectionPrediction":
        """Return the prediction with the boxes alone that have at least this score."""
        return replace(self, boxes=[box for box in self.boxes if box.score >= threshold])

    def cells(self) -> dict[str, Any]:
        return {"objects": len(self.boxes), "labels": ";".join(box.label for box in self.boxes)}

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each box; without any, an empty one, which says that there is no object."""
        columns = ((found.label, found.score, *found.box) for found in self.boxes)
        return [dict(zip(ROW_COLUMNS, each, strict=True)) for each in columns] or [{}]

    def plain(self) -> dict[str, Any]:
        size = None if self.size is None else list(self.size)
        return {"file": self.file, "error": self.error, "size": size, "boxes": [asdict(box) for box in self.boxes]}

    def text(self) -> list[str]:
        counts: dict[str, int] = {}
        for box in self.boxes:
            counts[box.label] = counts.get(box.label, 0) + 1
        return [str(len(self.boxes)), ", ".join(f"{count} {label}" for label, count in counts.items())]


@dataclass(frozen=True)
class DetectionTask(Task):
    """Boxes with classes."""

    class_weights: Float[Tensor, " k"] | None = None
    thresholds: tuple[float, ...] | None = None  # of the scores, for each class; None: 0.5

    config_class: ClassVar = Detection
    primary_metric: ClassVar[str] = "ap"
    fractions: ClassVar[tuple[str, ...]] = tuple(METRIC_TITLES)
    curves: ClassVar[tuple[str, ...] | None] = ("ap", "ap50", "ap75", "ar100")
    metric_titles: ClassVar[Mapping[str, str]] = METRIC_TITLES
    image_score: ClassVar = ImageScore("ap50", "AP50 of an image")
    fits_validation: ClassVar[bool] = True
    output_name: ClassVar[str] = "outputs"
    target_name: ClassVar[str] = "boxes"
    agreement_title: ClassVar[str] = "same objects"
    prediction_class: ClassVar = DetectionPrediction

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def description(self) -> str:
        return "a detection model"

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.class_names

    def require_targets(self, dataset: Dataset, name: str) -> None:
        if len(dataset) and not dataset.has_box_targets:
            raise VitrailError(
                f"{name} has no boxes, which detection needs; name a COCO file, or a folder in YOLO's or Pascal VOC's layout"
            )

    def with_data(self, data: DatasetSplits) -> "DetectionTask":
        super().with_data(data)
        if self.config.classes != len(data.class_names):
            raise VitrailError(
                f"task.classes must be {len(data.class_names)}, the number of classes of {data.name}, got {self.config.classes}"
            )
        return replace(self, class_weights=object_class_weights(data.train)) if self.config.balanced_loss else self

    def with_validation(self, scores: Mapping[str, Any]) -> "DetectionTask":
        """Return the task with score thresholds chosen for F1 on the validation images."""
        detected = load_detected_images(scores)
        assert detected is not None
        return replace(self, thresholds=tuple(best_score_thresholds(detected.matches(), self.classes)))

    def state(self) -> dict[str, Any]:
        return {} if self.thresholds is None else {"thresholds": list(self.thresholds)}

    def with_state(self, state: Mapping[str, Any]) -> "DetectionTask":
        return replace(self, thresholds=read_thresholds(state, self.classes))

    def threshold_row(self) -> Float[Tensor, " k"]:
        """Return the score of each class from which on a box is predicted."""
        thresholds = (DEFAULT_THRESHOLD,) * self.classes if self.thresholds is None else self.thresholds
        return torch.tensor(thresholds, dtype=torch.float64)

    def with_threshold(self, threshold: float) -> "DetectionTask":
        return replace(self, thresholds=(check_threshold(threshold),) * self.classes)

    def build_model(self, encoder: Model) -> nn.Module:
        assert isinstance(encoder, ViT)  # others are refused by the settings' ``check``
        return self.head.build(encoder, self.config)

    @property
    def head(self) -> DetectionHead:
        return HEADS[self.config.head]

    def require_map(self, purpose: str) -> None:
        """Raise if the outputs are those of queries, which belong to no places of the image."""
        if self.config.head != "dense":
            raise VitrailError(f"{purpose} needs a heat map, and the model has queries; train one with task.head=dense")

    def targets(self, dataset: Dataset, indices: ndarray) -> Int[Tensor, " b"]:
        """Return the indices of the images: their numbers of objects differ, and they are read when they are compared."""
        return torch.from_numpy(indices)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        device = next(model.parameters()).device
        images, objects = batch.images.to(device, non_blocking=True), batch.targets.to(device)
        outputs = self.head.train_outputs(model, images).float()
        size = images.shape[2], images.shape[3]
        parts = [torch.stack(self.image_losses(*each, size)) for step in outputs for each in zip(step, objects, strict=True)]
        classes, boxes = torch.stack(parts).mean(0)
        loss = classes + self.config.box_weight * boxes
        return loss, {self.head.class_loss_name: classes.detach(), "box_loss": boxes.detach()}

    def image_losses(
        self, output: Float[Tensor, "channels rows columns"], objects: Float[Tensor, "m 6"], size: ImageSize
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Return the losses of the classes and of the boxes of one image. ``size``: of the model's input."""
        return self.head.losses(output, objects, size, self.config, self.class_weights)

    def decode(self, outputs: Float[Tensor, "b channels rows columns"]) -> Detections:
        """Return the detections in pixels of the model's input."""
        assert isinstance(self.model, ViTConfig)
        return self.head.decode(outputs, self.config, self.model.patch_stride)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, loader: Loader, workers: int, gather: Gather = no_gather) -> dict[str, Any]:
        """Return the metrics in pixels of the images, and what they come from: the detections and objects of each image."""
        was_training, device = model.training, next(model.parameters()).device
        model.eval()
        indices, detections, objects, losses = list[int](), [], [], list[float]()
        try:
            for batch in loader.batches(workers=workers):
                outputs, numbers = model(batch.images.to(device)).float().cpu(), batch.indices.tolist()
                for index, output in zip(numbers, outputs, strict=True):
                    size, true = upright_size(loader.dataset, index), loader.dataset.objects(index)
                    detections.append(self.detect(output, size))
                    losses.append(self._validation_loss(output, true, size))
                    objects.append(true)
                indices += numbers
        finally:
            model.train(was_training)
        own_losses, own_indices = torch.tensor(losses, dtype=torch.float64), torch.tensor(indices, dtype=torch.int64)
        all_losses = gather(own_losses)[gather(own_indices).argsort()]
        detected = stack_detected_images(indices, detections, objects).gathered(gather)
        scores = detection_scores(detected.matches(), self.classes)
        return {"loss": all_losses.mean().item(), **scores, **detected.tensors()}

    def _validation_loss(self, output: Float[Tensor, "channels rows columns"], objects: Objects, size: ImageSize) -> float:
        input_size = self.preprocess.image_size
        visible = clip_boxes(boxes_to_input(objects.boxes, size, self.preprocess), input_size)
        rows = torch.from_numpy(np.column_stack([visible, objects.labels, objects.crowd])[box_areas(visible) > 0]).float()
        heat, boxes = self.image_losses(output, rows, input_size)
        return float(heat + self.config.box_weight * boxes)

    def detect(self, output: Float[Tensor, "channels rows columns"], size: ImageSize) -> Float[Tensor, "m 6"]:
        """Return the detections in an image of this size, in its pixels: left, top, right, bottom, score, label."""
        found = self.decode(output[None])
        columns = [self.restore_boxes(found.boxes[0], size), found.scores[0][:, None], found.labels[0][:, None]]
        return torch.cat([column.double() for column in columns], dim=1)[found.scores[0] > 0]  # 0: no peak

    def restore_boxes(self, boxes: Float[Tensor, "m 4"], size: ImageSize) -> Float[Tensor, "m 4"]:
        """Return boxes of the model's input in pixels of the image, and inside of it: the preprocessing undone."""
        height, width = size
        _, (left, top, right, bottom) = crop_window((width, height), self.preprocess)
        input_height, input_width = self.preprocess.image_size
        scale = boxes.new_tensor(((right - left) / input_width, (bottom - top) / input_height)).repeat(2)
        limits = boxes.new_tensor((width, height)).repeat(2)
        return (boxes * scale + boxes.new_tensor((left, top)).repeat(2)).clamp(min=0).minimum(limits)

    def image_targets(self, dataset: Dataset, indices: ndarray) -> list[tuple[Objects, ImageSize]]:
        """Return the objects of some images, and the images' sizes."""
        return [(dataset.objects(index), upright_size(dataset, index)) for index in indices.tolist()]

    def image_scores(
        self, outputs: Float[Tensor, "b channels rows columns"], targets: Sequence[tuple[Objects, ImageSize]]
    ) -> Float[Tensor, " b"]:
        """Return the average precision of the detections in each image, ranked whatever their class; of an image without
        objects 1 if nothing is predicted there, else 0."""
        indices = range(len(targets))
        detections = [self.detect(output, size) for output, (_, size) in zip(outputs, targets, strict=True)]
        detected = stack_detected_images(indices, detections, [objects for objects, _ in targets])
        precision = torch.tensor([image_average_precision(each) for each in detected.matches()], dtype=torch.float64)
        is_clear = torch.tensor([not self.is_predicted(rows).any() for rows in detections], dtype=torch.float64)
        return torch.where(precision.isnan(), is_clear, precision)

    def split_details(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        detected = load_detected_images(scores)
        assert detected is not None
        return {"classes": class_rows(self.class_names, detected.matches())}

    def saved_predictions(self, saved: Mapping[str, Tensor], top_k: int) -> list[DetectionPrediction]:
        """Return what is predicted for each image; the sizes of the images are not saved."""
        detected = load_detected_images(saved)
        assert detected is not None
        return [self.box_prediction(torch.from_numpy(np.column_stack(found)), None) for found, _ in detected]

    def image_prediction(self, outputs: Float[Tensor, "channels rows columns"], size: ImageSize) -> DetectionPrediction:
        return self.box_prediction(self.detect(outputs, size), size)

    def predictions(self, outputs: Float[Tensor, "b channels rows columns"], top_k: int) -> list[DetectionPrediction]:
        """Return predictions in pixels of the model's input, of images whose own sizes are not known."""
        found = self.decode(outputs)
        rows = torch.cat([found.boxes, found.scores[..., None], found.labels[..., None]], dim=2).double()
        return [self.box_prediction(each[each[:, 4] > 0], self.preprocess.image_size) for each in rows]

    def box_prediction(self, rows: Float[Tensor, "m 6"], size: ImageSize | None) -> DetectionPrediction:
        """Return those of the detections of ``detect`` as a prediction whose score reaches the threshold of their class."""
        found = [
            DetectedBox(self.class_names[int(label)], score, (left, top, right, bottom))
            for left, top, right, bottom, score, label in rows[self.is_predicted(rows)].tolist()
        ]
        return DetectionPrediction(boxes=found, size=size)

    def is_predicted(self, rows: Float[Tensor, "m 6"]) -> Bool[Tensor, " m"]:
        """Return which detections have a score that reaches the threshold of their class."""
        return rows[:, 4] >= self.threshold_row()[rows[:, 5].long()]

    def columns(self, top_k: int) -> list[str]:
        return ["objects", "labels"]

    def row_columns(self, top_k: int) -> list[str]:
        return list(ROW_COLUMNS)

    def table_columns(self) -> dict[str, int]:
        return {"objects": 8, "found": 40}

    def export_outputs(self, outputs: Float[Tensor, "b channels rows columns"]) -> dict[str, Tensor]:
        found = self.decode(outputs)
        return {self.output_name: outputs, "boxes": found.boxes, "scores": found.scores, "labels": found.labels}

    def agreement(
        self, outputs: Float[Tensor, "b channels rows columns"], expected: Float[Tensor, "b channels rows columns"]
    ) -> float:
        """Return ``box_agreement`` of the detections."""
        size = self.preprocess.image_size
        found, wanted = ([self.detect(each, size) for each in maps] for maps in (outputs, expected))
        return self.box_agreement(found, wanted)

    def box_agreement(self, detections: Sequence[Float[Tensor, "_ 6"]], expected: Sequence[Float[Tensor, "_ 6"]]) -> float:
        """Return how well the predicted boxes of all images agree with the expected ones; if none is expected, all detections
        are compared, whatever their scores."""
        if any(self.is_predicted(rows).any() for rows in expected):
            detections, expected = ([rows[self.is_predicted(rows)] for rows in images] for images in (detections, expected))
        return box_agreement([rows.numpy() for rows in detections], [rows.numpy() for rows in expected])


def object_class_weights(train: Dataset) -> Float[Tensor, " k"]:
    """Return class weights inverse to the square root of the objects of a class, with mean 1 over those of some images."""
    counts = np.zeros(len(train.class_names))
    for index in evenly_spaced(len(train), NUM_COUNTED).tolist():
        objects = train.objects(index)
        counts += np.bincount(objects.labels[~objects.crowd], minlength=len(counts))
    weights = np.where(counts > 0, 1 / np.sqrt(np.maximum(counts, 1)), 0.0)
    return torch.from_numpy(weights * counts.sum() / max((weights * counts).sum(), 1e-9)).float()
