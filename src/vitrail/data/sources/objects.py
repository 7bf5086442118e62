"""The labelled objects of an image: boxes with classes, as detection learns and measures them. k objects."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray


@dataclass(frozen=True, eq=False)
class Objects:
    """Boxes in pixels of the upright image, with the class of each.

    A crowd is a region with many objects that have no boxes of their own: it is not learned, and detections inside it count
    neither as right nor as wrong, as in COCO.
    """

    boxes: Float[ndarray, "k 4"]  # left, top, right, bottom; right and bottom exclusive, so a box of one pixel has width 1
    labels: Int[ndarray, " k"]  # int64: index of the class
    crowd: Bool[ndarray, " k"]
    areas: Float[ndarray, " k"]  # in pixels, by which metrics sort objects into small, medium and large: COCO's are of masks

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, selected: ndarray) -> "Objects":
        """Return some of the objects, by index or mask."""
        return Objects(self.boxes[selected], self.labels[selected], self.crowd[selected], self.areas[selected])

    def with_labels(self, labels: Int[ndarray, " k"]) -> "Objects":
        return replace(self, labels=labels)

    def scaled(self, x: float, y: float) -> "Objects":
        """Return the objects of an image that is so many times as wide and as high."""
        return replace(self, boxes=self.boxes * np.array([x, y, x, y]), areas=self.areas * (x * y))

    def moved(self, x: float, y: float) -> "Objects":
        return replace(self, boxes=self.boxes + np.array([x, y, x, y]))

    def turned(self, orientation: int, size: tuple[int, int]) -> "Objects":
        """Return the objects of a sideways image of this stored height and width as it is when turned as its EXIF says."""
        height, width = size
        left, top, right, bottom = self.boxes.T
        turned = {
            5: (top, left, bottom, right),
            6: (height - bottom, left, height - top, right),
            7: (height - bottom, width - right, height - top, width - left),
            8: (top, width - right, bottom, width - left),
        }
        return replace(self, boxes=np.stack(turned[orientation], axis=1))


def build_objects(
    boxes: object, labels: object, crowd: ndarray | None = None, areas: Float[ndarray, " k"] | None = None
) -> Objects:
    """Build objects from boxes and labels of any array type; by default none is a crowd, and areas are those of the boxes."""
    box_array = np.asarray(boxes, np.float64).reshape(-1, 4)
    label_array = np.asarray(labels, np.int64).reshape(-1)
    return Objects(
        box_array,
        label_array,
        np.zeros(len(label_array), bool) if crowd is None else np.asarray(crowd, bool),
        box_areas(box_array) if areas is None else np.asarray(areas, np.float64),
    )


def box_areas(boxes: Float[ndarray, "k 4"]) -> Float[ndarray, " k"]:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


NO_OBJECTS = build_objects([], [])


def concat_objects(parts: Sequence[Objects]) -> Objects:
    """Return the objects of several images, one image after the other."""
    columns = zip(*(vars(part).values() for part in [NO_OBJECTS, *parts]), strict=True)
    return Objects(*map(np.concatenate, columns))
