"""The classifier that the parts of the page explain: that of images as it is; of other models, that of a pixel, region or box.

Places are those of the model's input: studio images are drawn at that size everywhere, so that memory is bounded. c channels;
the input is height by width.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.evaluation.region_selection import largest_predicted_regions
from vitrail.explain.attention import as_vit
from vitrail.explain.box import BoxClassifier, box_classifier, detect
from vitrail.explain.region import RegionClassifier
from vitrail.models.vit import ViT
from vitrail.studio.forward_trace import Metadata, check_index
from vitrail.tasks.registry import model_task

Pixel = tuple[int, int]  # column and row


@dataclass(frozen=True)
class Selection:
    """A pixel of a segmentation model, or a detection by its index; without either the best region or box is explained."""

    pixel: Pixel | None = None
    box: int | None = None


def explained_model(
    model: nn.Module, images: Float[Tensor, "1 c height width"], selection: Selection, target: int | None = None
) -> tuple[ViT, Metadata | None]:
    """Return a classifier as it is, a segmentation model as one of a pixel or a region, and a detection model as one of a box;
    and which place this is."""
    task = model_task(model)
    if selection.pixel is not None and not task.has_pixel_classes:
        raise VitrailError("pixels are explained of segmentation models only; leave pixel out")
    if selection.box is not None and not task.config.has_boxes:
        raise VitrailError("boxes are explained of detection models only; leave box out")
    if task.has_pixel_classes:
        return _region(model, images, selection.pixel, target)
    return _box(model, images, selection.box, target) if task.config.has_boxes else (as_vit(model), None)


def _region(
    model: nn.Module, images: Float[Tensor, "1 c height width"], pixel: Pixel | None, target: int | None
) -> tuple[RegionClassifier, Metadata]:
    """Return a classifier of a pixel, or of the pixels of the largest class, or of the target if it is predicted anywhere."""
    if pixel is not None:
        height, width = images.shape[2:]
        weights = images.new_zeros(1, height, width)
        weights[0, check_index("row", pixel[1], height), check_index("column", pixel[0], width)] = 1
        return RegionClassifier(model, weights), {"pixel": pixel, "pixels": 1, "class": None}
    classifier, classes, present = largest_predicted_regions(model, images, target)
    if not present.any():
        classifier, classes, present = largest_predicted_regions(model, images)
    count = int((classifier.output_weights > 0).sum())
    return classifier, {"pixel": None, "pixels": count, "class": int(classes[0])}


def _box(
    model: nn.Module, images: Float[Tensor, "1 c height width"], index: int | None, target: int | None
) -> tuple[BoxClassifier, Metadata]:
    """Return a classifier of a detection, or of the best one of the target, or of all."""
    _, peaks = detect(model, images)
    if index is not None:
        check_index("box", index, int((peaks.scores[0] > 0).sum()))
    classifier = box_classifier(model, images, index, target)
    label, cell = int(classifier.labels[0]), int(classifier.cells[0])
    same = ((peaks.labels[0] == label) & (peaks.cells[0] == cell) & (peaks.scores[0] > 0)).nonzero()[:, 0].tolist()
    place = {
        "box": index,  # as it was asked for
        "index": same[0] if same else None,
        "class": label,
        "score": classifier.scores[0].item(),
        "bounds": classifier.boxes[0].tolist(),
    }
    return classifier, place
