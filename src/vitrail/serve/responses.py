"""Turn outputs and saliency maps into responses, with the same labels and probabilities as ``vitrail.predict``.

y and x the grid of patches.
"""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from einops import repeat
from jaxtyping import Float32, Num
from numpy import ndarray
from PIL import Image

from vitrail.data.band_view import pixels_to_view
from vitrail.errors import VitrailError, printable
from vitrail.evaluation.explanations import output_index, output_names
from vitrail.evaluation.region_selection import largest_predicted_regions
from vitrail.explain.box import box_classifier
from vitrail.explain.saliency import CLASS_AGNOSTIC_METHODS, saliency
from vitrail.inference.predict import finite_predictions
from vitrail.inference.predictor import Predictor, TorchPredictor
from vitrail.plot.box_image import draw_boxes
from vitrail.plot.colormap import apply_colormap, min_max
from vitrail.serve.batcher import Finish, Job, SizedOutput
from vitrail.serve.errors import RequestError
from vitrail.tasks.detection import DetectionTask
from vitrail.tasks.task import Task

OVERLAY_OPACITY, OVERLAY_SIDE = 0.55, 448  # opacity of the map over the image, and pixels of the overlay's longer side
NOT_FINITE_MESSAGE = "the model's output for this image is not finite (NaN/Inf)"


def prediction_json(outputs: Float32[ndarray, " ..."], task: Task, top_k: int) -> dict[str, Any]:
    """Return what the task predicts from the outputs of one image."""
    (prediction,) = finite_predictions(task, torch.from_numpy(outputs)[None], top_k)
    if prediction is None:
        raise RequestError(500, NOT_FINITE_MESSAGE, "failed", is_image_error=True)
    return {name: value for name, value in prediction.plain().items() if name not in ("file", "error")}


def saliency_job(predictor: Predictor, method: str, target: str | None, box: int | None = None) -> Job:
    """Return a job for the compute thread: the prediction for one image and its saliency map. ``box``: which detection."""
    if not isinstance(predictor, TorchPredictor):
        raise RequestError(501, f"{predictor.backend} cannot compute saliency maps; serve the run itself for that", "type")
    try:
        target_index = None if target is None else output_index(target, predictor.task)
    except VitrailError as error:
        raise RequestError(422, printable(str(error)), "type") from None
    if isinstance(predictor.task, DetectionTask):
        return _box_job(predictor, method, target_index, box)
    if box is not None:
        raise RequestError(422, "boxes are explained of detection models only; leave box out", "type")
    if predictor.task.has_pixel_classes:
        return _region_job(predictor, method, target_index)
    names = output_names(predictor.task)  # none if the outputs are those of a decoder, which maps cannot explain

    def compute(_: Predictor, pixels: Num[ndarray, "height width c"]) -> dict[str, Any]:
        outputs = predictor.outputs(pixels[None])[0]  # only the compute thread uses the predictor
        index = predictor.task.default_output(torch.from_numpy(outputs)) if target_index is None and names else target_index
        try:
            targets = None if index is None or method in CLASS_AGNOSTIC_METHODS else torch.tensor([index])
            values = saliency(predictor.encoder, predictor.normalised(pixels[None]), method, targets)[0]
        except VitrailError as error:  # a ResNet has no patches, an encoder with a decoder no classes
            raise RequestError(501, str(error), "type") from None
        prediction = prediction_json(outputs, predictor.task, 1)
        prediction.pop("top", None)
        explained = {"explained": "" if index is None else names[index], "method": method}
        return {**prediction, **explained, "map": values.detach().float().cpu().numpy(), "pixels": pixels}

    return compute


def _region_job(predictor: TorchPredictor, method: str, target: int | None) -> Job:
    """Return the job for a segmentation model: the saliency map of the pixels that are predicted as a class."""
    names = predictor.task.class_names

    def compute(_: Predictor, pixels: Num[ndarray, "height width c"]) -> dict[str, Any]:
        if not np.isfinite(predictor.outputs(pixels[None])).all():
            raise RequestError(500, NOT_FINITE_MESSAGE, "failed", is_image_error=True)
        batch = predictor.normalised(pixels[None])
        try:
            classifier, classes, present = largest_predicted_regions(predictor.model, batch, target)
            if not present.all():
                message = f"no pixel of the image is predicted as {names[target or 0]}; name a class that is, or none"
                raise RequestError(422, printable(message), "failed", is_image_error=True)
            targets = None if method in CLASS_AGNOSTIC_METHODS else classes
            values = saliency(classifier, batch, method, targets)[0]
        except VitrailError as error:
            raise RequestError(501, str(error), "type") from None
        explained = {"explained": names[int(classes[0])], "method": method}
        return {**explained, "map": values.detach().float().cpu().numpy(), "pixels": pixels}

    return compute


def _box_job(predictor: TorchPredictor, method: str, target: int | None, box: int | None) -> Job:
    """Return the job for a detection model: the saliency map of a box."""
    names = predictor.task.class_names

    def compute(_: Predictor, pixels: Num[ndarray, "height width c"]) -> dict[str, Any]:
        if not np.isfinite(predictor.outputs(pixels[None])).all():
            raise RequestError(500, NOT_FINITE_MESSAGE, "failed", is_image_error=True)
        batch = predictor.normalised(pixels[None])
        try:
            classifier = box_classifier(predictor.model, batch, box, target)
        except VitrailError as error:
            raise RequestError(422, str(error), "failed", is_image_error=True) from None
        explained = int(classifier.labels[0]) if target is None else target
        targets = None if method in CLASS_AGNOSTIC_METHODS else torch.tensor([explained], device=batch.device)
        values = saliency(classifier, batch, method, targets)[0]
        return {
            "label": names[int(classifier.labels[0])],
            "score": float(classifier.scores[0]),
            "input_box": classifier.boxes[0].tolist(),
            "explained": names[explained],
            "method": method,
            "map": values.detach().float().cpu().numpy(),
            "pixels": pixels,
        }

    return compute


def box_step(task: Task) -> Finish | None:
    """Return the step that puts the box of a detection model's map in pixels of its image; None for other tasks."""
    if not isinstance(task, DetectionTask):
        return None

    def finish(output: SizedOutput) -> dict[str, Any]:
        outcome: Any = output.outputs
        (box,) = task.restore_boxes(torch.tensor([outcome["input_box"]], dtype=torch.float64), output.size).tolist()
        return {**outcome, "box": box}

    return finish


def saliency_overlay(
    pixels: Num[ndarray, "height width c"], grid: Float32[ndarray, "y x"], box: Sequence[float] | None = None
) -> bytes:
    """Return a PNG of the saliency map over a grey copy of the model's input, with the box that is explained."""
    grey = np.asarray(pixels_to_view(pixels).convert("L"))
    height, width = grey.shape
    scale = max(1, OVERLAY_SIDE // max(height, width))
    size = width * scale, height * scale
    background = np.asarray(Image.fromarray(repeat(grey, "h w -> h w 3")).resize(size, Image.Resampling.BILINEAR))
    heatmap = np.asarray(Image.fromarray(apply_colormap(min_max(grid))).resize(size, Image.Resampling.NEAREST))
    file = io.BytesIO()
    drawing = Image.fromarray(np.round((1 - OVERLAY_OPACITY) * background + OVERLAY_OPACITY * heatmap).astype(np.uint8))
    if box is not None:
        drawing = draw_boxes(drawing, scale * np.array([box]), np.zeros(1, np.int64), colours=["#ffffff"])
    drawing.save(file, "PNG")
    return file.getvalue()
