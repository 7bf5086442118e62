"""Boxes as files of annotations have them, as the boxes of a dataset. n images, m boxes of all of them.

Boxes that cannot be used are left out by the rule of ``box_faults.py``. They are of the image as it is shown upright, in pixels
or as fractions of it; if the file has the size of the image as it is stored sideways, they are turned with the image.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from vitrail.data.bad_image import BadImage
from vitrail.data.decode import SIDEWAYS_ORIENTATIONS, ImageSize, stored_size
from vitrail.data.image_index import index_images
from vitrail.data.sources.box_faults import (
    FRACTION_TOLERANCE,
    KINDS,
    LEFT_OUT_CODES,
    TOLERANCE,
    BoxFault,
    describe_faults,
    find_faults,
)
from vitrail.data.sources.concat_dataset import ConcatDataset
from vitrail.data.sources.dataset import Dataset, Progress
from vitrail.data.sources.objects import Objects, box_areas
from vitrail.data.sources.stored_boxes import BoxTable, StoredBoxes
from vitrail.errors import VitrailError

SPLITS = ("train", "validation", "test", "")
MAX_NAMED = 6  # classes that a note names
FRACTIONS = (-1.0, 2.0)  # all coordinates within these limits, and not all of them whole, are fractions of the image


@dataclass(frozen=True, eq=False)
class Annotations:
    """The boxes of all images of a source, in any order."""

    images: Int[ndarray, " m"]  # index of the image of each box
    boxes: Float[ndarray, "m 4"]  # left, top, right, bottom
    labels: Int[ndarray, " m"]
    sizes: Int[ndarray, "n 2"] | None  # height and width of the image in the source, 0 if not known; None: fractions of it
    crowd: Bool[ndarray, " m"] | None = None
    areas: Float[ndarray, " m"] | None = None  # NaN: that of the box
    numbers: Int[ndarray, " m"] | None = None  # of each object in its source; None: from 1 in each image
    errors: Mapping[int, str] = field(default_factory=dict)  # why the annotations of an image cannot be used


@dataclass(frozen=True, eq=False, kw_only=True)
class AnnotatedBoxes(StoredBoxes):
    """A dataset, with the boxes that a source of annotations has."""

    store: BoxTable
    sizes_in_source: Int[ndarray, "n 2"] | None
    faults: Sequence[BoxFault]
    errors: Mapping[int, str]
    name_object: Callable[[int, int], str]
    stored_sizes: Int[ndarray, "n 3"]  # height, width and EXIF orientation of each image; -1 until they are read

    def objects(self, index: int) -> Objects:
        if (error := self.errors.get(index)) is not None:
            raise BadImage(error)
        objects, of_source = super().objects(index), self.sizes_in_source
        if not len(objects) or (of_source is not None and not of_source[index].all()):
            return objects
        (height, width), orientation = self._stored_size(index)
        is_sideways = orientation in SIDEWAYS_ORIENTATIONS
        upright = (width, height) if is_sideways else (height, width)
        if of_source is None:
            return objects.scaled(float(upright[1]), float(upright[0]))
        drawn_on = tuple(of_source[index].tolist())
        if drawn_on == upright:
            return objects
        if is_sideways and drawn_on == (height, width):
            return objects.turned(orientation, drawn_on)
        raise BadImage(f"is {upright[1]} x {upright[0]} pixels, and its annotations are of {drawn_on[1]} x {drawn_on[0]}")

    def box_faults(self) -> Sequence[BoxFault]:
        return self.faults

    def describe_object(self, index: int, number: int) -> str:
        return self.name_object(index, number)

    def content_key(self) -> bytes:
        return super().content_key() + self._sizes_key()

    def cache_key(self) -> bytes | None:
        key = super().cache_key()
        return None if key is None else key + self._sizes_key()

    def _sizes_key(self) -> bytes:
        sizes = self.sizes_in_source
        return (b"fractions" if sizes is None else sizes.astype("<i8").tobytes()) + repr(sorted(self.errors.items())).encode()

    def _stored_size(self, index: int) -> tuple[ImageSize, int]:
        """Return height, width and orientation of an image, whose file is looked at once."""
        height, width, orientation = self.stored_sizes[index].tolist()
        if height < 0:
            content = self.read(index)
            (height, width), orientation = (content.shape[:2], 1) if isinstance(content, ndarray) else stored_size(content)
            self.stored_sizes[index] = height, width, orientation
        return (height, width), orientation


def with_annotations(
    dataset: Dataset,
    annotations: Annotations,
    names: Sequence[str],
    name_object: Callable[[int, int], str],
    progress: Progress | None = None,
) -> AnnotatedBoxes:
    """Return a dataset whose targets are its boxes; those that cannot be used are left out and listed.

    ``name_object`` describes an object by the index of its image and its number in the source.
    """
    order = np.argsort(annotations.images, kind="stable")
    images, boxes, labels = annotations.images[order], annotations.boxes[order], annotations.labels[order]
    starts = np.searchsorted(images, np.arange(len(dataset) + 1))
    numbers = np.arange(len(images)) - starts[images] + 1 if annotations.numbers is None else annotations.numbers[order]
    sizes = annotations.sizes
    if sizes is None:
        codes = find_faults(boxes, np.ones((len(boxes), 2), np.int64), FRACTION_TOLERANCE)
    else:
        codes = find_faults(boxes, known_sizes(dataset, sizes, images, progress)[images], TOLERANCE)
    faulty = np.flatnonzero(codes)
    faults = [
        BoxFault(image, number, KINDS[code], (box[0], box[1], box[2], box[3]))
        for image, number, code, box in zip(
            images[faulty].tolist(), numbers[faulty].tolist(), codes[faulty].tolist(), boxes[faulty].tolist(), strict=True
        )
    ]
    kept = ~np.isin(codes, LEFT_OUT_CODES)
    crowd = np.zeros(len(images), bool) if annotations.crowd is None else annotations.crowd[order]
    areas = box_areas(boxes)
    if annotations.areas is not None:
        areas = np.where(np.isfinite(annotations.areas[order]), annotations.areas[order], areas)
    table = BoxTable(
        np.searchsorted(images[kept], np.arange(len(dataset) + 1)), boxes[kept], labels[kept], crowd[kept], areas[kept]
    )
    return AnnotatedBoxes(
        dataset,
        np.arange(len(dataset)),
        np.full(len(dataset), -1, np.int64),
        tuple(names),
        store=table,
        names=tuple(names),
        are_targets=True,
        sizes_in_source=sizes,
        faults=faults,
        errors=annotations.errors,
        name_object=name_object,
        stored_sizes=np.full((len(dataset), 3), -1, np.int64),
    )


def known_sizes(dataset: Dataset, sizes: ndarray, images: ndarray, progress: Progress | None) -> Int[ndarray, "n 2"]:
    """Return the sizes that the source has, or if images with boxes lack theirs, those of the images themselves."""
    if sizes[images].all():
        return sizes
    return np.where(sizes.all(axis=1, keepdims=True), sizes, index_images(dataset, progress).sizes)


def are_fractions(boxes: Float[ndarray, "m 4"]) -> bool:
    """Whether boxes look like fractions of their images, where a source does not say."""
    known = boxes[np.isfinite(boxes)]
    lowest, highest = FRACTIONS
    return bool(len(known) and (known >= lowest).all() and (known <= highest).all() and (known % 1).any())


def box_notes(source: object, splits: Mapping[str, AnnotatedBoxes]) -> Iterator[str]:
    """Yield notes of what was found: classes and boxes, images without objects, and boxes that are left out; raise if there is
    nothing."""
    splits = {split: splits[split] for split in SPLITS if split in splits}
    parts = list(splits.values())
    names, every = parts[0].names, ConcatDataset(parts)
    counts = np.bincount(np.concatenate([part.store.labels for part in parts]), minlength=len(names))
    if (errors := [error for part in parts for error in part.errors.values()]) and not counts.any():
        raise VitrailError(f"none of the annotations of {source} can be used; the first image {errors[0]}")
    of_splits = ", ".join(
        f"{len(part.store.labels):,} in {_count(len(part), 'image')}{f' of {split}' if split else ''}"
        for split, part in splits.items()
    )
    yield f"{int(counts.sum()):,} boxes of {_count(len(names), 'class')} ({_some(names)}): {of_splits}"
    if len(absent := [name for name, count in zip(names, counts.tolist(), strict=True) if not count]):
        yield f"{_count(len(absent), 'class')} without a box: {_some(absent)}"
    without = [
        (part, index) for part in parts for index in np.flatnonzero(part.store.counts == 0).tolist() if index not in part.errors
    ]
    if without:
        part, index = without[0]
        yield f"{_count(len(without), 'image')} without objects, first {part.describe(index)}"
    yield from describe_faults(every.box_faults(), every.describe_object)
    if errors:
        bad = next(part.describe(index) for part in parts for index in part.errors)
        yield f"{_count(len(errors), 'image')} whose annotations cannot be used, first {bad}, which {errors[0]}"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun if count == 1 else noun + 'es' if noun.endswith('s') else noun + 's'}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
