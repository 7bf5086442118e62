"""Boxes in the targets of a user's own object, as torchvision's datasets for detection give them. n images, m boxes of all.

A target is a dictionary of ``boxes`` (left, top, right, bottom in pixels) and ``labels``, or a list of COCO's annotations.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from vitrail.data.sources.annotated_boxes import Annotations
from vitrail.data.sources.image_like import describe_value, is_tensor
from vitrail.data.sources.labels import natural_sorted
from vitrail.errors import VitrailError

CROWD_KEYS, AREA_KEYS = ("iscrowd", "crowd"), ("area", "areas")
NO_TARGET = "has no boxes and labels as its target"


def have_boxes(targets: Sequence[Any]) -> bool:
    """Whether targets are boxes with labels, where they are known."""
    known = [target for target in targets if target is not None]
    return any(map(_is_dictionary, known)) or (any(map(_is_coco, known)) and all(map(_is_coco_or_empty, known)))


def _is_dictionary(target: Any) -> bool:
    return isinstance(target, Mapping) and "boxes" in target and "labels" in target


def _is_coco(target: Any) -> bool:
    is_list = isinstance(target, list | tuple) and len(target) > 0
    return is_list and all(isinstance(each, Mapping) and "bbox" in each and "category_id" in each for each in target)


def _is_coco_or_empty(target: Any) -> bool:
    return _is_coco(target) or (isinstance(target, list | tuple) and not target)


def read_user_boxes(targets: Sequence[Any], class_names: Sequence[str] | None) -> tuple[Annotations, tuple[str, ...]]:
    """Return the boxes of targets, and the names of their classes. ``class_names``: by label; None: the sorted labels that are
    text, else the numbers."""
    columns: list[list[Any]] = [[], [], [], [], []]  # image, box, label, crowd and area of each
    errors = dict[int, str]()
    for index, target in enumerate(targets):
        if target is None:
            errors[index] = NO_TARGET
            continue
        try:
            boxes, *others = _of_coco(target) if isinstance(target, list | tuple) else _of_dictionary(target)
        except ValueError as error:
            raise VitrailError(f"the target of image {index} {error}") from None
        columns[0] += [index] * len(boxes)
        for column, values in zip(columns[1:], (boxes, *others), strict=True):
            column += list(values)
    images, every, labels, crowd, areas = columns
    numbers, names = _encode(labels, images, class_names)
    annotations = Annotations(
        np.array(images, np.int64),
        np.array(every, np.float64).reshape(-1, 4),
        numbers,
        np.zeros((len(targets), 2), np.int64),
        crowd=np.array(crowd, bool),
        areas=np.array(areas, np.float64),
        errors=errors,
    )
    return annotations, names


def boxes_of_target(target: Any) -> ndarray | None:
    """Return the boxes of a target; None if it has none that can be read."""
    try:
        return (_of_coco(target) if isinstance(target, list | tuple) else _of_dictionary(target))[0]
    except (ValueError, TypeError):
        return None


def _of_dictionary(target: Any) -> tuple[ndarray, Sequence[Any], Sequence[bool], Sequence[float]]:
    if not _is_dictionary(target):
        raise ValueError(f"must be a dictionary of boxes and labels, got {describe_value(target)}")
    boxes = _as_boxes(target["boxes"])
    labels, crowd, areas = (
        _as_list(next((target[key] for key in keys if target.get(key) is not None), default))
        for keys, default in (
            (("labels",), []),
            (CROWD_KEYS, np.zeros(len(boxes), bool)),
            (AREA_KEYS, np.full(len(boxes), np.nan)),
        )
    )
    if {len(labels), len(crowd), len(areas)} != {len(boxes)}:
        raise ValueError(f"must have as many labels as boxes, got {len(boxes)} boxes and {len(labels)} labels")
    return boxes, labels, [bool(each) for each in crowd], [float(each) for each in areas]


def _as_boxes(value: Any) -> ndarray:
    try:
        boxes = np.asarray(_as_list(value), np.float64)
    except (TypeError, ValueError):
        boxes = np.zeros(1)
    if boxes.size and (boxes.ndim != 2 or boxes.shape[1] != 4):
        raise ValueError(f"must have boxes of left, top, right and bottom, n x 4 numbers, got {describe_value(value)}")
    return _as_corners(boxes.reshape(-1, 4), str(getattr(getattr(value, "format", "XYXY"), "value", "XYXY")))


def _as_corners(boxes: ndarray, box_format: str) -> ndarray:
    """Return left, top, right and bottom of boxes in a format of torchvision."""
    start, end = boxes[:, :2], boxes[:, 2:]
    if box_format == "XYXY":
        return boxes
    if box_format == "XYWH":
        return np.concatenate([start, start + end], axis=1)
    if box_format == "CXCYWH":
        return np.concatenate([start - end / 2, start + end / 2], axis=1)
    raise ValueError(f"must have boxes in the format XYXY, XYWH or CXCYWH, got {box_format}")


def _of_coco(target: Sequence[Any]) -> tuple[ndarray, Sequence[Any], Sequence[bool], Sequence[float]]:
    if not _is_coco_or_empty(target):
        raise ValueError(f"must be a list of annotations with a bbox and a category_id, got {describe_value(target)}")
    boxes = _as_corners(_as_boxes([each["bbox"] for each in target]), "XYWH")
    crowd = [bool(each.get("iscrowd")) for each in target]
    return boxes, [each["category_id"] for each in target], crowd, [float(each.get("area", np.nan)) for each in target]


def _as_list(value: Any) -> list[Any]:
    if is_tensor(value):
        value = value.detach().cpu().numpy()
    values: list[Any] = value.tolist() if isinstance(value, ndarray) else list(value)
    return values


def _encode(labels: list[Any], images: list[int], names: Sequence[str] | None) -> tuple[ndarray, tuple[str, ...]]:
    if labels and all(isinstance(label, str) for label in labels):
        names = natural_sorted(set(labels)) if names is None else names
        number = {name: label for label, name in enumerate(names)}
        encoded = [number.get(label, -1) for label in labels]
    else:
        encoded = [int(label) if isinstance(label, int | float) and label == int(label) else -1 for label in labels]
        names = [str(number) for number in range(max(encoded, default=-1) + 1)] if names is None else names
    invalid = next((place for place, label in enumerate(encoded) if not 0 <= label < len(names or ())), None)
    if invalid is not None:
        known = f"a number from 0 to {len(names) - 1}" if names else "a number from 0"
        raise VitrailError(
            f"the target of image {images[invalid]} has the label {labels[invalid]!r}; a label must be {known}, or the name "
            "of a class"
        )
    return np.array(encoded, np.int64), tuple(names or ())
