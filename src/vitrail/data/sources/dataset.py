"""Datasets: labelled images by index, wherever they are stored. n images, h high, w wide, c channels.

Folders, tables, shards, packs, synthetic images and a user's own objects each subclass ``Dataset`` and answer for themselves:
nobody asks for their type. ``Subset`` and ``ConcatDataset`` forward every question.
"""

import errno
import hashlib
import operator
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
from jaxtyping import Bool, Float, Int, Int16, Int32, Num, UInt8
from numpy import ndarray

from vitrail.data.decode import band_format, decode_bands, to_pil
from vitrail.data.sources.box_faults import BoxFault
from vitrail.data.sources.columns import ANY_COLUMNS, NONE_IGNORED, Columns
from vitrail.data.sources.content_keys import array_key, file_key, sampled_array_key
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.fold import Fold
from vitrail.data.sources.label_sets import LabelSets
from vitrail.data.sources.objects import Objects
from vitrail.data.sources.packed_strings import join_strings
from vitrail.errors import VitrailError, did_you_mean

Progress = Callable[[str, int, int | None], None]  # activity, amount done, total if known

MAX_BAD_FRACTION = 0.05  # fraction of the images that may be unusable
MAX_FILE_BYTES = 2**28  # bytes: a file larger than 256 MiB is not taken for an image
NOT_PLAIN = re.compile(rb"(?:^|[/\0])\.(?:[/\0]|$)|//|/(?:\0|$)")  # in paths joined by zeros: what Path would normalise
IGNORED = -1  # in a mask: a pixel that counts for no class, neither in training nor in metrics
NUM_SAMPLED = 16  # images that identify a dataset which has no better key


class Dataset(ABC):
    """Images by index. Reading one is a pure function of its index, and thread-safe.

    A subclass has ``class_names``, ``labels`` and ``read``; it overrides other methods if it has an answer.
    """

    if TYPE_CHECKING:  # fields or properties of a subclass; a property here would be the default of a dataclass's field

        @property
        def class_names(self) -> tuple[str, ...]:
            """Class names by label; empty if nothing is labelled."""

        @property
        def labels(self) -> ndarray:
            """int64, one per image; -1 if it has none."""

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def read(self, index: int) -> bytes | ndarray:
        """Return the encoded file, or the pixels (h w c): uint8, or bands of any type; raises VitrailError or OSError."""

    @overload
    def __getitem__(self, index: slice) -> "Subset": ...

    @overload
    def __getitem__(self, index: SupportsIndex) -> tuple[Any, Any]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> "tuple[Any, Any] | Subset":
        """Return image and target as torchvision's datasets do, the image as a PIL image in RGB, whatever is stored, or as an
        array (h w c) if it has other bands; of a slice, a ``Subset``."""
        if isinstance(index, slice):
            return Subset(self, np.arange(len(self))[index])
        position = range(len(self))[operator.index(index)]
        content = self.read(position)
        image = to_pil(content).convert("RGB") if band_format(content) is None else decode_bands(content)
        return image, self.target(position)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return (self[index] for index in range(len(self)))

    @property
    def name(self) -> str:
        """A name of the whole for messages; by default its type's."""
        return type(self).__name__

    def describe(self, index: int) -> str:
        """Return a description of an image for messages, such as its path."""
        return f"image {index}"

    def title(self, index: int) -> str:
        """Return a short description without folders, to be shown where paths are private."""
        if (path := self.path(index)) is not None:
            return path.name
        description = self.describe(index)
        match = re.match(r"(?:image|row) \d+ of ", description)  # the rest may be a path
        return description if match is None else f"{match[0]}{PurePath(description[match.end() :]).name}"

    def path(self, index: int) -> Path | None:
        """Return the path of an image that is a file of its own, else None."""
        return None

    def files(self) -> tuple[Path, Sequence[str]] | None:
        """Return a folder and the paths below it if every image is a file of its own, else None."""
        return None

    def target(self, index: int) -> Any:
        """Return what is to be predicted for an image: by default its label."""
        return int(self.labels[index])

    @property
    def targets(self) -> Sequence[Any] | ndarray | LabelSets:
        """Targets, one per image: the labels, or label sets, numbers or other values, and then every label is -1."""
        return self.labels

    @property
    def label_sets(self) -> LabelSets | None:
        """The labels of each image if it may have several, or none of them; None if every image has one label."""
        return None

    @property
    def has_label(self) -> Bool[ndarray, " n"]:
        """Whether each image has a class label; if images may have several, it is known of all, also of those without any."""
        return self.labels >= 0 if self.label_sets is None else np.ones(len(self), bool)

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the numbers to predict, if the targets are numbers."""
        return ()

    def numbers(self, name: str) -> ndarray | None:
        """Return numbers by name, one per image, that can be predicted; None if there are none of that name."""
        return None

    @property
    def number_names(self) -> tuple[str, ...]:
        """Names of the numbers that ``numbers`` returns."""
        return ()

    def sizes(self, indices: Int[ndarray, " n"]) -> Int[ndarray, "n 2"] | None:
        """Return heights and widths if they are known without reading the images, else None."""
        return None

    @property
    def array_shape(self) -> tuple[int, int, int] | None:
        """h w c if the images are pixels of one size in memory, so that ``stack`` reads a batch at a time; else None."""
        return None

    def stack(self, indices: Int[ndarray, " n"]) -> Num[ndarray, "n h w c"]:
        """Return the pixels of a batch; only for a dataset with an ``array_shape``."""
        raise VitrailError(f"{type(self).__name__} has no array of images; read them one by one")

    def groups(self) -> Int[ndarray, " n"] | None:
        """Return the index of the shard or row group of each image; None if any order is equally fast."""
        return None

    def object_mask(self, index: int) -> UInt8[ndarray, "h w"] | None:
        """Return a mask that is 1 where the labelled object is visible, or None if that is not known."""
        return None

    @property
    def mask_names(self) -> tuple[str, ...]:
        """Names of the classes of pixels, by their number in a mask; empty if the images have no masks."""
        return ()

    @property
    def has_exact_masks(self) -> bool:
        """Whether masks are made together with their images, so that none can be missing or wrong, and need not be checked."""
        return False

    @property
    def has_mask_targets(self) -> bool:
        """Whether the masks are to be predicted; then ``class_names`` are the ``mask_names``, and no image has a label."""
        return False

    def mask(self, index: int) -> Int16[ndarray, "h w"]:
        """Return the class of each pixel of the upright image, or ``IGNORED``; raises VitrailError or OSError."""
        raise VitrailError(f"{self.name} has no masks; name a dataset with one mask per image")

    def instances(self, index: int) -> Int32[ndarray, "h w"] | None:
        """Return the object of each pixel, from 1, and 0 where there is none; None if a mask does not tell objects apart."""
        return None

    @property
    def box_names(self) -> tuple[str, ...]:
        """Names of the classes of boxes, by their label; empty if the images have no boxes."""
        return ()

    @property
    def has_exact_boxes(self) -> bool:
        """Whether boxes are made together with their images, so that none can be missing or wrong, and need not be checked."""
        return False

    @property
    def has_box_targets(self) -> bool:
        """Whether the boxes are to be predicted; then ``class_names`` are the ``box_names``, and no image has a label."""
        return False

    def objects(self, index: int) -> Objects:
        """Return the boxes of the upright image with their classes, of which there may be none; raises VitrailError or
        OSError."""
        raise VitrailError(f"{self.name} has no boxes; name a dataset with boxes")

    def box_faults(self) -> Sequence[BoxFault]:
        """Return the boxes that ``objects`` leaves out because they cannot be used, and those that reach out of their image."""
        return ()

    def describe_object(self, index: int, number: int) -> str:
        """Return a description of an object for messages, such as its file and its place there."""
        return f"{self.describe(index)}, object {number}"

    @property
    def is_deterministic(self) -> bool:
        """Whether an image is the same each time it is read, which only a user's own object may not be."""
        return True

    def content_key(self) -> bytes:
        """Return bytes that identify the images in a fingerprint: by default a hash of a few, evenly spaced."""
        digest = hashlib.sha256()
        for index in evenly_spaced(len(self), NUM_SAMPLED).tolist():
            try:
                content = self.read(index)
            except (OSError, VitrailError):  # the dataset check reports it
                continue
            digest.update(content if isinstance(content, bytes) else repr(content.shape).encode() + content.tobytes())
        return digest.digest()

    def cache_key(self) -> bytes | None:
        """Return bytes that change with any image, under which results can be cached; None: nothing is cached."""
        return None

    def flatten(self) -> tuple[Sequence["Dataset"], ndarray]:
        """Return the datasets that store the images, and the index of each image in their concatenation."""
        return (self,), np.arange(len(self))


@dataclass(frozen=True, eq=False)
class ImageFileDataset(Dataset):
    """Image files below a folder."""

    root: Path
    paths: Sequence[str]  # relative to the root
    labels: ndarray
    class_names: tuple[str, ...]

    def describe(self, index: int) -> str:
        return str(self.root / self.paths[index])

    def read(self, index: int) -> bytes:
        return read_image_file(self.root / self.paths[index])

    def path(self, index: int) -> Path:
        return self.root / self.paths[index]

    def files(self) -> tuple[Path, Sequence[str]]:
        return self.root, self.paths

    def content_key(self) -> bytes:
        joined = join_strings(self.paths)
        if os.sep == "/" and not NOT_PLAIN.search(joined):  # a million Path objects take ten seconds
            return joined
        return join_strings([str(Path(path)) for path in self.paths])

    def cache_key(self) -> bytes:
        folder = self.root.absolute()
        return b"".join(file_key(folder / path) for path in self.paths)


def read_image_file(path: Path) -> bytes:
    """Read a regular file of plausible size; never block on a pipe."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    with open(handle, "rb", buffering=0) as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise OSError(errno.EINVAL, "not a regular file of plausible size")
        return file.readall()


@dataclass(frozen=True, eq=False)
class ArrayDataset(Dataset):
    """Images of one size in an array, in memory or memory-mapped; read a batch at a time."""

    images: ndarray  # n h w c: uint8, or bands of any type
    labels: ndarray
    class_names: tuple[str, ...]
    origin: str = "array"

    def describe(self, index: int) -> str:
        return f"image {index} of {self.origin}"

    def read(self, index: int) -> ndarray:
        return self.images[index]

    def sizes(self, indices: ndarray) -> ndarray:
        return np.broadcast_to(np.array(self.images.shape[1:3]), (len(indices), 2))

    @property
    def array_shape(self) -> tuple[int, int, int]:
        _, height, width, channels = self.images.shape
        return height, width, channels

    def stack(self, indices: ndarray) -> ndarray:
        return self.images[indices]

    def content_key(self) -> bytes:
        return sampled_array_key(self.images)

    def cache_key(self) -> bytes:
        return array_key(self.images)


class DatasetView(Dataset):
    """Images of other datasets, which are asked about each of them."""

    @abstractmethod
    def locate(self, index: int) -> tuple[Dataset, int]:
        """Return the dataset of an image, and its index there."""

    def read(self, index: int) -> bytes | ndarray:
        dataset, position = self.locate(index)
        return dataset.read(position)

    def describe(self, index: int) -> str:
        dataset, position = self.locate(index)
        return dataset.describe(position)

    def title(self, index: int) -> str:
        dataset, position = self.locate(index)
        return dataset.title(position)

    def path(self, index: int) -> Path | None:
        dataset, position = self.locate(index)
        return dataset.path(position)

    def target(self, index: int) -> Any:
        dataset, position = self.locate(index)
        return dataset.target(position)

    def object_mask(self, index: int) -> ndarray | None:
        dataset, position = self.locate(index)
        return dataset.object_mask(position)

    def mask(self, index: int) -> ndarray:
        dataset, position = self.locate(index)
        return dataset.mask(position)

    def instances(self, index: int) -> ndarray | None:
        dataset, position = self.locate(index)
        return dataset.instances(position)

    def objects(self, index: int) -> Objects:
        dataset, position = self.locate(index)
        return dataset.objects(position)

    def describe_object(self, index: int, number: int) -> str:
        dataset, position = self.locate(index)
        return dataset.describe_object(position, number)


@dataclass(frozen=True, eq=False)
class Subset(DatasetView):
    """A selection of a dataset's images, in any order; with other labels and class names if they are given, or with other
    targets: label sets or numbers."""

    dataset: Dataset
    indices: ndarray
    labels: ndarray = None  # type: ignore[assignment]  # None: the dataset's
    class_names: tuple[str, ...] = None  # type: ignore[assignment]  # None: the dataset's
    own_targets: LabelSets | ndarray | None = None
    target_names: tuple[str, ...] = None  # type: ignore[assignment]  # of own targets; None: the dataset's

    def __post_init__(self) -> None:
        if self.own_targets is not None:
            object.__setattr__(self, "labels", np.full(len(self.indices), -1, np.int64))
        elif self.labels is None:
            object.__setattr__(self, "labels", self.dataset.labels[self.indices])
        if self.class_names is None:
            object.__setattr__(self, "class_names", self.dataset.class_names)
        if self.target_names is None:
            object.__setattr__(self, "target_names", self.dataset.target_names if self.own_targets is None else ())

    @property
    def name(self) -> str:
        return self.dataset.name

    def locate(self, index: int) -> tuple[Dataset, int]:
        return self.dataset, int(self.indices[index])

    def files(self) -> tuple[Path, Sequence[str]] | None:
        files = self.dataset.files()
        return None if files is None else (files[0], [files[1][index] for index in self.indices.tolist()])

    def target(self, index: int) -> Any:
        if self.own_targets is not None:
            return self.own_targets[index]
        label = int(self.labels[index])
        return label if label >= 0 else super().target(index)

    @cached_property
    def targets(self) -> Sequence[Any] | ndarray | LabelSets:
        if self.own_targets is not None:
            return self.own_targets
        targets = self.dataset.targets
        if self.class_names and self.dataset.label_sets is None:
            return self.labels
        if isinstance(targets, ndarray | LabelSets):
            return targets[self.indices]
        return [targets[index] for index in self.indices.tolist()]

    @cached_property
    def label_sets(self) -> LabelSets | None:
        if self.own_targets is not None:
            return self.own_targets if isinstance(self.own_targets, LabelSets) else None
        label_sets = self.dataset.label_sets
        return None if label_sets is None else label_sets[self.indices]

    def numbers(self, name: str) -> ndarray | None:
        column = self.dataset.numbers(name)
        return None if column is None else column[self.indices]

    @property
    def number_names(self) -> tuple[str, ...]:
        return self.dataset.number_names

    @property
    def mask_names(self) -> tuple[str, ...]:
        return self.dataset.mask_names

    @property
    def has_mask_targets(self) -> bool:
        return self.dataset.has_mask_targets

    @property
    def has_exact_masks(self) -> bool:
        return self.dataset.has_exact_masks

    @property
    def box_names(self) -> tuple[str, ...]:
        return self.dataset.box_names

    @property
    def has_exact_boxes(self) -> bool:
        return self.dataset.has_exact_boxes

    @property
    def has_box_targets(self) -> bool:
        return self.dataset.has_box_targets

    def box_faults(self) -> Sequence[BoxFault]:
        by_image: dict[int, list[BoxFault]] = {}
        for fault in self.dataset.box_faults():
            by_image.setdefault(fault.image, []).append(fault)
        return [
            replace(fault, image=index)
            for index, image in enumerate(self.indices.tolist() if by_image else ())
            for fault in by_image.get(image, ())
        ]

    def sizes(self, indices: ndarray) -> ndarray | None:
        return self.dataset.sizes(self.indices[indices])

    @property
    def array_shape(self) -> tuple[int, int, int] | None:
        return self.dataset.array_shape

    def stack(self, indices: ndarray) -> ndarray:
        return self.dataset.stack(self.indices[indices])

    def groups(self) -> ndarray | None:
        groups = self.dataset.groups()
        return None if groups is None else groups[self.indices]

    @property
    def is_deterministic(self) -> bool:
        return self.dataset.is_deterministic

    def content_key(self) -> bytes:
        return self.dataset.content_key() + self.indices.astype(np.int64).tobytes()

    def cache_key(self) -> bytes | None:
        key = self.dataset.cache_key()
        return None if key is None else key + self.indices.astype(np.int64).tobytes()

    def flatten(self) -> tuple[Sequence[Dataset], ndarray]:
        datasets, positions = self.dataset.flatten()
        return datasets, positions[self.indices]


@dataclass(frozen=True, eq=False)
class MaskTargets(Subset):
    """A dataset whose masks are the targets, in place of its labels; with other classes of pixels if a numbering is given."""

    numbering: ndarray | None = None  # new number of each class; the last stands for ignored pixels

    @property
    def has_mask_targets(self) -> bool:
        return True

    @property
    def mask_names(self) -> tuple[str, ...]:
        return self.class_names

    def mask(self, index: int) -> ndarray:
        mask = super().mask(index)
        return mask if self.numbering is None else self.numbering[mask]


def with_mask_targets(dataset: Dataset, name: str) -> Dataset:
    """Return the dataset of this name with its masks as targets."""
    if dataset.has_mask_targets:
        return dataset
    if not dataset.mask_names:
        raise VitrailError(
            f"{name} has no masks, which segmentation learns from; name a folder with images/ and masks/, or another "
            "dataset with a mask for each image"
        )
    indices = np.arange(len(dataset))
    return MaskTargets(dataset, indices, np.full(len(dataset), -1, np.int64), dataset.mask_names)


@dataclass(frozen=True, eq=False)
class BoxTargets(Subset):
    """A dataset whose boxes are the targets, in place of its labels; with other classes if a numbering is given."""

    numbering: ndarray | None = None  # new label of each class; -1: its boxes are left out

    @property
    def has_box_targets(self) -> bool:
        return True

    @property
    def has_mask_targets(self) -> bool:
        return False

    @property
    def box_names(self) -> tuple[str, ...]:
        return self.class_names

    def objects(self, index: int) -> Objects:
        objects = super().objects(index)
        if self.numbering is None:
            return objects
        objects = objects.with_labels(self.numbering[objects.labels])
        return objects[objects.labels >= 0]


def without_boxes(name: object) -> VitrailError:
    """Return the error of a source that has no boxes."""
    return VitrailError(
        f"{name} has no boxes, which detection learns from; name a COCO file, a folder with YOLO's labels/ or Pascal VOC's "
        "Annotations/, or a table with a box in each row"
    )


def with_box_targets(dataset: Dataset, name: str) -> Dataset:
    """Return the dataset of this name with its boxes as targets."""
    if dataset.has_box_targets:
        return dataset
    if not dataset.box_names:
        raise without_boxes(name)
    every = np.arange(len(dataset))
    return BoxTargets(dataset, every, np.full(len(dataset), -1, np.int64), dataset.box_names)


def ignore_classes(dataset: Dataset, ignored: Sequence[str], name: str) -> Dataset:
    """Return a dataset of masks without some of its classes, whose pixels are ignored; ``none`` stands for no class."""
    ignored = [each for each in ignored if each != NONE_IGNORED]
    for each in ignored:
        if each not in dataset.class_names:
            raise VitrailError(
                f"ignore must name classes of {name}, {', '.join(dataset.class_names[:12])}, got {each!r}"
                f"{did_you_mean(each, dataset.class_names)}"
            )
    kept = tuple(each for each in dataset.class_names if each not in ignored)
    numbering = [kept.index(each) if each in kept else IGNORED for each in dataset.class_names]
    every = np.arange(len(dataset))
    return MaskTargets(dataset, every, class_names=kept, numbering=np.array([*numbering, IGNORED], np.int16))


def with_class_names(dataset: Dataset, class_names: tuple[str, ...]) -> Dataset:
    """Return the dataset with its labels numbered by these class names, which must include its own."""
    if dataset.class_names == class_names:
        return dataset
    numbers = {name: label for label, name in enumerate(class_names)}
    numbering = np.array([*(numbers[name] for name in dataset.class_names), -1], np.int64)  # the last stands for no label
    every = np.arange(len(dataset))
    if dataset.has_mask_targets:
        return MaskTargets(dataset, every, class_names=class_names, numbering=numbering.astype(np.int16))
    if dataset.has_box_targets:
        return BoxTargets(dataset, every, class_names=class_names, numbering=numbering)
    if (label_sets := dataset.label_sets) is not None:
        return with_label_sets(dataset, label_sets.renumbered(numbering, len(class_names)), class_names)
    return Subset(dataset, every, numbering[dataset.labels], class_names)


def with_label_sets(dataset: Dataset, label_sets: LabelSets, class_names: tuple[str, ...]) -> Dataset:
    """Return the dataset with several labels per image."""
    return Subset(dataset, np.arange(len(dataset)), class_names=class_names, own_targets=label_sets)


def with_numbers(dataset: Dataset, numbers: Float[ndarray, "n m"], target_names: tuple[str, ...]) -> Dataset:
    """Return the dataset with numbers to predict."""
    return Subset(dataset, np.arange(len(dataset)), class_names=(), own_targets=numbers, target_names=target_names)


def as_label_sets(dataset: Dataset) -> Dataset:
    """Return the dataset with a set of labels per image, also if each image has one label."""
    if dataset.label_sets is not None or not dataset.class_names:
        return dataset
    return with_label_sets(dataset, LabelSets.from_labels(dataset.labels, len(dataset.class_names)), dataset.class_names)


def max_bad_images(max_bad_fraction: float, num_images: int) -> float:
    """Return how many images may be unusable: the fraction, but at least one, unless none is tolerated."""
    return max(max_bad_fraction * num_images, 1.0) if max_bad_fraction else 0.0


def label_name(dataset: Dataset, index: int, separator: str = ", ") -> str:
    """Return the class name of an image, or the names of its classes or its numbers; empty if it is not labelled."""
    if (label_sets := dataset.label_sets) is not None:
        return separator.join(dataset.class_names[label] for label in label_sets.classes_of(index))
    if dataset.target_names:
        return separator.join(f"{value:.4g}" for value in np.atleast_1d(dataset.target(index)))
    label = int(dataset.labels[index])
    return dataset.class_names[label] if 0 <= label < len(dataset.class_names) else ""


def class_counts(dataset: Dataset) -> Int[ndarray, " k"]:
    """Count the images of each class."""
    if (label_sets := dataset.label_sets) is not None:
        return label_sets.counts()
    return np.bincount(dataset.labels[dataset.labels >= 0], minlength=len(dataset.class_names))


def evenly_spaced(num_images: int, count: int) -> ndarray:
    """Return ``count`` indices from the first to the last image, or all if there are fewer."""
    return np.linspace(0, num_images - 1, min(count, num_images)).round().astype(np.int64)


def fingerprint(*splits: Dataset) -> str:
    """Hash the class names, labels and images of the splits, the images by their ``content_key``."""
    digest = hashlib.sha256()
    for dataset in splits:
        digest.update(repr((dataset.class_names, len(dataset))).encode() + dataset.labels.tobytes() + dataset.content_key())
        targets = dataset.targets
        if targets is not dataset.labels and isinstance(targets, LabelSets | ndarray):
            digest.update(repr(dataset.target_names).encode() + targets.tobytes())
    return digest.hexdigest()


def empty_dataset(like: Dataset) -> Dataset:
    """Build a dataset without images, with the classes or numbers of another."""
    if like.has_mask_targets or like.has_box_targets:
        return Subset(like, np.zeros(0, np.int64))
    nothing = ArrayDataset(np.zeros((0, 1, 1, 3), np.uint8), np.zeros(0, np.int64), like.class_names, "nothing")
    if like.label_sets is not None:
        return with_label_sets(nothing, LabelSets.from_labels(nothing.labels, len(like.class_names)), like.class_names)
    return with_numbers(nothing, np.zeros((0, len(like.target_names))), like.target_names) if like.target_names else nothing


def select_images(dataset: Dataset, indices: ndarray) -> Dataset:
    """Select images by index; the dataset itself if all are selected in order."""
    if len(indices) == len(dataset) and (indices == np.arange(len(dataset))).all():
        return dataset
    return Subset(dataset, indices)


@dataclass(frozen=True)
class LeftOutFile:
    """A file that is not in a dataset, such as an image without a mask."""

    location: str
    reason: str
    split: str


@dataclass(frozen=True)
class SourceSplits:
    """The splits that a source has, by name, an unnamed one if it has none; notes, and where the targets were found."""

    splits: dict[str, Dataset]
    notes: tuple[str, ...] = ()
    columns: Columns = ANY_COLUMNS
    left_out: tuple[LeftOutFile, ...] = ()


@dataclass(frozen=True)
class DatasetSplits:
    """The splits of a dataset: ``train``, ``validation`` and ``test`` (each may be empty)."""

    name: str
    train: Dataset
    validation: Dataset
    test: Dataset
    fingerprint: str  # hash of names, labels and splits; after the dataset check, also of the images' content
    notes: tuple[str, ...] = ()  # remarks for the user
    split_fractions: SplitFractions | None = None  # fractions split off by content, if splits were missing
    columns: Columns = ANY_COLUMNS  # where the targets were found, for a later command to read them in the same way
    fold: Fold | None = None  # of a cross-validation, if these are its splits
    left_out: tuple[LeftOutFile, ...] = ()  # what was found and is in no split

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.train.class_names

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the numbers to predict, if the targets are numbers."""
        return self.train.target_names

    @property
    def splits(self) -> dict[str, Dataset]:
        return {"train": self.train, "validation": self.validation, "test": self.test}
