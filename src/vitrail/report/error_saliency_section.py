"""Saliency of the worst errors: maps for the predicted class and for the true class.

By integrated gradients, the most faithful method on models of this kind (``docs/log.md``)."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from PIL import Image

from vitrail.data.batch_transforms import EvalTransform
from vitrail.data.sources.dataset import Dataset
from vitrail.errors import VitrailError
from vitrail.evaluation.classification import SplitPredictions
from vitrail.explain.saliency import saliency
from vitrail.inference.predictor import require_preprocess
from vitrail.models.vit import ViT
from vitrail.plot.heatmap import overlay
from vitrail.plot.markup import escape
from vitrail.report.contact_sheet import data_uri, denormalise
from vitrail.tasks.classification import per_image_scores
from vitrail.weights.load import load

METHOD = "integrated_gradients"
NUM_ERRORS = 6
IMAGE_SIDE = 160  # pixels of an image's longer side


def error_saliency_section(weights: Path, dataset: Dataset, predictions: SplitPredictions) -> Iterator[str]:
    """Yield the section, or nothing if it cannot be computed, as for a ResNet."""
    try:
        examples = error_saliency(weights, dataset, predictions)
    except (VitrailError, OSError, RuntimeError, MemoryError):
        return
    if not examples:
        return
    yield "<h2>Saliency of the worst errors</h2>"
    yield (
        "<p>The preprocessed image, the evidence for the predicted class, and the evidence for the true class: integrated "
        "gradients from a grey baseline, each map scaled to its own minimum and maximum.</p>"
    )
    for original, predicted_map, true_map, names in examples:
        figures = (
            f'<figure><figcaption>{escape(title)}</figcaption><img alt="{escape(title)}" width="{image.width}" '
            f'src="{data_uri(image)}"></figure>'
            for title, image in ((names[1], original), (f"for {names[0]}", predicted_map), (f"for {names[1]}", true_map))
        )
        yield f'<div class="shots">{"".join(figures)}</div>'


def error_saliency(
    weights: Path, dataset: Dataset, predictions: SplitPredictions, count: int = NUM_ERRORS
) -> list[tuple[Image.Image, Image.Image, Image.Image, tuple[str, str]]]:
    """Return image, maps for the predicted and the true class, and their names; the highest loss first."""
    errors = (predictions.predicted != predictions.labels).nonzero()[:, 0]
    losses = per_image_scores(predictions.logits, predictions.labels)["loss"][errors]
    rows = errors[losses.argsort(descending=True, stable=True)][:count]
    model = load(weights).eval()
    if not isinstance(model, ViT) or not rows.shape[0]:
        return []
    preprocess = require_preprocess(model)
    indices = predictions.indices[rows].numpy()
    batch = EvalTransform(preprocess)(dataset, np.zeros(len(indices), np.int64), indices)
    rows = rows[torch.from_numpy(batch.readable)]
    predicted, true = predictions.predicted[rows], predictions.labels[rows]
    predicted_maps, true_maps = (saliency(model, batch.images, METHOD, classes).numpy() for classes in (predicted, true))
    images = denormalise(batch.images, preprocess)
    return [
        (_enlarge(image), _overlay(image, one), _overlay(image, other), (dataset.class_names[a], dataset.class_names[b]))
        for image, one, other, a, b in zip(images, predicted_maps, true_maps, predicted.tolist(), true.tolist(), strict=True)
    ]


def _overlay(image: Image.Image, values: Float[ndarray, "y x"]) -> Image.Image:
    return overlay(image, values, side=IMAGE_SIDE).to_image(1, standalone=False)


def _enlarge(image: Image.Image) -> Image.Image:
    scale = IMAGE_SIDE / max(image.size)
    return image.convert("RGB").resize(
        (max(1, round(image.width * scale)), max(1, round(image.height * scale))), Image.Resampling.BICUBIC
    )
