"""Predicted masks as COCO JSON: an annotation per image and class, of all its regions. h high, w wide.

Regions are polygons along the edges of their pixels, from which the same mask can be filled; a class whose outline has many
corners is written as run lengths, which are shorter.
"""

import json
import os
from collections.abc import Sequence
from typing import Any, TextIO

import numpy as np
from jaxtyping import Int16
from numpy import ndarray

from vitrail.data.mask_codes import encode_rle, mask_area, mask_box, polygons_of

MAX_CORNERS = 20_000  # horizontal and vertical edges of a class's regions, beyond which it is written as run lengths


class CocoWriter:
    """Writes annotations as they come, and at the end what is known only then: images and categories."""

    def __init__(self, file: TextIO, folder: str, class_names: Sequence[str]) -> None:
        self.file, self.folder, self.class_names = file, folder, class_names
        self.images: list[dict[str, Any]] = []
        self.num_annotations = 0
        file.write('{"annotations": [')

    def write(self, path: str, mask: Int16[ndarray, "h w"]) -> None:
        """Write the annotations of an image; its name is relative to the folder of the file."""
        height, width = mask.shape
        number = len(self.images) + 1
        self.images.append({"id": number, "file_name": os.path.relpath(path, self.folder), "height": height, "width": width})
        for label in np.flatnonzero(np.bincount(mask.ravel(), minlength=len(self.class_names))).tolist():
            region = mask == label
            self.num_annotations += 1
            annotation = {
                "id": self.num_annotations, "image_id": number, "category_id": label + 1, "iscrowd": 0,
                "area": mask_area(region), "bbox": mask_box(region), "segmentation": _segmentation(region),
            }  # fmt: skip
            self.file.write(f"{',' if self.num_annotations > 1 else ''}\n{json.dumps(annotation)}")

    def finish(self) -> None:
        categories = [{"id": label + 1, "name": name} for label, name in enumerate(self.class_names)]
        self.file.write(f'\n], "images": {json.dumps(self.images)}, "categories": {json.dumps(categories)}}}\n')


def _segmentation(region: ndarray) -> Any:
    num_edges = np.count_nonzero(region[1:] != region[:-1]) + np.count_nonzero(region[:, 1:] != region[:, :-1])
    return polygons_of(region) if num_edges <= MAX_CORNERS else encode_rle(region)
