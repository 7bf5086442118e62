"""``vitrail.predict``: what a model predicts for images, preprocessed as in its own evaluation.

What a prediction is, the model's task decides: a classifier's has labels and probabilities. b images.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.data.loader import Loader, build_pixel_loader, check_batch_size
from vitrail.data.sources.dataset import Dataset
from vitrail.errors import VitrailError
from vitrail.inference.dense import iter_dense_predictions
from vitrail.inference.inputs import as_images
from vitrail.inference.load import load_predictor
from vitrail.inference.predictor import Predictor, require_outputs
from vitrail.inference.run import iter_outputs
from vitrail.inference.tiles import DEFAULT_OVERLAP, TileSize, choose_tiling
from vitrail.inference.tta import TTAMode
from vitrail.inference.with_tta import with_tta
from vitrail.tasks.task import Prediction, Task

DEFAULT_TOP_K, DEFAULT_BATCH_SIZE = 5, 32


def predict(
    model: Any,
    images: Any,
    top_k: int = DEFAULT_TOP_K,
    batch_size: int = DEFAULT_BATCH_SIZE,
    workers: int | None = None,
    tile: TileSize = None,
    overlap: float = DEFAULT_OVERLAP,
    tta: TTAMode | None = None,
    threshold: float | None = None,
) -> list[Any]:
    """Predict files, bytes, PIL images or arrays (h w c or h w, uint8), in their order; or one of them, or a dataset.

    ``model`` is a model, a predictor, or what ``vitrail.load_predictor`` reads. A bad image is a prediction with an error and
    affects no other. A prediction is the ``vitrail.Prediction`` of the model's task: those of a classifier have a ``label``,
    its ``probability``, and the ``top_k`` most probable classes as ``top``; those of a segmentation model the ``mask`` at the
    image's own size, and the fraction of the pixels of each of its ``classes``.

    ``tile``: predict masks of larger images in tiles of this height and width, in pixels of the image, a fraction ``overlap``
    of which a neighbour shows as well. ``"auto"``: tiles of the size of the training images, for images at least twice as
    large. None: every image as a whole, as it is evaluated. ``tta``: the mean of several views of an image, as in
    ``vitrail.evaluate``.
    """
    source = as_images(images)
    options = top_k, batch_size, workers, tile, overlap, tta, threshold
    return list(iter_predictions(model, source, *options)) if len(source) else []


def iter_predictions(
    model: Any,
    images: Any,
    top_k: int = DEFAULT_TOP_K,
    batch_size: int = DEFAULT_BATCH_SIZE,
    workers: int | None = None,
    tile: TileSize = None,
    overlap: float = DEFAULT_OVERLAP,
    tta: TTAMode | None = None,
    threshold: float | None = None,
) -> Generator[Any, None, None]:
    """Yield predictions while the next images are read; errors other than bad images are raised at once."""
    source = as_images(images)
    if top_k < 1:
        raise VitrailError(f"top_k must be at least 1, got {top_k}; try top_k=5")
    predictor = require_outputs(load_predictor(model))
    predictor = predictor if tta is None else with_tta(predictor, tta)
    tiling = choose_tiling(tile, overlap, predictor)
    task = predictor.task if threshold is None else predictor.task.with_threshold(threshold)
    if task.config.is_dense:
        return iter_dense_predictions(predictor, task, source, tiling, check_batch_size(batch_size), workers)
    loader = build_pixel_loader(source, predictor.preprocess, batch_size, max_bad_fraction=1.0)
    loader.logs_errors = False  # a read error is part of the result
    return _predict_batches(predictor, task, loader, source, top_k, workers)


def _predict_batches(
    predictor: Predictor, task: Task, loader: Loader, source: Dataset, top_k: int, workers: int | None
) -> Generator[Prediction, None, None]:
    for batch in iter_outputs(predictor.outputs, loader, workers):
        found = dict(zip(batch.indices.tolist(), finite_predictions(task, torch.from_numpy(batch.values), top_k), strict=True))
        for index in batch.batch_indices.tolist():
            where = source.describe(index)
            if index in loader.read_errors:
                reason = loader.read_errors.pop(index).removeprefix(f"{where}: ")
                yield task.prediction_class(file=where, error=reason)
            elif (prediction := found[index]) is not None:
                yield replace(prediction, file=where)
            else:
                yield task.prediction_class(file=where, error=f"makes the model's {task.output_name} non-finite (NaN/Inf)")


def finite_predictions(task: Task, outputs: Float[Tensor, "b ..."], top_k: int) -> list[Prediction | None]:
    """Return what is predicted for each image; None for outputs that are not finite."""
    finite = outputs.isfinite().flatten(1).all(1)
    predicted = iter(task.predictions(outputs[finite], top_k) if finite.any() else ())
    return [next(predicted) if each else None for each in finite.tolist()]
