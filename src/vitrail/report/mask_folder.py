"""A folder of predicted masks: an index PNG per image, at its own size, and a legend, so that it can be read as a dataset.

NAME.png           value = class index, with the colours of the classes as palette; 16 bits for more than 256 classes
NAME.overlay.jpg   the mask drawn over its image, if it is asked for
classes.json       value, name and colour of each class
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from vitrail.data.band_view import to_view
from vitrail.data.sources.image_like import read_image_like
from vitrail.io import atomic_path, atomic_write
from vitrail.plot.class_colours import overlay
from vitrail.plot.mask_image import encode_mask, mask_legend
from vitrail.report.prediction_folder import PredictionFolder

LEGEND_FILE = "classes.json"
OVERLAY_SUFFIX, OVERLAY_QUALITY = ".overlay.jpg", 90


@dataclass(frozen=True)
class MaskFolder(PredictionFolder):
    """The masks of some files."""

    overlays: bool = False

    noun: ClassVar[str] = "masks"

    def paths(self, index: int) -> list[Path]:
        overlays = [self.folder / f"{self.names[index]}{OVERLAY_SUFFIX}"] if self.overlays else []
        return [*overlays, self.folder / f"{self.names[index]}.png"]

    def class_files(self) -> dict[str, str]:
        return {LEGEND_FILE: json.dumps(mask_legend(self.class_names), indent=1) + "\n"}

    def write(self, index: int, prediction: Any) -> None:
        """Write the mask of a file, and its overlay; first that, since a file with its mask is complete."""
        *overlays, path = self.paths(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        for overlay_path in overlays:
            image = to_view(read_image_like(self.files[index]))
            blended = overlay(np.asarray(image.convert("RGB")), prediction.mask)
            with atomic_path(overlay_path, locked=True) as temporary:
                Image.fromarray(blended).save(temporary, "JPEG", quality=OVERLAY_QUALITY)
        atomic_write(path, encode_mask(prediction.mask, len(self.class_names)), locked=True)
