"""Detections and objects of images as a few tensors: they can be gathered from ranks, saved with a run, and compared again.

n images, d detections, g objects, k classes. Boxes are in pixels of their images.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from vitrail.data.sources.objects import Objects
from vitrail.tasks.box_matching import ImageMatches, confusion_with_background, match_image, pair_boxes
from vitrail.tasks.task import Gather


class FoundBoxes(NamedTuple):
    """The detections in an image."""

    boxes: Float[ndarray, "m 4"]
    scores: Float[ndarray, " m"]
    labels: Int[ndarray, " m"]


@dataclass(frozen=True, eq=False)
class DetectedImages:
    """Detections and objects of images; the rows of an image follow those of the image before it."""

    indices: Int[Tensor, " n"]  # in the split
    num_detections: Int[Tensor, " n"]
    detections: Float[Tensor, "d 6"]  # left, top, right, bottom, score, label
    num_objects: Int[Tensor, " n"]
    objects: Float[Tensor, "g 7"]  # left, top, right, bottom, label, whether it is a crowd, area

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[tuple[FoundBoxes, Objects]]:
        """Yield the detections and the objects of each image."""
        detections = self.detections.numpy(), self.num_detections.cumsum(0).tolist(), self.num_detections.tolist()
        objects = self.objects.numpy(), self.num_objects.cumsum(0).tolist(), self.num_objects.tolist()
        for image in range(len(self)):
            found, true = (rows[ends[image] - counts[image] : ends[image]] for rows, ends, counts in (detections, objects))
            boxes = FoundBoxes(found[:, :4], found[:, 4], found[:, 5].astype(np.int64))
            yield boxes, Objects(true[:, :4], true[:, 4].astype(np.int64), true[:, 5] > 0, true[:, 6])

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name, which ``load_detected_images`` reads."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def gathered(self, gather: Gather) -> "DetectedImages":
        """Return the images of all ranks, in the order of the split: equal scores are ranked by it."""
        everything = DetectedImages(*map(gather, self.tensors().values()))
        return everything.select(everything.indices.argsort(stable=True).tolist())

    def select(self, rows: Sequence[int]) -> "DetectedImages":
        """Return some of the images."""
        detections = self.detections.split(self.num_detections.tolist())
        objects = self.objects.split(self.num_objects.tolist())
        place = torch.tensor(rows, dtype=torch.int64)
        return DetectedImages(
            self.indices[place],
            self.num_detections[place],
            torch.cat([self.detections[:0], *(detections[row] for row in rows)]),
            self.num_objects[place],
            torch.cat([self.objects[:0], *(objects[row] for row in rows)]),
        )

    def matches(self) -> list[ImageMatches]:
        """Match the detections of each image with its objects."""
        return [match_image(*found, objects) for found, objects in self]

    def confusion(self, score_thresholds: Float[ndarray, " k"]) -> Int[ndarray, "k+1 k+1"]:
        """Count what is detected as which class, see ``confusion_with_background``."""
        total = np.zeros((len(score_thresholds) + 1,) * 2, np.int64)
        for found, objects in self:
            pairs = pair_boxes(*found, objects, score_thresholds)
            total += confusion_with_background(found.labels, objects, pairs, len(score_thresholds))
        return total


def stack_detected_images(
    indices: Sequence[int], detections: Sequence[Float[Tensor, "_ 6"]], objects: Sequence[Objects]
) -> DetectedImages:
    """Return images, which may be none, from the detections and the objects of each."""
    columns = [
        np.column_stack([each.boxes, each.labels, each.crowd, each.areas]).reshape(-1, 7).astype(np.float64) for each in objects
    ]
    return DetectedImages(
        torch.tensor(indices, dtype=torch.int64),
        torch.tensor([len(rows) for rows in detections], dtype=torch.int64),
        torch.cat([torch.zeros(0, 6, dtype=torch.float64), *(rows.double() for rows in detections)]),
        torch.tensor([len(each) for each in objects], dtype=torch.int64),
        torch.from_numpy(np.concatenate([np.zeros((0, 7)), *columns])),
    )


def load_detected_images(saved: Mapping[str, Any]) -> DetectedImages | None:
    """Return the images whose tensors have been saved among others; None if they were not."""
    names = [field.name for field in fields(DetectedImages)]
    return DetectedImages(*(saved[name] for name in names)) if all(name in saved for name in names) else None
