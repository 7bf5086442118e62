"""Regions drawn over each other as one mask. The one with fewer pixels is on top, of two that are equally large the later one.

h high, w wide; a window is the part of an image in which a region lies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int16, Int32
from numpy import ndarray

from vitrail.data.mask_codes import decode_rle, mask_box, rasterise
from vitrail.errors import VitrailError


@dataclass(frozen=True, eq=False)
class FilledRegion:
    """The pixels of a region: a window of the image, and which of its pixels are inside."""

    value: int  # class of its pixels, or ``IGNORED``
    number: int  # of the object, from 1; 0 if it is none
    is_below: bool  # under all regions that are not, however small
    window: tuple[slice, slice]
    inside: Bool[ndarray, "window_h window_w"]
    area: int


def fill_region(region: Any, size: tuple[int, int], value: int, number: int, is_below: bool = False) -> FilledRegion | None:
    """Return the pixels of polygons, or of run lengths, in an image of this size; None if there are none."""
    if not region:
        return None
    if isinstance(region, dict):
        inside = decode_rle(region)
        if inside.shape != size:
            got, wanted = (f"{height} x {width}" for height, width in (inside.shape, size))
            raise VitrailError(f"its run lengths are of {got} pixels, and the image has {wanted}")
    elif isinstance(region, list):
        inside = rasterise([region] if isinstance(region[0], int | float) else region, size)
    else:
        raise VitrailError(f"a segmentation must be polygons or run lengths, got {str(region)[:60]!r}")
    left, top, width, height = mask_box(inside)
    if not width:
        return None
    window = slice(top, top + height), slice(left, left + width)
    inside = inside[window].copy()
    return FilledRegion(value, number, is_below, window, inside, int(np.count_nonzero(inside)))


def paint_classes(regions: Sequence[FilledRegion], size: tuple[int, int], background: int) -> Int16[ndarray, "h w"]:
    """Return the class of each pixel, where no region is that of the background."""
    mask = np.full(size, background, np.int16)
    for region in _from_below(regions):
        mask[region.window][region.inside] = region.value
    return mask


def paint_objects(regions: Sequence[FilledRegion], size: tuple[int, int]) -> Int32[ndarray, "h w"]:
    """Return the number of each pixel's object."""
    objects = np.zeros(size, np.int32)
    for region in _from_below(regions):
        objects[region.window][region.inside] = region.number
    return objects


def _from_below(regions: Sequence[FilledRegion]) -> list[FilledRegion]:
    return sorted(regions, key=lambda region: (not region.is_below, -region.area))  # stable: the later is above
