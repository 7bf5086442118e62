"""The boxes that a detection model finds in an image, and those of its dataset, at the size of the model's input.

All detections are sent at once, so that a threshold is moved without asking again. c channels; the input is height by width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.data.transforms import boxes_to_input
from vitrail.errors import VitrailError
from vitrail.explain.ablate import ablate_images
from vitrail.explain.attention import as_vit
from vitrail.explain.box import detect
from vitrail.plot.class_colours import class_colour
from vitrail.studio.forward_trace import Metadata, NamedArrays
from vitrail.studio.image_library import LabelledObjects
from vitrail.tasks.box_decoding import boxes_of_cells
from vitrail.tasks.detection import DetectionTask
from vitrail.tasks.registry import model_task


def box_view(
    model: Any, images: Float[Tensor, "1 c height width"], patches: Sequence[int], mode: str, seed: int
) -> tuple[Metadata, NamedArrays]:
    """Return the detections when some patches are masked or shuffled, those of a prediction first, and the score from which on
    each class is predicted."""
    task = model_task(model)
    if not isinstance(task, DetectionTask):
        raise VitrailError("boxes are predicted by detection models only; name another model")
    vit = as_vit(model)
    with torch.no_grad():
        outputs, peaks = detect(model, ablate_images(vit, images, patches, mode, seed))
    boxes = boxes_of_cells(outputs, peaks.cells, (images.shape[2], images.shape[3]))[0]
    (rows, columns), grid = outputs.shape[2:], vit.grid(images)
    detections = [
        {
            "class": label,
            "label": task.class_names[label],
            "colour": class_colour(label),
            "score": score,
            "bounds": bounds,
            "patch": cell // columns * grid[0] // rows * grid[1] + cell % columns * grid[1] // columns,
        }
        for score, label, cell, bounds in zip(*(values[0].tolist() for values in peaks), boxes.tolist(), strict=True)
        if score > 0
    ]
    return {"boxes": detections, "thresholds": task.threshold_row().tolist()}, {}


def object_view(labelled: LabelledObjects, preprocess: Preprocess, class_names: Sequence[str]) -> list[Metadata]:
    """Return the objects of an image of a dataset, in the colours of the model's classes of the same names."""
    bounds = boxes_to_input(labelled.objects.boxes, labelled.size, preprocess).tolist()
    rows = zip(labelled.objects.labels.tolist(), labelled.objects.crowd.tolist(), bounds, strict=True)
    names = [labelled.class_names[label] for label in labelled.objects.labels.tolist()]
    return [
        {
            "label": name,
            "colour": class_colour(class_names.index(name) if name in class_names else len(class_names) + label),
            "crowd": crowd,
            "bounds": box,
        }
        for name, (label, crowd, box) in zip(names, rows, strict=True)
    ]
