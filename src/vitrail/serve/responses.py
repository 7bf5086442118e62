"""Turn logits and saliency maps into responses, with the same labels and probabilities as ``vitrail.predict``.

k classes, y and x the grid of patches.
"""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import Float32, UInt8
from numpy import ndarray
from PIL import Image

from vitrail.data.transforms import normalise
from vitrail.errors import VitrailError, did_you_mean
from vitrail.explain.saliency import CLASS_AGNOSTIC_METHODS, saliency
from vitrail.inference.predictor import Predictor, TorchPredictor
from vitrail.plot.colormap import apply_colormap, min_max
from vitrail.serve.batcher import Job
from vitrail.serve.errors import RequestError

OVERLAY_OPACITY, OVERLAY_SIDE = 0.55, 448  # opacity of the map over the image, and pixels of the overlay's longer side
NOT_FINITE_MESSAGE = "the model's output for this image is not finite (NaN/Inf)"


def prediction_json(logits: Float32[ndarray, " k"], labels: Sequence[str], top_k: int, sigmoid: bool) -> dict[str, Any]:
    """Return the most probable classes; ties go to the lower index."""
    if not np.isfinite(logits).all():
        raise RequestError(500, NOT_FINITE_MESSAGE, "failed", is_image_error=True)
    logits64 = logits.astype(np.float64)
    order = np.argsort(-logits64, kind="stable")[:top_k]
    exponentials = np.exp(logits64 - logits64.max())
    # tanh gives a sigmoid that cannot overflow
    probabilities = 0.5 + 0.5 * np.tanh(logits64 / 2) if sigmoid else exponentials / exponentials.sum()
    rows = [{"label": labels[index], "probability": float(probabilities[index])} for index in order]
    return {**rows[0], "top": rows}


def saliency_job(engine: Predictor, method: str, target: str | None) -> Job:
    """Return a job for the compute thread: the prediction for one image and its saliency map."""
    if not isinstance(engine, TorchPredictor):
        raise RequestError(501, f"{engine.backend} cannot compute saliency maps; serve the run itself for that", "type")
    model = engine.module  # only the compute thread uses it
    target_index = None if target is None else _class_index(target, engine.class_names)

    def compute(_: Predictor, pixels: UInt8[ndarray, "height width c"]) -> dict[str, Any]:
        logits = engine.logits(pixels[None])[0]
        class_index = int(logits.argmax()) if target_index is None else target_index
        weight = next(model.parameters())
        planes = rearrange(torch.from_numpy(pixels), "h w c -> 1 c h w").float().contiguous()
        images = normalise(planes, engine.preprocess).to(weight.device, weight.dtype)
        try:
            targets = None if method in CLASS_AGNOSTIC_METHODS else torch.tensor([class_index])
            values = saliency(model, images, method, targets)[0]
        except VitrailError as error:  # a ResNet has no patches
            raise RequestError(501, str(error), "type") from None
        grid = values.detach().float().cpu().numpy()
        prediction = prediction_json(logits, engine.class_names, 1, engine.sigmoid)
        prediction = {
            "label": prediction["label"],
            "probability": prediction["probability"],
            "explained": engine.class_names[class_index],
        }
        return {**prediction, "method": method, "map": grid, "pixels": pixels}

    return compute


def saliency_overlay(pixels: UInt8[ndarray, "height width c"], grid: Float32[ndarray, "y x"]) -> bytes:
    """Return a PNG of the saliency map over a grey copy of the model's input."""
    grey = np.asarray(Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("L"))
    height, width = grey.shape
    scale = max(1, OVERLAY_SIDE // max(height, width))
    size = width * scale, height * scale
    background = np.asarray(Image.fromarray(repeat(grey, "h w -> h w 3")).resize(size, Image.Resampling.BILINEAR))
    heatmap = np.asarray(Image.fromarray(apply_colormap(min_max(grid))).resize(size, Image.Resampling.NEAREST))
    file = io.BytesIO()
    Image.fromarray(np.round((1 - OVERLAY_OPACITY) * background + OVERLAY_OPACITY * heatmap).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def _class_index(name: str, labels: Sequence[str]) -> int:
    if name in labels:
        return labels.index(name)
    if name.isascii() and name.isdecimal() and len(name) < 7 and int(name) < len(labels):
        return int(name)
    raise RequestError(
        422,
        f"the model has no class {name[:80]!r} among its {len(labels)}"
        f"{did_you_mean(name[:80], labels[:1000]) or '; name one of them, or a number'}",
        "type",
    )
