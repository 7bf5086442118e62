"""Folders of predicted boxes: images with the boxes drawn on them, or label files of YOLO.

NAME.jpg      the image with its boxes, in the colours of their classes
NAME.txt      a line per box: class, centre, width and height as fractions of the image; empty if nothing was found
classes.txt   with label files, the name of each class in its line
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vitrail.data.band_view import to_view
from vitrail.data.box_formats import WrittenImage, check_class_names, yolo_lines
from vitrail.data.sources.image_like import read_image_like
from vitrail.data.sources.objects import build_objects
from vitrail.io import atomic_path, atomic_write
from vitrail.plot.box_image import draw_boxes
from vitrail.report.prediction_folder import PredictionFolder

QUALITY = 90


@dataclass(frozen=True)
class DrawnBoxFolder(PredictionFolder):
    """The images of some files with their boxes."""

    noun: ClassVar[str] = "boxes"

    def paths(self, index: int) -> list[Path]:
        return [self.folder / f"{self.names[index]}.jpg"]

    def write(self, index: int, prediction: Any) -> None:
        (path,) = self.paths(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        found, labels = prediction.boxes, [self.class_names.index(box.label) for box in prediction.boxes]
        boxes, scores = np.array([box.box for box in found], np.float64), np.array([box.score for box in found], np.float64)
        image = to_view(read_image_like(self.files[index]))
        drawn = draw_boxes(image, boxes.reshape(-1, 4), np.array(labels, np.int64), self.class_names, scores=scores)
        with atomic_path(path, locked=True) as temporary:
            drawn.save(temporary, "JPEG", quality=QUALITY)


@dataclass(frozen=True)
class YoloLabelFolder(PredictionFolder):
    """The label files of some files; they have no scores."""

    noun: ClassVar[str] = "labels"

    def paths(self, index: int) -> list[Path]:
        return [self.folder / f"{self.names[index]}.txt"]

    def class_files(self) -> dict[str, str]:
        check_class_names(self.class_names)
        return {"classes.txt": "".join(f"{name}\n" for name in self.class_names)}

    def write(self, index: int, prediction: Any) -> None:
        (path,) = self.paths(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        labels = [self.class_names.index(box.label) for box in prediction.boxes]
        objects = build_objects([box.box for box in prediction.boxes], labels)
        atomic_write(path, "".join(yolo_lines(WrittenImage(path.name, prediction.size, objects))), locked=True)
