"""The mask of an image by a segmentation model, at the size of the model's input, height by width. c channels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.evaluation.region_selection import segment
from vitrail.explain.ablate import ablate_images
from vitrail.explain.attention import as_vit
from vitrail.plot.class_colours import class_colour
from vitrail.studio.forward_trace import Metadata, NamedArrays, check_finite_arrays, to_float32_array
from vitrail.tasks.registry import model_task


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
