"""Turn logits of pixels into responses at the size of the image: run lengths, a PNG of classes, an overlay, or fractions.

All are written a band at a time, so that the memory they take does not grow with the image; a band is skipped once nobody
waits for the response. k classes; the model's input is height by width, an image h high and w wide.
"""

import io
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Num
from numpy import ndarray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.band_view import pixels_to_view
from vitrail.data.decode import ImageSize
from vitrail.data.mask_codes import Rle, encode_counts
from vitrail.inference.predictor import Predictor
from vitrail.plot.class_colours import class_colour, overlay
from vitrail.plot.mask_image import write_mask
from vitrail.serve.batcher import Finish, SizedOutput
from vitrail.serve.errors import RequestError, deadline_exceeded
from vitrail.serve.responses import NOT_FINITE_MESSAGE, OVERLAY_SIDE
from vitrail.tasks.dense import restored_bands
from vitrail.tasks.segmentation import SegmentationTask
from vitrail.tasks.task import Task

Bands = Iterator[tuple[slice, Int[ndarray, "rows w"]]]


@dataclass(frozen=True)
class Segmented:
    """The response for an image: its JSON, and a PNG if one is wanted."""

    row: dict[str, Any]
    png: bytes | None = None

    def to_json(self) -> dict[str, Any]:
        return self.row if self.png is None else {**self.row, "png": b64encode(self.png).decode("ascii")}


def require_segmentation(predictor: Predictor) -> SegmentationTask:
    """Return the task of a segmentation model, or raise."""
    if not isinstance(predictor.task, SegmentationTask):
        kind = predictor.task.config.name
        raise RequestError(
            501, f"the model is for {kind} and predicts no masks; use /predict, or serve a segmentation model", "type"
        )
    return predictor.task


def fractions_step(task: Task) -> Finish | None:
    """Return the last step of a prediction without a mask, the fraction of the image that each class covers; None if the
    outputs are not those of pixels."""
    if not isinstance(task, SegmentationTask):
        return None

    def finish(output: SizedOutput) -> dict[str, Any]:
        counts = np.zeros(task.classes, np.int64)
        for _, rows in _class_rows(task, output):
            counts += np.bincount(rows.ravel(), minlength=task.classes)
        order = np.argsort(-counts, kind="stable").tolist()
        fractions = {task.class_names[label]: counts[label] / counts.sum() for label in order}
        return {"size": list(output.size), "classes": fractions}

    return finish


def segment_step(task: SegmentationTask, kind: str) -> Finish:
    """Return the last step of a response of this kind: ``rle``, ``mask`` or ``overlay``."""

    def finish(output: SizedOutput) -> Segmented:
        logits, size = _logits(output), output.size
        if kind == "overlay":
            return Segmented({"size": list(size), "classes": _class_list(task, _input_counts(task, logits))}, _overlay(output))
        if kind == "rle":
            runs = _Runs.of_bands(_class_rows(task, output), size)
            counts = np.bincount(runs.labels, runs.lengths, task.classes)
            classes = _class_list(task, counts)
            for row in classes:
                row["rle"] = runs.encode(row["value"], size)
            return Segmented({"size": list(size), "classes": classes})
        counts = np.zeros(task.classes, np.int64)

        def counted() -> Iterator[ndarray]:
            for _, rows in _class_rows(task, output):
                counts.__iadd__(np.bincount(rows.ravel(), minlength=task.classes))
                yield rows

        png = write_mask(counted(), size, task.classes)
        return Segmented({"size": list(size), "classes": _class_list(task, counts)}, png)

    return finish


def _class_list(task: SegmentationTask, counts: Num[ndarray, " k"]) -> list[dict[str, Any]]:
    """Return a row for each class that there is, the largest first."""
    return [
        {
            "label": task.class_names[value],
            "value": value,
            "fraction": float(counts[value] / counts.sum()),
            "colour": class_colour(value),
        }
        for value in np.argsort(-counts, kind="stable").tolist()
        if counts[value]
    ]


def _logits(output: SizedOutput) -> Float[Tensor, "k height width"]:
    logits = torch.from_numpy(output.outputs)
    if not logits.isfinite().all():
        raise RequestError(500, NOT_FINITE_MESSAGE, "failed", is_image_error=True)
    return logits


def _class_rows(task: SegmentationTask, output: SizedOutput) -> Bands:
    for band, restored in restored_bands(_logits(output), task.preprocess, output.size):
        if output.is_cancelled():
            raise deadline_exceeded()
        yield band, restored.argmax(0).numpy()


@dataclass(frozen=True)
class _Runs:
    """Runs of pixels of the same class, column by column."""

    starts: Int[ndarray, " runs"]
    lengths: Int[ndarray, " runs"]
    labels: Int[ndarray, " runs"]

    @staticmethod
    def of_bands(bands: Bands, size: ImageSize) -> "_Runs":
        """Return the runs of a mask that comes as bands of its rows: where a pixel differs from that above it."""
        (height, width), starts, labels = size, list[ndarray](), list[ndarray]()
        above = np.full((1, width), -1)  # so that a run starts at the top of each column
        for band, rows in bands:
            row, column = np.nonzero(rows != np.concatenate([above, rows[:-1]]))
            starts.append(column * height + row + band.start)
            labels.append(rows[row, column])
            above = rows[-1:]
        order = np.argsort(np.concatenate(starts), kind="stable")
        ordered_starts, ordered_labels = np.concatenate(starts)[order], np.concatenate(labels)[order]
        kept = np.diff(ordered_labels, prepend=-1) != 0  # one that reaches over the end of a column is the same run
        return _Runs(ordered_starts[kept], np.diff(ordered_starts[kept], append=height * width), ordered_labels[kept])

    def encode(self, label: int, size: ImageSize) -> Rle:
        """Return the run lengths of a class, as COCO writes them."""
        chosen = self.labels == label
        starts, lengths = self.starts[chosen], self.lengths[chosen]
        ends = starts + lengths
        gaps = starts - np.concatenate([[0], ends[:-1]])
        counts = np.stack([gaps, lengths], axis=1).ravel()
        rest = size[0] * size[1] - int(ends[-1])
        return encode_counts(np.append(counts, rest) if rest else counts, size)


def _input_counts(task: SegmentationTask, logits: Float[Tensor, "k height width"]) -> Int[ndarray, " k"]:
    return np.bincount(logits.argmax(0).numpy().ravel(), minlength=task.classes)


def _overlay(output: SizedOutput) -> bytes:
    """Return a PNG of the classes over the model's input."""
    view = pixels_to_view(output.pixels).convert("RGB")
    scale = max(1, OVERLAY_SIDE // max(view.size))
    size = view.height * scale, view.width * scale
    mask = F.interpolate(_logits(output)[None], size, mode="bilinear")[0].argmax(0).numpy()
    image = np.asarray(view.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    file = io.BytesIO()
    Image.fromarray(overlay(image, mask)).save(file, "PNG")
    return file.getvalue()
