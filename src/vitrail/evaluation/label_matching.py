"""Selection of the split to evaluate, and matching of the dataset's classes with the model's: by name, never by order."""

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from vitrail.data.class_names import imagenet_synsets, is_imagenet
from vitrail.data.sources.concat_dataset import ConcatDataset
from vitrail.data.sources.dataset import (
    Dataset,
    DatasetSplits,
    Subset,
    as_label_sets,
    class_counts,
    select_images,
    with_box_targets,
    with_class_names,
    with_label_sets,
    with_mask_targets,
)
from vitrail.errors import VitrailError, did_you_mean
from vitrail.inference.predictor import Predictor

SPLITS = ("test", "validation", "train", "all")


def select_split(data: DatasetSplits, split: str | None, labelled: bool = True) -> tuple[str, Dataset]:
    """Return the named split, else test, else validation, else all; of a ``labelled`` one only the images with a class."""
    if split is not None and split not in SPLITS:
        raise VitrailError(f"split must be {', '.join(SPLITS)}, got {split!r}{did_you_mean(split, SPLITS)}")
    for name in (split,) if split else ("test", "validation", "all"):
        source = ConcatDataset([part for part in data.splits.values() if len(part)]) if name == "all" else data.splits[name]
        if not labelled and len(source):
            return name, source
        if len(source) and (indices := np.flatnonzero(source.has_label)).size:
            return name, select_images(source, indices)
    if names := next((part.target_names for part in data.splits.values() if part.target_names), ()):
        raise VitrailError(f"{data.name} has numbers ({', '.join(names)}) in place of labels; name a dataset with labels")
    sizes = ", ".join(f"{len(part):,} {name}" for name, part in data.splits.items())
    kind, where = "labelled images" if labelled else "images", f" in {split}" if split else ""
    raise VitrailError(f"{data.name} has no {kind} to evaluate{where}; it has {sizes}")


def match_classes(source: Dataset, predictor: Predictor, data: str) -> ndarray:
    """Return the model's class for each of the dataset's, -1 for those without images."""
    indices_by_name: dict[str, list[int]] = {}
    for number, name in enumerate(predictor.class_names):
        indices_by_name.setdefault(name, []).append(number)
    for name, number in _other_names(source, predictor.class_names).items():
        indices_by_name.setdefault(name, [number])
    mapping = np.full(len(source.class_names), -1)
    used = np.flatnonzero(class_counts(source)).tolist()
    unknown = [source.class_names[label] for label in used if source.class_names[label] not in indices_by_name]
    if unknown:
        raise VitrailError(_unknown_classes_message(unknown, len(used), list(indices_by_name), data, predictor.names is None))
    for label in used:
        name = source.class_names[label]
        if len(indices_by_name[name]) > 1:
            duplicates = " and ".join(map(str, indices_by_name[name]))
            raise VitrailError(
                f"classes {duplicates} of the model are both named {name!r}, so {data} cannot be matched with them"
            )
        mapping[label] = indices_by_name[name][0]
    return mapping


def match_targets(source: Dataset, predictor: Predictor, data: str) -> Dataset:
    """Return the dataset with its labels numbered by the model's classes, for ``Task.targets``; other targets as they are."""
    task = predictor.task
    if task.config.has_masks:
        return match_masks(source, predictor, data)
    if task.config.has_boxes:
        return match_boxes(source, predictor, data)
    if not task.has_classes:
        task.require_targets(source, data)
        return source
    if task.config.several_labels:
        source = as_label_sets(source)
    elif source.label_sets is not None:
        raise VitrailError(f"{data} has several labels per image, and {predictor.source} predicts one; name another model")
    classes = match_classes(source, predictor, data)
    if (label_sets := source.label_sets) is not None:
        renumbered = label_sets.renumbered(classes, len(predictor.class_names))
        return with_label_sets(source, renumbered, predictor.class_names)
    numbering = np.append(classes, -1)  # the last stands for no label
    return Subset(source, np.arange(len(source)), numbering[source.labels], predictor.class_names)


def match_masks(source: Dataset, predictor: Predictor, data: str) -> Dataset:
    """Return the dataset with its masks numbered by the model's classes, all of which it need not have."""
    return _renumber(with_mask_targets(source, data), predictor, data, "masks")


def match_boxes(source: Dataset, predictor: Predictor, data: str) -> Dataset:
    """Return the dataset with its boxes numbered by the model's classes, all of which it need not have."""
    return _renumber(with_box_targets(source, data), predictor, data, "boxes")


def _renumber(source: Dataset, predictor: Predictor, data: str, targets: str) -> Dataset:
    """Return a dataset of masks or boxes with the model's classes in place of its own."""
    own, names = source.class_names, predictor.class_names
    if unknown := [name for name in own if name not in names]:
        raise VitrailError(_unknown_classes_message(unknown, len(own), list(names), data, predictor.names is None))
    if duplicate := next((name for name in own if names.count(name) > 1), None):
        raise VitrailError(
            f"two classes of the model are named {duplicate!r}, so the {targets} of {data} cannot be matched with them"
        )
    return with_class_names(source, names)


def _other_names(source: Dataset, class_names: Sequence[str]) -> dict[str, int]:
    """Return the model's classes by other names of theirs: ImageNet's synsets, or numbers if the dataset has nothing else."""
    synsets = imagenet_synsets() if is_imagenet(class_names) else ()
    are_numbers = all(name.isdecimal() for name in source.class_names)
    numbers = [str(number) for number in range(len(class_names))] if are_numbers else []
    return {name: number for names in (synsets, numbers) for number, name in enumerate(names)}


def _unknown_classes_message(unknown: list[str], used: int, names: list[str], data: str, unnamed: bool) -> str:
    listed = f"{', '.join(map(repr, unknown[:3]))}{f' and {len(unknown) - 3} more' if len(unknown) > 3 else ''}"
    message = (
        f"{len(unknown)} of the {used} classes of {data} {'is' if len(unknown) == 1 else 'are'} unknown to the model: {listed}"
    )
    if unnamed:
        remedy = f"set model.class_names and vitrail.save it, or name the folders 0 to {len(names) - 1}"
        return f"{message}; its file names none: {remedy}"
    first_names = f"{', '.join(map(repr, names[:4]))}{' ...' if len(names) > 4 else ''}"
    return f"{message}; it knows {first_names}{did_you_mean(unknown[0], names)}"
