"""A user's own object as a dataset: a list of (image, target) pairs, a ``torch.utils.data.Dataset`` or one of torchvision's.

Anything with ``__len__`` and ``__getitem__``. An image is a path, bytes, a PIL image, a uint8 array (h w c or h w) or a uint8
tensor (c h w). Targets that are text or whole numbers are class labels; lists, tuples or sets of them, and rows of zeros and
ones, are several labels per image; floats, and arrays or lists of equally many floats, are numbers to predict; dictionaries of
boxes and labels are boxes; others are kept as they are. n images, m numbers.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from vitrail.data.bad_image import BadImage
from vitrail.data.class_names import deduplicate
from vitrail.data.sources.annotated_boxes import with_annotations
from vitrail.data.sources.concat_dataset import ConcatDataset
from vitrail.data.sources.dataset import NUM_SAMPLED, Dataset, Progress, Subset, evenly_spaced, with_label_sets
from vitrail.data.sources.image_like import check_image_like, describe_value, is_image_like, is_tensor, read_image_like
from vitrail.data.sources.labels import encode_labels
from vitrail.data.sources.numbers import unnamed_targets
from vitrail.data.sources.user_boxes import boxes_of_target, have_boxes, read_user_boxes
from vitrail.data.sources.user_label_sets import find_label_sets
from vitrail.errors import VitrailError, did_you_mean, first_line

log = logging.getLogger("vitrail")
NUMBERS = (float, int, np.floating, np.integer)
MAX_CLASSES = 100_000  # larger numbers are taken as names
EXPECTED = "with __len__ and __getitem__ giving (image, target), such as a list of pairs or a map-style torch dataset"


@dataclass(frozen=True, eq=False)
class UserDataset(Dataset):
    """A user's object that gives images, or pairs of image and target, by index. It is read from several threads."""

    items: Any
    labels: ndarray
    class_names: tuple[str, ...] = ()
    pairs: bool = True  # whether an item is a pair
    other_targets: Sequence[Any] | ndarray | None = None  # targets that are not class labels
    target_names: tuple[str, ...] = ()  # of the numbers, if the other targets are numbers

    @property
    def name(self) -> str:
        return type(self.items).__name__

    def read(self, index: int) -> bytes | ndarray:
        try:
            item = self.items[index]
        except Exception as error:  # code of the user, which can raise anything
            raise BadImage(f"cannot be read: {_one_line(error)}") from None
        return read_image_like(item[0] if self.pairs else item)

    def describe(self, index: int) -> str:
        if (path := self.path(index)) is not None:
            return str(path)
        return f"image {index}" if self._in_memory else f"image {index} of {self.name}"

    def path(self, index: int) -> Path | None:
        if not self._in_memory:
            return None
        image = self.items[index][0] if self.pairs else self.items[index]
        return Path(os.fsdecode(image)) if isinstance(image, str | os.PathLike) else None

    def target(self, index: int) -> Any:
        return super().target(index) if self.other_targets is None else _plain(self.other_targets[index])

    @cached_property
    def targets(self) -> Sequence[Any] | ndarray:
        if self.other_targets is None:
            return self.labels
        return _number_rows(self.other_targets, len(self.target_names)) if self.target_names else self.other_targets

    @cached_property
    def is_deterministic(self) -> bool:
        """Whether a few images, read twice, were equal: a random transform gives others."""
        return self._in_memory or self._sampled_key == super().content_key()

    def content_key(self) -> bytes:
        """Hash a few evenly spaced images and targets; no images if they differ each time they are read."""
        images = self._sampled_key if self.is_deterministic else b""
        if self.other_targets is None:
            return images
        targets = [self.other_targets[index] for index in evenly_spaced(len(self), 1000).tolist()]
        return hashlib.sha256(images + repr(targets).encode()).digest()

    @cached_property
    def _sampled_key(self) -> bytes:
        return super().content_key()

    @property
    def _in_memory(self) -> bool:
        return isinstance(self.items, list | tuple | ndarray) or is_tensor(self.items)


def as_dataset(source: Any, class_names: Sequence[str] | None = None, progress: Progress | None = None) -> Dataset:
    """Return a user's object as a dataset. ``class_names``: by label; None: its own ``classes`` or ``class_names``, else the
    sorted targets that are text, else the numbers.

    Targets are its ``targets`` or ``labels``, else every item is read once. torch's ``Subset`` and ``ConcatDataset`` become
    those of Vitrail.
    """
    if isinstance(source, Dataset):
        return source
    if type(source).__module__ == "torch.utils.data.dataset":
        if type(source).__name__ == "Subset":
            return Subset(as_dataset(source.dataset, class_names, progress), np.asarray(source.indices, np.int64))
        if type(source).__name__ == "ConcatDataset":
            return ConcatDataset([as_dataset(part, class_names, progress) for part in source.datasets])
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__") or isinstance(source, bytes):
        raise VitrailError(f"a dataset must be a path, a name or an object {EXPECTED}, got {describe_value(source)}")
    if not len(source):
        raise VitrailError(f"the dataset, {describe_value(source)}, has no images; give it some")
    pairs = _check_first(source)
    targets = _read_targets(source, progress) if pairs else [None] * len(source)
    if have_boxes(targets):
        return _with_boxes(UserDataset(source, np.full(len(targets), -1, np.int64)), targets, class_names, progress)
    if (several := find_label_sets(targets, class_names or _declared_names(source))) is not None:
        return with_label_sets(UserDataset(source, np.full(len(targets), -1, np.int64), (), pairs), *several)
    labels, names = _encode_targets(targets, class_names or _declared_names(source))
    others = None if names or _unlabelled(targets) else _other_targets(targets)
    return UserDataset(source, labels, names, pairs, others, () if others is None else _target_names(others))


def _with_boxes(
    dataset: UserDataset, targets: list[Any], class_names: Sequence[str] | None, progress: Progress | None
) -> Dataset:
    """Return a dataset with the boxes of its targets, which must be the same each time they are read."""
    for index in evenly_spaced(len(dataset), NUM_SAMPLED).tolist():
        before, after = boxes_of_target(targets[index]), None
        with suppress(Exception):  # the dataset check reports it
            after = boxes_of_target(dataset.items[index][1])
        if before is not None and after is not None and not np.array_equal(before, after, equal_nan=True):
            raise VitrailError(
                f"the boxes of image {index} differ each time they are read, and images are read without them; leave random "
                "transforms to Vitrail"
            )
    annotations, names = read_user_boxes(targets, class_names or _declared_names(dataset.items))
    return with_annotations(
        dataset, annotations, names, lambda index, number: f"{dataset.describe(index)}, box {number}", progress
    )


def _check_first(source: Any) -> bool:
    """Check the first item, and return whether it is a pair of image and target."""
    try:
        item = source[0]
    except Exception as error:
        raise VitrailError(f"item 0 of the dataset, {describe_value(source)}, cannot be read: {_one_line(error)}") from error
    pairs = isinstance(item, tuple | list) and len(item) == 2
    if isinstance(source, tuple) and len(source) == 2 and not pairs and getattr(item, "ndim", 0) == 4:
        raise VitrailError("a dataset must be a list of pairs, got images and targets apart; try list(zip(images, targets))")
    if not pairs and not is_image_like(item):
        raise VitrailError(f"an item must be a pair (image, target), got {describe_value(item)}; give an object {EXPECTED}")
    try:
        check_image_like(item[0] if pairs else item)
    except BadImage as error:
        raise VitrailError(f"image 0 of the dataset {error}") from None
    return pairs


def _declared_names(source: Any) -> tuple[str, ...] | None:
    for attribute in ("classes", "class_names"):
        if isinstance(names := getattr(source, attribute, None), list | tuple) and names:
            return deduplicate([str(name[0] if isinstance(name, tuple) else name) for name in names])
    return None


def _read_targets(source: Any, progress: Progress | None) -> list[Any]:
    if getattr(source, "target_transform", None) is None:  # torchvision's changes what an item gives, not the attribute
        for attribute in ("targets", "labels"):
            if (values := getattr(source, attribute, None)) is not None and hasattr(values, "__len__"):
                if len(values) != len(source):
                    raise VitrailError(
                        f"the dataset must have as many {attribute} as images, {len(source):,}, got {len(values):,}"
                    )
                return [_plain(value) for value in values]
    targets = []
    for index in range(len(source)):
        try:
            targets.append(_plain(source[index][1]))
        except Exception:  # the dataset check reports it
            targets.append(None)
        if progress and (index + 1) % 1000 == 0:
            progress("reading targets", index + 1, len(source))
    return targets


def _plain(value: Any) -> Any:
    """Convert tensors to arrays, and single values to Python's."""
    if is_tensor(value):
        value = value.detach().cpu().numpy()
    return value.item() if isinstance(value, ndarray | np.generic) and value.ndim == 0 else value


def _unlabelled(targets: list[Any]) -> bool:
    return all(target is None or (type(target) is int and target == -1) for target in targets)


def _encode_targets(targets: list[Any], names: Sequence[str] | None) -> tuple[ndarray, tuple[str, ...]]:
    """Return labels and class names; -1 and none for targets that are not classes."""
    known = [target for target in targets if target is not None]
    kinds = {type(target) for target in known}
    labels = np.full(len(targets), -1, np.int64)
    if _unlabelled(targets) or not (kinds <= {str} or kinds <= {int, bool}):
        if str in kinds:
            others = ", ".join(sorted(kind.__name__ for kind in kinds - {str}))
            raise VitrailError(f"targets must be all text, or none of them, got str and {others}; give every class a name")
        return labels, ()
    is_known = np.array([target is not None for target in targets])
    if kinds == {str} and names is None:
        labels[is_known], found = encode_labels(known)
        return labels, found
    if kinds == {str}:
        numbers = {name: label for label, name in enumerate(names or ())}
        if (unknown := next((name for name in known if name not in numbers), None)) is not None:
            raise VitrailError(
                f"the target {unknown!r} is not among the {len(numbers)} classes{did_you_mean(unknown, numbers)}"
            )
        labels[is_known] = [numbers[name] for name in known]
        return labels, tuple(names or ())
    if min(known) < -1:
        raise VitrailError(f"a label must be a number from 0, or -1 for none, got {min(known)}; number the classes from 0")
    if without := known.count(-1):
        log.warning(
            "%d of %d targets are -1, which stands for no label: a classifier is not trained on these images; number the "
            "classes from 0 if -1 is one of them",
            without, len(targets),
        )  # fmt: skip
    if names is None and max(known) >= MAX_CLASSES:
        labels[is_known], found = encode_labels([str(number) for number in known])
        return labels, found
    labels[is_known] = known
    if names is not None and max(known) >= len(names):
        raise VitrailError(f"label {max(known)} needs {max(known) + 1} class names, got {len(names)}; name all classes, from 0")
    return labels, tuple(names) if names is not None else tuple(str(number) for number in range(max(known) + 1))


def _other_targets(targets: list[Any]) -> Sequence[Any] | ndarray:
    if all(isinstance(target, int | float | None) for target in targets):
        return np.array([np.nan if target is None else target for target in targets], np.float64)
    return targets


def _target_names(targets: Sequence[Any] | ndarray) -> tuple[str, ...]:
    """Return names for numbers to predict: floats, or as many floats for every image; none for other targets."""
    if isinstance(targets, ndarray):
        return unnamed_targets(1)
    known = [target for target in targets if target is not None]
    if not all(_is_float_row(target) for target in known) or len({len(target) for target in known}) != 1:
        return ()
    is_indicator = all(value in (0, 1) for target in known for value in target)  # of classes, such as a one-hot vector
    return () if is_indicator else unnamed_targets(len(known[0]))


def _is_float_row(target: Any) -> bool:
    if isinstance(target, ndarray):
        return target.ndim == 1 and len(target) > 0 and np.issubdtype(target.dtype, np.floating)
    kinds = {type(value) for value in target} if isinstance(target, list | tuple) else set()
    return any(issubclass(kind, float | np.floating) for kind in kinds) and all(issubclass(kind, NUMBERS) for kind in kinds)


def _number_rows(targets: Sequence[Any] | ndarray, count: int) -> Float[ndarray, "n m"]:
    """Return the numbers of each image, NaN where they are missing."""
    rows = [np.full(count, np.nan) if target is None else np.atleast_1d(np.asarray(target, np.float64)) for target in targets]
    return np.stack(rows)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)[:200]}" if str(error).strip() else type(error).__name__
