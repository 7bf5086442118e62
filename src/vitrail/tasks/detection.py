"""Detection: boxes with classes. b images, k classes, m detections; the model's input is height by width.

The loss is computed at the model's input size, the metrics in pixels of each image, to which the boxes are brought back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor, nn

from vitrail.data.decode import ImageSize
from vitrail.data.loader import Batch, Loader
from vitrail.data.sources.dataset import Dataset, DatasetSplits
from vitrail.data.transforms import crop_window, upright_size
from vitrail.errors import VitrailError
from vitrail.models.build import Model
from vitrail.models.vit import ViT
from vitrail.recipes.task_config import Detection
from vitrail.tasks.box_decoding import Detections, decode_boxes
from vitrail.tasks.box_loss import box_loss, centre_targets, heat_loss
from vitrail.tasks.detection_model import DenseDetector
from vitrail.tasks.task import Gather, Prediction, Task, no_gather

Box = tuple[float, float, float, float]  # left, top, right, bottom
DETECTION_COLUMNS = ("index", "left", "top", "right", "bottom", "score", "label")  # of the detections that are saved


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

    def cells(self) -> dict[str, Any]:
        return {"objects": len(self.boxes), "labels": ";".join(box.label for box in self.boxes)}

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

    config_class: ClassVar = Detection
    primary_metric: ClassVar[str] = "ap"
    fractions: ClassVar[tuple[str, ...]] = ("ap", "ap50", "ap75")
    metric_titles: ClassVar[Mapping[str, str]] = {"ap": "AP", "ap50": "AP50", "ap75": "AP75"}
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
        return self

    def build_model(self, encoder: Model) -> nn.Module:
        assert isinstance(encoder, ViT)  # others are refused by the settings' ``check``
        config, model = self.config, encoder.config
        return DenseDetector(
            encoder,
            config.classes,
            config.head_layers(model.depth),
            upscale_blocks=config.num_upscale_blocks(model.patch_stride),
            map_width=config.map_width,
        )

    def targets(self, dataset: Dataset, indices: ndarray) -> Int[Tensor, " b"]:
        """Return the indices of the images: their numbers of objects differ, and they are read when they are compared."""
        return torch.from_numpy(indices)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        device = next(model.parameters()).device
        images, objects = batch.images.to(device, non_blocking=True), batch.targets.to(device)
        outputs = model(images).float()
        size = images.shape[2], images.shape[3]
        heat, boxes = [], []
        for output, of_image in zip(outputs, objects, strict=True):
            targets = centre_targets(of_image, self.classes, (output.shape[1], output.shape[2]), size)
            heat.append(heat_loss(output[:-4], targets))
            boxes.append(box_loss(output[-4:], targets, size))
        heat_mean, box_mean = torch.stack(heat).mean(), torch.stack(boxes).mean()
        loss = heat_mean + self.config.box_weight * box_mean
        return loss, {"heat_loss": heat_mean.detach(), "box_loss": box_mean.detach()}

    def decode(self, outputs: Float[Tensor, "b channels rows columns"]) -> Detections:
        """Return the detections in pixels of the model's input."""
        return decode_boxes(outputs, self.preprocess.image_size, self.config.max_detections)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, loader: Loader, workers: int, gather: Gather = no_gather) -> dict[str, Any]:
        """Return the metrics in pixels of the images, and the detections of each image that they come from."""
        was_training, device = model.training, next(model.parameters()).device
        model.eval()
        rows, indices = [torch.zeros(0, len(DETECTION_COLUMNS), dtype=torch.float64)], [torch.zeros(0, dtype=torch.int64)]
        try:
            for batch in loader.batches(workers=workers):
                outputs = model(batch.images.to(device)).float().cpu()
                sizes = [upright_size(loader.dataset, index) for index in batch.indices.tolist()]
                rows += [self.saved_rows(*each) for each in zip(batch.indices.tolist(), outputs, sizes, strict=True)]
                indices.append(batch.indices)
        finally:
            model.train(was_training)
        detections, evaluated = gather(torch.cat(rows)), gather(torch.cat(indices)).sort().values
        detections = detections[detections[:, 0].argsort(stable=True)]
        return {**self.scores(detections, evaluated, loader.dataset), "detections": detections, "indices": evaluated}

    def saved_rows(self, index: int, output: Float[Tensor, "channels rows columns"], size: ImageSize) -> Float[Tensor, "m 7"]:
        """Return the detections of an image as rows of DETECTION_COLUMNS, in pixels of the image."""
        found = self.decode(output[None])
        boxes = self.restore_boxes(found.boxes[0], size)
        columns = [torch.full_like(found.scores[0], index)[:, None], boxes, found.scores[0][:, None], found.labels[0][:, None]]
        return torch.cat([column.double() for column in columns], dim=1)

    def restore_boxes(self, boxes: Float[Tensor, "m 4"], size: ImageSize) -> Float[Tensor, "m 4"]:
        """Return boxes of the model's input in pixels of the image, and inside of it: the preprocessing undone."""
        height, width = size
        _, (left, top, right, bottom) = crop_window((width, height), self.preprocess)
        input_height, input_width = self.preprocess.image_size
        scale = boxes.new_tensor(((right - left) / input_width, (bottom - top) / input_height)).repeat(2)
        limits = boxes.new_tensor((width, height)).repeat(2)
        return (boxes * scale + boxes.new_tensor((left, top)).repeat(2)).clamp(min=0).minimum(limits)

    def scores(self, detections: Float[Tensor, "rows 7"], indices: Int[Tensor, " n"], dataset: Dataset) -> dict[str, float]:
        """Return the metrics of some images of a dataset from their detections."""
        return {"ap": 0.0, "ap50": 0.0, "ap75": 0.0}

    def image_prediction(self, outputs: Float[Tensor, "channels rows columns"], size: ImageSize) -> DetectionPrediction:
        found = self.decode(outputs[None])
        return self.box_prediction(self.restore_boxes(found.boxes[0], size), found.scores[0], found.labels[0], size)

    def box_prediction(
        self, boxes: Float[Tensor, "m 4"], scores: Float[Tensor, " m"], labels: Int[Tensor, " m"], size: ImageSize | None
    ) -> DetectionPrediction:
        """Return detections as a prediction; those without a peak, whose score is 0, are left out."""
        rows = zip(boxes.tolist(), scores.tolist(), labels.tolist(), strict=True)
        found = [DetectedBox(self.class_names[label], score, _as_box(box)) for box, score, label in rows if score > 0]
        return DetectionPrediction(boxes=found, size=size)

    def predictions(self, outputs: Float[Tensor, "b channels rows columns"], top_k: int) -> list[DetectionPrediction]:
        """Return predictions in pixels of the model's input, of images whose own sizes are not known."""
        found = self.decode(outputs)
        return [self.box_prediction(*each, self.preprocess.image_size) for each in zip(*found, strict=True)]

    def table_columns(self) -> dict[str, int]:
        return {"objects": 8, "found": 40}

    def export_outputs(self, outputs: Float[Tensor, "b channels rows columns"]) -> dict[str, Tensor]:
        found = self.decode(outputs)
        return {self.output_name: outputs, "boxes": found.boxes, "scores": found.scores, "labels": found.labels}


def _as_box(values: Sequence[float]) -> Box:
    left, top, right, bottom = values
    return left, top, right, bottom
