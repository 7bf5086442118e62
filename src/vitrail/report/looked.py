"""Saliency of the worst errors: maps for the predicted class and for the true class.

By integrated gradients, the most faithful method on models of this kind (``docs/log.md``)."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from PIL import Image

from vitrail.data.sources.source import Source
from vitrail.data.view import Plain
from vitrail.errors import VitrailError
from vitrail.evaluate.evaluate import Answers
from vitrail.evaluate.predict import preprocessing
from vitrail.explain.maps import saliency
from vitrail.models.vit import ViT
from vitrail.report.heat import overlay
from vitrail.report.markup import text
from vitrail.report.pictures import data_address, restored
from vitrail.tasks.classify import marks
from vitrail.weights.load import load

METHOD = "integrated_gradients"
SHOWN = 6
SIDE = 160  # pixels of an image's longer side


def looked_part(weights: Path, source: Source, answers: Answers) -> Iterator[str]:
    """Yield the section, or nothing if it cannot be computed, as for a ResNet."""
    try:
        shots = looked(weights, source, answers)
    except (VitrailError, OSError, RuntimeError, MemoryError):
        return
    if not shots:
        return
    yield "<h2>Saliency of the worst errors</h2>"
    yield (
        "<p>The preprocessed image, the evidence for the predicted class, and the evidence for the true class: integrated "
        "gradients from a grey baseline, each map scaled to its own minimum and maximum.</p>"
    )
    for picture, said, is_, names in shots:
        figures = (
            f'<figure><figcaption>{text(title)}</figcaption><img alt="{text(title)}" width="{image.width}" '
            f'src="{data_address(image)}"></figure>'
            for title, image in ((names[1], picture), (f"for {names[0]}", said), (f"for {names[1]}", is_))
        )
        yield f'<div class="shots">{"".join(figures)}</div>'


def looked(
    weights: Path, source: Source, answers: Answers, count: int = SHOWN
) -> list[tuple[Image.Image, Image.Image, Image.Image, tuple[str, str]]]:
    """Return image, maps for the predicted and the true class, and their names; the highest loss first."""
    wrong = (answers.guesses != answers.labels).nonzero()[:, 0]
    losses = marks(answers.logits, answers.labels)["loss"][wrong]
    rows = wrong[losses.argsort(descending=True, stable=True)][:count]
    model = load(weights).eval()
    if not isinstance(model, ViT) or not rows.shape[0]:
        return []
    how = preprocessing(model)
    indices = answers.indices[rows].numpy()
    seen = Plain(how)(source, np.zeros(len(indices), np.int64), indices)
    rows = rows[torch.from_numpy(seen.kept)]
    said, true = answers.guesses[rows], answers.labels[rows]
    first, second = (saliency(model, seen.images, METHOD, classes).numpy() for classes in (said, true))
    pictures = restored(seen.images, how.mean, how.std)
    return [
        (_large(picture), _over(picture, one), _over(picture, other), (source.names[a], source.names[b]))
        for picture, one, other, a, b in zip(pictures, first, second, said.tolist(), true.tolist(), strict=True)
    ]


def _over(picture: Image.Image, values: Float[ndarray, "y x"]) -> Image.Image:
    return overlay(picture, values, side=SIDE).picture(1, alone=False)


def _large(picture: Image.Image) -> Image.Image:
    scale = SIDE / max(picture.size)
    return picture.convert("RGB").resize(
        (max(1, round(picture.width * scale)), max(1, round(picture.height * scale))), Image.Resampling.BICUBIC
    )
