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

from vitrail.data.prepare import normalise
from vitrail.errors import VitrailError, suggestion
from vitrail.explain.maps import CLASSLESS, saliency
from vitrail.export.engine import Engine, TorchEngine
from vitrail.report.shades import colours, scaled
from vitrail.serve.batcher import Job
from vitrail.serve.trouble import Trouble

COVER, SIDE = 0.55, 448  # opacity of the map over the image, and pixels of the overlay's longer side
NO_NUMBER = "the model's output for this image is not finite (NaN/Inf)"


def told(logits: Float32[ndarray, " k"], labels: Sequence[str], top: int, sigmoid: bool) -> dict[str, Any]:
    """Return the most probable classes; ties go to the lower index."""
    if not np.isfinite(logits).all():
        raise Trouble(500, NO_NUMBER, "failed", picture=True)
    wide = logits.astype(np.float64)
    order = np.argsort(-wide, kind="stable")[:top]
    shares = np.exp(wide - wide.max())
    odds = 0.5 + 0.5 * np.tanh(wide / 2) if sigmoid else shares / shares.sum()  # a sigmoid that cannot overflow
    rows = [{"label": labels[number], "probability": float(odds[number])} for number in order]
    return {**rows[0], "top": rows}


def explaining(engine: Engine, method: str, target: str | None) -> Job:
    """Return a job for the compute thread: the prediction for one image and its saliency map."""
    if not isinstance(engine, TorchEngine):
        raise Trouble(501, f"{engine.name} cannot compute saliency maps; serve the run itself for that", "type")
    model = engine.module  # only the compute thread uses it
    chosen = None if target is None else _class(target, engine.labels)

    def explained(_: Engine, pixels: UInt8[ndarray, "height width c"]) -> dict[str, Any]:
        logits = engine.logits(pixels[None])[0]
        number = int(logits.argmax()) if chosen is None else chosen
        weight = next(model.parameters())
        planes = rearrange(torch.from_numpy(pixels), "h w c -> 1 c h w").float().contiguous()
        images = normalise(planes, engine.preprocess).to(weight.device, weight.dtype)
        try:
            values = saliency(model, images, method, None if method in CLASSLESS else torch.tensor([number]))[0]
        except VitrailError as error:  # a ResNet has no patches
            raise Trouble(501, str(error), "type") from None
        grid = values.detach().float().cpu().numpy()
        said = told(logits, engine.labels, 1, engine.sigmoid)
        said = {"label": said["label"], "probability": said["probability"], "explained": engine.labels[number]}
        return {**said, "method": method, "map": grid, "pixels": pixels}

    return explained


def overlay(pixels: UInt8[ndarray, "height width c"], grid: Float32[ndarray, "y x"]) -> bytes:
    """Return a PNG of the saliency map over a grey copy of the model's input."""
    grey = np.asarray(Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("L"))
    high, wide = grey.shape
    times = max(1, SIDE // max(high, wide))
    size = wide * times, high * times
    below = np.asarray(Image.fromarray(repeat(grey, "h w -> h w 3")).resize(size, Image.Resampling.BILINEAR))
    above = np.asarray(Image.fromarray(colours(scaled(grid))).resize(size, Image.Resampling.NEAREST))
    file = io.BytesIO()
    Image.fromarray(np.round((1 - COVER) * below + COVER * above).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def _class(name: str, labels: Sequence[str]) -> int:
    if name in labels:
        return labels.index(name)
    if name.isascii() and name.isdecimal() and len(name) < 7 and int(name) < len(labels):
        return int(name)
    raise Trouble(
        422,
        f"the model has no class {name[:80]!r} among its {len(labels)}"
        f"{suggestion(name[:80], labels[:1000]) or '; name one of them, or a number'}",
        "type",
    )
