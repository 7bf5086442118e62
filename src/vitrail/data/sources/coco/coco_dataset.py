"""Images with regions from a COCO file: filled polygons and run lengths, as one mask of classes. h high, w wide, k regions.

Where no region is, the class is ``background``. Where regions overlap, the one with fewer pixels is on top, of two that are
equally large the later one in the file. Crowds, which do not tell objects apart, are ignored where no other region is, and so
are regions of a category that the file does not have.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int16, Int32
from numpy import ndarray

from vitrail.data.bad_image import BadImage
from vitrail.data.decode import stored_size
from vitrail.data.mask_codes import decode_rle, mask_box, rasterise
from vitrail.data.sources.coco.coco_index import CocoIndex
from vitrail.data.sources.dataset import IGNORED, ImageFileDataset
from vitrail.data.sources.masks.mask_file import as_its_image
from vitrail.errors import VitrailError


@dataclass(frozen=True, eq=False)
class FilledRegion:
    """The pixels of an annotation: a window of the image, and which pixels in it are inside."""

    number: int  # of the object, from 1; 0 for a crowd
    category: int  # index of the category, -1 if there is none
    is_crowd: bool
    window: tuple[slice, slice]
    inside: Bool[ndarray, "window_h window_w"]
    area: int


@dataclass(frozen=True, eq=False)
class CocoImages(ImageFileDataset):
    """Images that a COCO file describes. Subclasses draw their masks."""

    index: CocoIndex
    rows: ndarray  # of each image in the index
    classes: Int16[ndarray, " k"]  # class of each category; the last, ``IGNORED``, stands for none

    @property
    def mask_names(self) -> tuple[str, ...]:
        return self.class_names

    @property
    def has_mask_targets(self) -> bool:
        return True

    def upright(self, mask: ndarray, index: int) -> ndarray:
        """Return what was drawn on an image as it is stored as the upright image is."""
        try:
            return as_its_image(mask, self.read(index))
        except BadImage as error:
            raise BadImage(f"has a mask in {self.index.path} that {error}") from None

    def content_key(self) -> bytes:
        return super().content_key() + self.annotations_key()

    def cache_key(self) -> bytes:
        return super().cache_key() + self.annotations_key()

    def annotations_key(self) -> bytes:
        return self.index.digest.encode() + self.rows.astype("<i8").tobytes() + self.classes.astype("<i2").tobytes()


@dataclass(frozen=True, eq=False)
class CocoRegions(CocoImages):
    """Images with polygons and run lengths."""

    background: int = 0  # class of the pixels without a region

    def mask(self, index: int) -> Int16[ndarray, "h w"]:
        size, regions = self._read_regions(index)
        mask = np.full(size, self.background, np.int16)
        for region in regions:
            mask[region.window][region.inside] = IGNORED if region.is_crowd else self.classes[region.category]
        return self.upright(mask, index)

    def instances(self, index: int) -> Int32[ndarray, "h w"]:
        size, regions = self._read_regions(index)
        objects = np.zeros(size, np.int32)
        for region in regions:
            objects[region.window][region.inside] = region.number if region.category >= 0 else 0
        return self.upright(objects, index)

    def _read_regions(self, index: int) -> tuple[tuple[int, int], list[FilledRegion]]:
        """Return the size of the image as the file says, and its regions from the lowest to the one on top."""
        row = int(self.rows[index])
        annotations, categories = self.index.read(row), self.index.rows(row)[:, 0].tolist()
        height, width = self.index.sizes[row].tolist()
        if not height or not width:
            (height, width), _ = stored_size(self.read(index))
        regions = []
        for number, (annotation, category) in enumerate(zip(annotations, categories, strict=True), start=1):
            try:
                region = fill_region(annotation.get("segmentation"), (height, width))
            except VitrailError as error:
                where = f"{self.index.path}, annotation id {annotation.get('id')} of {self.paths[index]}"
                raise BadImage(f"cannot be used: {where}: {error}") from None
            if region is not None:
                is_crowd = bool(annotation.get("iscrowd"))
                regions.append(FilledRegion(0 if is_crowd else number, category, is_crowd, *region))
        return (height, width), sorted(regions, key=lambda region: (not region.is_crowd, -region.area, region.number))


def fill_region(
    region: Any, size: tuple[int, int]
) -> tuple[tuple[slice, slice], Bool[ndarray, "window_h window_w"], int] | None:
    """Return the window of a region, which of its pixels are inside, and their number; None if there are none."""
    if not region:
        return None
    if isinstance(region, dict):
        inside = decode_rle(region)
        if inside.shape != size:
            raise VitrailError(f"its run lengths are of {inside.shape[0]} x {inside.shape[1]} pixels, and the image has "
                               f"{size[0]} x {size[1]}")  # fmt: skip
    elif isinstance(region, list):
        inside = rasterise([region] if isinstance(region[0], int | float) else region, size)
    else:
        raise VitrailError(f"a segmentation must be polygons or run lengths, got {str(region)[:60]!r}")
    left, top, width, height = mask_box(inside)
    if not width:
        return None
    window = slice(top, top + height), slice(left, left + width)
    inside = inside[window].copy()
    return window, inside, int(np.count_nonzero(inside))
