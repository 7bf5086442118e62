"""A detection as a classifier, so that every explanation of a class explains it too.

The score of a class is the logit of its heat map at the cell that predicts the box, so its sigmoid is the score of the
detection. b images, m detections, n patches, k classes; a map has rows by columns cells, the model's input is height by width.
"""

from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config import to_dict
from vitrail.data.decode import ImageSize
from vitrail.errors import VitrailError
from vitrail.explain.region import RegionClassifier
from vitrail.recipes.task_config import Classification
from vitrail.tasks.box_decoding import Peaks, boxes_of_cells, find_peaks
from vitrail.tasks.detection import DetectionTask
from vitrail.tasks.registry import model_task


class BoxClassifier(RegionClassifier):
    """The encoder of a detection model, which classifies the object in one box of each image with the model's head.

    It shares the weights. What the class token or the mean is to a classifier, the patch of the box's cell is here.
    """

    explains: ClassVar[str] = "boxes are explained of detection models, got a {}; train one with --task detect"

    def __init__(
        self,
        detector: nn.Module,
        outputs: Float[Tensor, "b channels rows columns"],
        cells: Int[Tensor, " b"],
        labels: Int[Tensor, " b"],
        size: ImageSize,
    ) -> None:
        described: Any = detector
        rows, columns = outputs.shape[2:]
        weights = F.one_hot(cells, rows * columns).unflatten(1, (rows, columns)).to(outputs)
        stride = described.config.patch_stride
        super().__init__(detector, weights, (size[0] // stride[0], size[1] // stride[1]))
        self.metadata = {"recipe": {"task": to_dict(Classification(loss="sigmoid"))}}
        self.input_size, self.cells, self.labels = size, cells, labels
        self.boxes = boxes_of_cells(outputs, cells[:, None], size)[:, 0]
        self.scores = box_scores(outputs, cells, labels)

    def own_patches(self, images: Float[Tensor, "b c height width"]) -> Bool[Tensor, "b n"]:
        """Return which patches the boxes lie on, at least in part."""
        return (self.box_masks(self.grid(images)) > 0).flatten(1)

    def box_masks(self, grid: tuple[int, int]) -> Float[Tensor, "b y x"]:
        """Return which fraction of each cell of a grid over the model's input lies in the box."""
        left, top, right, bottom = self.boxes.T[..., None]
        (height, width), (rows, columns) = self.input_size, grid
        down, across = (
            (torch.minimum(high, edges[1:]) - torch.maximum(low, edges[:-1])).clamp(min=0) / (edges[1] - edges[0])
            for low, high, edges in (
                (top, bottom, torch.linspace(0, height, rows + 1).to(top)),
                (left, right, torch.linspace(0, width, columns + 1).to(top)),
            )
        )
        return down[:, :, None] * across[:, None]


def box_classifier(
    detector: nn.Module, images: Float[Tensor, "b c height width"], index: int | None = None, label: int | None = None
) -> BoxClassifier:
    """Return a detection model as a classifier of one box in each image: of the detection with this index, the one with the
    highest score being 0, else of the best one of a class, or of all. ``labels``, ``scores`` and ``boxes`` of the classifier
    say which these are."""
    outputs, cells, labels = locate_boxes(detector, images, index, label)
    return BoxClassifier(detector, outputs, cells, labels, (images.shape[2], images.shape[3]))


def locate_boxes(
    detector: nn.Module, images: Float[Tensor, "b c height width"], index: int | None = None, label: int | None = None
) -> tuple[Float[Tensor, "b channels rows columns"], Int[Tensor, " b"], Int[Tensor, " b"]]:
    """Return the outputs of a detection model, and the cell and the class of one box in each image, see ``box_classifier``."""
    outputs, peaks = detect(detector, images)
    if index is None and label is not None:
        cells = outputs[:, label].flatten(1).argmax(1)
        return outputs, cells, torch.full_like(cells, label)
    found = int((peaks.scores > 0).sum(1).min())
    if not 0 <= (index or 0) < found:
        raise VitrailError(f"the index of a box must be from 0 to {found - 1}, the number of detections less one, got {index}")
    return outputs, peaks.cells[:, index or 0], peaks.labels[:, index or 0]


def box_scores(
    outputs: Float[Tensor, "b channels rows columns"], cells: Int[Tensor, " b"], labels: Int[Tensor, " b"]
) -> Float[Tensor, " b"]:
    """Return the score of a class at a cell of each image."""
    return outputs[:, :-4].flatten(2)[torch.arange(len(cells)), labels, cells].sigmoid()


@torch.no_grad()
def detect(
    detector: nn.Module, images: Float[Tensor, "b c height width"]
) -> tuple[Float[Tensor, "b channels rows columns"], Peaks]:
    """Return the outputs of a detection model, which are finite, and the cells and classes of its detections."""
    task = _detection_task(detector)
    was_training = detector.training
    detector.eval()
    try:
        outputs: Tensor = detector(images).float()
    finally:
        detector.train(was_training)
    if not outputs.isfinite().all():
        raise VitrailError("the model's outputs are not finite (NaN/Inf); its weights may be damaged")
    return outputs, find_peaks(outputs, task.config.max_detections)


def _detection_task(model: nn.Module) -> DetectionTask:
    described: Any = model
    task = model_task(described) if hasattr(described, "metadata") else None
    if not isinstance(task, DetectionTask):
        raise VitrailError(BoxClassifier.explains.format(type(model).__name__))
    return task
