"""Panoptic COCO: a PNG per image, whose colours are the numbers of segments, and a JSON file that says their categories.

The number is R + 256 G + 65536 B. Pixels of 0 belong to no segment and are ignored, and so are crowds. Objects are the segments
of things; stuff is not counted. h high, w wide.
"""

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int16, Int32
from numpy import ndarray
from PIL import Image

from vitrail.data.bad_image import BadImage
from vitrail.data.decode import MAX_IMAGE_PIXELS
from vitrail.data.sources.coco.coco_dataset import CocoImages
from vitrail.data.sources.dataset import IGNORED, read_image_file
from vitrail.errors import VitrailError, first_line


@dataclass(frozen=True, eq=False)
class PanopticDataset(CocoImages):
    """Images with panoptic segments."""

    segments_folder: Path
    ids: dict[Any, int]  # index of each category

    def mask(self, index: int) -> Int16[ndarray, "h w"]:
        segments, numbers, inverse = self._read(index)
        classes = np.full(len(numbers), IGNORED, np.int16)
        for place, number in enumerate(numbers.tolist()):
            if number and not segments[number].get("iscrowd"):
                classes[place] = self.classes[self.ids.get(segments[number]["category_id"], -1)]
        return self.upright(classes[inverse], index)

    def instances(self, index: int) -> Int32[ndarray, "h w"]:
        segments, numbers, inverse = self._read(index)
        objects, count = np.zeros(len(numbers), np.int32), 0
        for place, number in enumerate(numbers.tolist()):
            category = -1 if not number else self.ids.get(segments[number]["category_id"], -1)
            if category >= 0 and self.index.categories[category].is_thing and not segments[number].get("iscrowd"):
                count += 1
                objects[place] = count
        return self.upright(objects[inverse], index)

    def cache_key(self) -> bytes:
        with os.scandir(self.segments_folder) as entries:
            segments = sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in entries)
        return super().cache_key() + repr(segments).encode()

    def _read(self, index: int) -> tuple[dict[int, dict[str, Any]], ndarray, ndarray]:
        """Return the segments by number, the numbers that occur, and the place of each pixel's number among them."""
        annotation = self.index.read(int(self.rows[index]))[0]
        path = self.segments_folder / str(annotation["file_name"])
        try:
            segments = {int(segment["id"]): segment for segment in annotation["segments_info"] if "category_id" in segment}
        except (TypeError, ValueError, KeyError):
            raise BadImage(f"has segments in {self.index.path} without a valid id; write them as COCO does") from None
        of_pixels = _segment_numbers(path)
        numbers, inverse = np.unique(of_pixels, return_inverse=True)
        if unknown := [number for number in numbers.tolist() if number and number not in segments]:
            raise BadImage(f"has the segment {unknown[0]} in {path}, which {self.index.path} does not have; write both again")
        return segments, numbers, inverse.reshape(of_pixels.shape)


def _segment_numbers(path: Path) -> Int32[ndarray, "h w"]:
    try:
        with Image.open(io.BytesIO(read_image_file(path)), formats=["PNG"]) as image:
            if image.width * image.height > MAX_IMAGE_PIXELS:
                raise BadImage(f"has segments in {path} of more than the {MAX_IMAGE_PIXELS:,} pixels allowed")
            if image.mode not in ("RGB", "RGBA"):
                raise BadImage(
                    f"has segments in {path} of the kind {image.mode}, and their numbers are colours; save it as RGB"
                )
            red, green, blue = np.moveaxis(np.asarray(image)[..., :3].astype(np.int32), 2, 0)
    except VitrailError:
        raise
    except OSError as error:
        raise BadImage(f"has segments in {path} that cannot be read: {error.strerror or first_line(error)}") from None
    except Exception as error:  # a damaged file can fail its decoder in any way
        raise BadImage(f"has segments in {path} that cannot be decoded: {first_line(error)}") from None
    return red + 256 * green + 65536 * blue
