"""The detection of an image that is explained, and the best ones of many images.

m detections, y and x a grid over the model's input, k classes; the input is height by width, a map has rows by columns cells.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.explain.box import BoxClassifier, box_scores, detect, locate_boxes
from vitrail.tasks.box_decoding import Detections, boxes_of_cells
from vitrail.tasks.detection import Box, DetectionTask
from vitrail.tasks.registry import model_task

MIN_SHOWN_SCORE = 0.3  # of the detections that are drawn, and of those that the benchmark explains


@dataclass(frozen=True)
class BoxSelection:
    """A detection by its index, 0 being the one with the highest score, or by a pixel in it: column and row in the upright
    image; of several that contain it the one with the highest score. Without either the best one."""

    index: int | None = None
    point: tuple[int, int] | None = None


@dataclass(frozen=True)
class ExplainedBox:
    """A detection that is explained, and all that are found in its image."""

    index: int | None  # among the detections, whose scores decrease; None: it is not among them
    label: str
    score: float
    box: Box  # in pixels of the image
    size: tuple[int, int]  # width and height of the image
    inside: Bool[Tensor, "height width"]  # which pixels of the model's input lie in the box
    detections: Detections  # without an axis of images, in pixels of the model's input; those that are drawn, and this one

    @property
    def text(self) -> str:
        left, top, right, bottom = (round(edge) for edge in self.box)
        name = "the best box" if self.index is None else f"detection {self.index}"
        return f"{name} ({self.label}, columns {left} to {right}, rows {top} to {bottom})"

    def plain(self) -> dict[str, Any]:
        """Return the detection as plain values, for JSON."""
        names = ("index", "label", "score", "box", "size")
        return {"detection": {name: getattr(self, name) for name in names}}


def select_boxes(
    model: Any,
    batch: Float[Tensor, "1 c height width"],
    size: tuple[int, int],
    targets: Sequence[int | None],
    selection: BoxSelection | None,
) -> Iterator[tuple[ExplainedBox, BoxClassifier, tuple[int, ...]]]:
    """Yield each detection of an image to explain, its classifier, and the classes of it; ``size`` is the image's width and
    height. A selected box is explained as all targets, else the best box of each target as this one."""
    task, input_size = model_task(model), (batch.shape[2], batch.shape[3])
    assert isinstance(task, DetectionTask)
    outputs, peaks = detect(model, batch)
    count = int((peaks.scores[0] > 0).sum())
    scores, labels, cells = (values[0, :count] for values in peaks)
    input_boxes = boxes_of_cells(outputs, peaks.cells, input_size)[0, :count]
    boxes = task.restore_boxes(input_boxes, (size[1], size[0]))

    def explained(cell: int, label: int) -> tuple[ExplainedBox, BoxClassifier]:
        classifier = BoxClassifier(model, outputs, cells.new_tensor([cell]), cells.new_tensor([label]), input_size)
        same = ((cells == cell) & (labels == label)).nonzero()[:, 0].tolist()
        (box,) = task.restore_boxes(classifier.boxes, (size[1], size[0])).tolist()
        shown = scores >= MIN_SHOWN_SCORE
        shown[same] = True
        found = Detections(*(values[shown].cpu() for values in (input_boxes, scores, labels)))
        inside = classifier.box_masks(input_size)[0].cpu() >= 0.5
        score, name = float(classifier.scores[0]), task.class_names[label]
        return ExplainedBox(same[0] if same else None, name, score, tuple(box), size, inside, found), classifier

    if selection is not None and selection != BoxSelection():
        index = _find(selection, boxes, size)
        label = int(labels[index])
        yield *explained(int(cells[index]), label), tuple(label if target is None else target for target in targets)
        return
    for target in targets:
        label = int(labels[0]) if target is None else target
        yield *explained(int(outputs[0, label].flatten().argmax()), label), (label,)


def _find(selection: BoxSelection, boxes: Float[Tensor, "m 4"], size: tuple[int, int]) -> int:
    """Return the index of the selected detection."""
    if selection.point is None:
        index = selection.index or 0
        if not 0 <= index < len(boxes):
            raise VitrailError(
                f"--box must be an index from 0 to {len(boxes) - 1}, the number of detections less one, got {index}"
            )
        return index
    column, row = selection.point
    if not (0 <= column < size[0] and 0 <= row < size[1]):
        raise VitrailError(f"--box must lie in the image, which is {size[0]}x{size[1]}, got {column},{row}; try --box best")
    left, top, right, bottom = boxes.T
    x, y = column + 0.5, row + 0.5
    containing = ((left <= x) & (x < right) & (top <= y) & (y < bottom)).nonzero()[:, 0].tolist()
    if not containing:
        raise VitrailError(f"no detection contains the pixel {column},{row}; try --box best")
    return int(containing[0])


def best_boxes(
    model: Any, batch: Float[Tensor, "b c height width"], target: int | None = None
) -> tuple[BoxClassifier, Int[Tensor, " r"], Bool[Tensor, " b"]]:
    """Return a classifier of the best box of each image, or of the best one of a class, the classes, and in which of the images
    its score is high enough for it to count as detected: r of them."""
    outputs, cells, labels = locate_boxes(model, batch, label=target)
    present = box_scores(outputs, cells, labels) >= MIN_SHOWN_SCORE
    input_size = batch.shape[2], batch.shape[3]
    classifier = BoxClassifier(model, outputs[present], cells[present], labels[present], input_size)
    return classifier, classifier.labels, present
