"""Summary of the boxes of a dataset: how many of each class and size each split has, and boxes that look wrong. n images, k
boxes of one image, m of all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from vitrail.data.box_index import BoxIndex
from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.objects import Objects

SIZE_LIMITS = {"small": 32**2, "medium": 96**2, "large": np.inf}  # areas in pixels up to which COCO calls an object so
INPUT_SIDE, PATCH = 224, 16  # pixels of the input of most pretrained models, and of their patches
MIN_SIDE = PATCH / 4  # pixels of the input: a box with a shorter side is tiny against the patch
SAME_IOU = 0.95  # above which two boxes of a class are one object that is labelled twice
MAX_COMPARED = 2000  # boxes of an image that are compared with each other
MAX_PAIRS = 2**21  # pairs of boxes that are compared at a time
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class BoxFinding:
    """A box that looks wrong, and why."""

    location: str  # of the image, or of the object in its file
    label: str
    box: Box  # left, top, right, bottom
    reason: str
    split: str


@dataclass(frozen=True)
class TinyBoxes:
    """Boxes of a class whose shorter side is under a quarter of a patch, once their image has the size of the input."""

    count: int
    fraction: float  # of the boxes of the class
    smallest: float  # pixels of the input
    largest: float
    first: str  # where one of them is


@dataclass(frozen=True)
class BoxesPerImage:
    mean: float
    median: float
    most: int
    empty: int  # images without any box


@dataclass(frozen=True)
class BoxSummary:
    """Summary of the boxes of the usable images. A crowd counts as no box."""

    boxes: dict[str, dict[str, int]]  # class: split: boxes
    images: dict[str, dict[str, int]]  # class: split: images in which it occurs
    sizes: dict[str, dict[str, int]]  # class: small, medium or large: boxes
    per_image: dict[str, BoxesPerImage]  # split
    crowds: dict[str, int]  # split: crowds
    tiny: dict[str, TinyBoxes]  # class
    absent: dict[str, tuple[str, ...]]  # classes without a box in a split that has images
    repeated: tuple[BoxFinding, ...]  # the same object twice
    faults: tuple[BoxFinding, ...]  # left out, since they cannot be used
    overhanging: tuple[BoxFinding, ...]  # partly outside of their image

    @property
    def ok(self) -> bool:
        return not (self.repeated or self.faults)


def summarise_boxes(
    names: tuple[str, ...],
    splits: Mapping[str, Dataset],
    indexes: Mapping[str, BoxIndex],
    sizes: Mapping[str, Int[ndarray, "n 2"]],
) -> BoxSummary:
    """Summarise the boxes of the splits, whose classes have these names. ``sizes``: height and width of each image."""
    boxes = {split: _boxes_per_class(index, len(names)) for split, index in indexes.items()}
    images = {split: _images_per_class(index, len(names)) for split, index in indexes.items()}
    by_size = sum((_boxes_per_size(index, len(names)) for index in indexes.values()), np.zeros((len(names), 3), np.int64))
    absent = {
        split: tuple(name for name, count in zip(names, boxes[split].tolist(), strict=True) if not count)
        for split in indexes
        if len(splits[split])
    }
    found = [fault for split, dataset in splits.items() for fault in _faults(dataset, split)]
    return BoxSummary(
        {name: {split: int(boxes[split][label]) for split in indexes} for label, name in enumerate(names)},
        {name: {split: int(images[split][label]) for split in indexes} for label, name in enumerate(names)},
        {name: dict(zip(SIZE_LIMITS, by_size[label].tolist(), strict=True)) for label, name in enumerate(names)},
        {split: _per_image(index) for split, index in indexes.items() if len(index.counts)},
        {split: int(index.objects.crowd.sum()) for split, index in indexes.items()},
        dict(_tiny(names, splits, indexes, sizes)),
        {split: missing for split, missing in absent.items() if missing},
        tuple(finding for split, index in indexes.items() for finding in _repeated(names, splits[split], index, split)),
        tuple(finding for finding, is_left_out in found if is_left_out),
        tuple(finding for finding, is_left_out in found if not is_left_out),
    )


def _boxes_per_class(index: BoxIndex, num_classes: int) -> Int[ndarray, " c"]:
    return np.bincount(index.objects.labels[~index.objects.crowd], minlength=num_classes)


def _images_per_class(index: BoxIndex, num_classes: int) -> Int[ndarray, " c"]:
    kept = ~index.objects.crowd
    pairs = np.unique(index.images[kept] * num_classes + index.objects.labels[kept])
    return np.bincount(pairs % max(num_classes, 1), minlength=num_classes)


def _boxes_per_size(index: BoxIndex, num_classes: int) -> Int[ndarray, "c 3"]:
    kept = index.objects[~index.objects.crowd]
    sizes = np.searchsorted(list(SIZE_LIMITS.values()), kept.areas)
    cells = kept.labels * len(SIZE_LIMITS) + sizes
    return np.bincount(cells, minlength=num_classes * len(SIZE_LIMITS)).reshape(num_classes, len(SIZE_LIMITS))


def _per_image(index: BoxIndex) -> BoxesPerImage:
    counts = np.bincount(index.images[~index.objects.crowd], minlength=len(index.counts))
    return BoxesPerImage(float(counts.mean()), float(np.median(counts)), int(counts.max()), int((counts == 0).sum()))


def _tiny(
    names: tuple[str, ...],
    splits: Mapping[str, Dataset],
    indexes: Mapping[str, BoxIndex],
    sizes: Mapping[str, Int[ndarray, "n 2"]],
) -> Iterator[tuple[str, TinyBoxes]]:
    """Yield what is tiny of each class, in images that are resized to the input as a whole."""
    sides = {split: _input_sides(index, sizes[split]) for split, index in indexes.items()}
    for label, name in enumerate(names):
        of_class = {
            split: sides[split][(index.objects.labels == label) & ~index.objects.crowd] for split, index in indexes.items()
        }
        every = np.concatenate(list(of_class.values()))
        tiny = every[every < MIN_SIDE]
        if not len(tiny):
            continue
        split = next(split for split, of_split in of_class.items() if (of_split < MIN_SIDE).any())
        is_tiny = (indexes[split].objects.labels == label) & ~indexes[split].objects.crowd & (sides[split] < MIN_SIDE)
        first = splits[split].describe(int(indexes[split].images[np.flatnonzero(is_tiny)[0]]))
        yield name, TinyBoxes(len(tiny), len(tiny) / len(every), float(tiny.min()), float(tiny.max()), first)


def _input_sides(index: BoxIndex, sizes: Int[ndarray, "n 2"]) -> Float[ndarray, " m"]:
    """Return the shorter side of each box in pixels of the input."""
    boxes, (height, width) = index.objects.boxes, np.maximum(sizes[index.images], 1).T
    return np.minimum((boxes[:, 2] - boxes[:, 0]) / width, (boxes[:, 3] - boxes[:, 1]) / height) * INPUT_SIDE


def _repeated(names: tuple[str, ...], dataset: Dataset, index: BoxIndex, split: str) -> Iterator[BoxFinding]:
    """Yield boxes that are nearly equal to an earlier one of their class in the image."""
    objects = index.objects
    for place in sorted(place for of_count in _places_by_count(index) for place in _repeating_earlier(objects, of_count)):
        name, box = names[objects.labels[place]], _as_box(objects.boxes[place])
        reason = "has {} twice, from {:g}, {:g} to {:g}, {:g}".format(name, *box)
        yield BoxFinding(dataset.describe(int(index.images[place])), name, box, reason, split)


def _places_by_count(index: BoxIndex) -> Iterator[Int[ndarray, "n k"]]:
    """Yield the objects of images that have equally many, some images at a time."""
    for count in np.unique(index.counts[index.counts > 1]).tolist():
        compared = min(count, MAX_COMPARED)
        starts = index.starts[np.flatnonzero(index.counts == count)]
        for chunk in np.array_split(starts, -(-len(starts) * compared**2 // MAX_PAIRS)):
            yield chunk[:, None] + np.arange(compared)


def _repeating_earlier(objects: Objects, places: Int[ndarray, "n k"]) -> list[int]:
    boxes, labels, crowd = objects.boxes[places], objects.labels[places], objects.crowd[places]
    low = np.maximum(boxes[:, :, None, :2], boxes[:, None, :, :2])
    high = np.minimum(boxes[:, :, None, 2:], boxes[:, None, :, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=3)
    areas = np.prod(boxes[..., 2:] - boxes[..., :2], axis=2)
    overlap = shared > SAME_IOU * (areas[:, :, None] + areas[:, None] - shared)
    same = overlap & (labels[:, :, None] == labels[:, None]) & ~crowd[:, :, None] & ~crowd[:, None]
    found: list[int] = places[np.tril(same, -1).any(axis=2)].tolist()
    return found


def _faults(dataset: Dataset, split: str) -> Iterator[tuple[BoxFinding, bool]]:
    """Yield the boxes with faults, and whether they are left out."""
    for fault in dataset.box_faults():
        location = dataset.describe_object(fault.image, fault.number)
        yield BoxFinding(location, "", fault.box, fault.reason, split), fault.is_left_out


def _as_box(box: Float[ndarray, " 4"]) -> Box:
    left, top, right, bottom = box.tolist()
    return left, top, right, bottom
