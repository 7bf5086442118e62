"""The mask of an image by a segmentation model, and the classifier of one of its pixels, at the size of the model's input.

Studio images are drawn at that size everywhere, so that memory is bounded whatever the image's own.

c channels, k classes; the model's input is height by width.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.evaluation.region_selection import largest_predicted_regions, segment
from vitrail.explain.ablate import ablate_images
from vitrail.explain.attention import as_vit
from vitrail.explain.region import RegionClassifier
from vitrail.models.vit import ViT
from vitrail.plot.class_colours import class_colour
from vitrail.studio.forward_trace import Metadata, NamedArrays, check_finite_arrays, check_index, to_float32_array
from vitrail.tasks.registry import model_task

Pixel = tuple[int, int]  # column and row of the model's input


def explained_model(
    model: nn.Module, images: Float[Tensor, "1 c height width"], pixel: Pixel | None = None, target: int | None = None
) -> tuple[ViT, Metadata | None]:
    """Return a classifier as it is, and a segmentation model as one of a pixel, or of the pixels of its largest class, or of
    the target if it is predicted anywhere; and which pixels these are."""
    task: Any = model_task(model)
    if not task.has_pixel_classes:
        if pixel is not None:
            raise VitrailError("pixels are explained of segmentation models only; leave pixel out")
        return as_vit(model), None
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


def mask_view(
    model: Any, images: Float[Tensor, "1 c height width"], patches: Sequence[int], mode: str, seed: int
) -> tuple[Metadata, NamedArrays]:
    """Return the class of every pixel and its probability when some patches are masked or shuffled, and the classes by area."""
    task = model_task(model)
    if not task.has_pixel_classes:
        raise VitrailError("masks are predicted by segmentation models only; name another model")
    with torch.no_grad():
        logits = segment(model, ablate_images(as_vit(model), images, patches, mode, seed))[0].float()
    confidence, classes = logits.softmax(0).max(0)
    counts = np.bincount(classes.flatten().cpu().numpy(), minlength=len(task.class_names))
    metadata = {
        "classes": [
            {
                "class": label,
                "label": task.class_names[label],
                "colour": class_colour(label),
                "fraction": float(counts[label] / counts.sum()),
            }
            for label in np.argsort(-counts, kind="stable").tolist()
            if counts[label]
        ],
        "mean_confidence": confidence.mean().item(),
    }
    arrays = {"classes": classes.to(torch.int32).cpu().numpy(), "confidence": to_float32_array(confidence)}
    return metadata, check_finite_arrays(arrays)
