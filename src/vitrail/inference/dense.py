"""Predict images place by place, a class for every pixel or boxes: at the image's own size, as a whole or in tiles.

``image_bands`` is for one image that is decoded already; ``iter_dense_predictions`` reads, decodes and predicts many.
k classes; the model's input is height by width, an image h high and w wide, r rows.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Num
from numpy import ndarray
from torch import Tensor

from vitrail.data.decode import ImageSize, decode_array, to_pil
from vitrail.data.loader import num_workers
from vitrail.data.prefetch import prefetch
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import Dataset
from vitrail.data.transforms import decode_model_bands, to_pixels
from vitrail.errors import VitrailError
from vitrail.inference.box_tiles import detect_in_tiles
from vitrail.inference.predictor import NonFiniteOutputs, Predictor, require_finite
from vitrail.inference.tiles import Tiling, joined_bands, tile_outputs
from vitrail.tasks.dense import restored_bands
from vitrail.tasks.detection import DetectionTask
from vitrail.tasks.task import Prediction, Task

MAX_BATCH_NUMEL = 2**24  # numbers that the model computes at a time: 64 MiB
PIXELS_PER_CELL = 16  # of the map of a detection model, as a rule
Bands = Iterator[tuple[slice, Float[Tensor, "k r w"]]]


@dataclass(frozen=True)
class LoadedImage:
    """An image that is ready for the model: as its input or, if it is predicted in tiles, in full. Else there is an error."""

    where: str
    size: ImageSize = (0, 0)
    model_input: Num[ndarray, "height width c"] | None = None
    pixels: Num[ndarray, "h w c"] | None = None
    error: str | None = None


def upright_pixels(content: bytes | ndarray, preprocess: Preprocess) -> Num[ndarray, "h w c"]:
    """Return an image, encoded or as pixels, upright and in full, as ``to_pixels`` takes it."""
    if preprocess.raw:
        return decode_model_bands(content, preprocess)
    if isinstance(content, bytes):
        return decode_array(content)
    to_pil(content)  # raises for bands that are no 8-bit colours
    return content


def image_bands(
    predictor: Predictor, pixels: Num[ndarray, "h w c"], tiling: Tiling | None = None, batch_size: int = 32
) -> Bands:
    """Yield the outputs for an image at its own size, a band of rows at a time; raises if they are not finite."""
    size = pixels.shape[0], pixels.shape[1]
    if tiling is not None and tiling.applies_to(size):
        limited = batch_limit(predictor, batch_size)
        return _finite(joined_bands(tile_outputs(predictor, pixels, tiling, limited), size), predictor)
    outputs = predictor.outputs(to_pixels(pixels, predictor.preprocess)[None])
    return _whole_bands(predictor, outputs[0], size)


def _whole_bands(predictor: Predictor, outputs: ndarray, size: ImageSize) -> Bands:
    return _finite(restored_bands(torch.from_numpy(outputs), predictor.preprocess, size), predictor)


def _finite(bands: Bands, predictor: Predictor) -> Bands:
    for band, values in bands:
        yield band, require_finite(values, predictor)


def batch_limit(predictor: Predictor, batch_size: int) -> int:
    """Return how many images to run at a time: no more than whose outputs fit into memory."""
    height, width = predictor.preprocess.image_size
    numel = height * width * max(len(predictor.task.output_names), 1)
    if predictor.task.config.has_boxes:
        numel //= PIXELS_PER_CELL
    return max(min(batch_size, MAX_BATCH_NUMEL // max(numel, 1)), 1)


def iter_dense_predictions(
    predictor: Predictor, task: Task, source: Dataset, tiling: Tiling | None, batch_size: int, workers: int | None
) -> Generator[Any, None, None]:
    """Yield a prediction for each image, at its own size."""
    threads = num_workers(workers)
    if tiling is not None:
        threads = min(threads, 1)  # since images are read in full, which takes little time compared with their tiles

    def load(index: int) -> LoadedImage:
        return _load(source, index, predictor.preprocess, tiling)

    images = prefetch(load, 0, len(source), threads)
    return _predict_loaded(predictor, task, images, tiling, batch_limit(predictor, batch_size))


def _load(source: Dataset, index: int, preprocess: Preprocess, tiling: Tiling | None) -> LoadedImage:
    where = source.describe(index)
    try:
        pixels = upright_pixels(source.read(index), preprocess)
        size = pixels.shape[0], pixels.shape[1]
        if tiling is not None and tiling.applies_to(size):
            return LoadedImage(where, size, pixels=pixels)
        return LoadedImage(where, size, model_input=to_pixels(pixels, preprocess))
    except (OSError, VitrailError) as error:
        return LoadedImage(where, error=str(error).removeprefix("the image ").removeprefix(f"{where}: "))


def _predict_loaded(
    predictor: Predictor, task: Task, images: Iterator[LoadedImage], tiling: Tiling | None, batch_size: int
) -> Generator[Prediction, None, None]:
    """Predict images in their order; those that are no larger than the model's input, a batch at a time."""
    waiting: list[LoadedImage] = []
    for image in images:
        if image.pixels is None:
            waiting.append(image)
        if image.pixels is not None or len(waiting) == batch_size:
            yield from _predict_batch(predictor, task, waiting)
            waiting = []
        if image.pixels is not None:
            assert tiling is not None
            yield _predict_tiled(predictor, task, image, tiling, batch_size)
    yield from _predict_batch(predictor, task, waiting)


def _predict_batch(predictor: Predictor, task: Task, images: list[LoadedImage]) -> Iterator[Prediction]:
    inputs = [image.model_input for image in images if image.model_input is not None]
    outputs = iter(predictor.outputs(np.stack(inputs)) if inputs else ())
    for image in images:
        if image.error is not None:
            yield task.prediction_class(file=image.where, error=image.error)
        else:
            yield _predict_whole(predictor, task, image, torch.from_numpy(next(outputs)))


def _predict_whole(
    predictor: Predictor, task: Task, image: LoadedImage, outputs: Float[Tensor, "k rows columns"]
) -> Prediction:
    try:
        return replace(task.image_prediction(require_finite(outputs, predictor), image.size), file=image.where)
    except NonFiniteOutputs as error:
        return task.prediction_class(file=image.where, error=str(error))


def _predict_tiled(predictor: Predictor, task: Task, image: LoadedImage, tiling: Tiling, batch_size: int) -> Prediction:
    assert image.pixels is not None
    try:
        if isinstance(task, DetectionTask):
            rows = detect_in_tiles(predictor, task, image.pixels, tiling, batch_size)
            return replace(task.box_prediction(rows, image.size), file=image.where)
        bands = image_bands(predictor, image.pixels, tiling, batch_size)
        return replace(task.dense_prediction(bands, image.size), file=image.where)
    except NonFiniteOutputs as error:
        return task.prediction_class(file=image.where, error=str(error))
