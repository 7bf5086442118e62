"""The dataset of a recipe: opened, split, checked for unreadable files, duplicates and leaks. Torch-free."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from vitrail.data.dataset_check import DatasetReport, DuplicateGroup, drop_unusable
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.dataset import DatasetSplits, Progress, select_images
from vitrail.data.sources.folds import fold_splits
from vitrail.data.sources.image_like import describe_value
from vitrail.data.sources.numbers import check_numbers
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError
from vitrail.recipes.recipe import Recipe
from vitrail.recipes.task_config import Classification, Regression, TaskConfig

MAX_LISTED = 5  # bad files, and duplicate groups


def open_training_data(recipe: Recipe, progress: Progress | None = None, data: Any = None) -> DatasetSplits:
    """Open a dataset with the split fractions of a recipe. ``data``: None means the one that the recipe names."""
    fractions = SplitFractions(recipe.val_fraction, recipe.test_fraction)
    source = recipe.data if data is None else data
    return open_dataset(
        source, columns=recipe.columns, split_fractions=fractions, labelled=recipe.task.labelled, progress=progress
    )


def check_training_data(data: DatasetSplits, recipe: Recipe, progress: Progress | None = None) -> DatasetReport:
    """Drop the unusable images of a dataset, of which there may be at most ``max_bad_fraction``, and those without a label.

    If the recipe trains on a fold of the dataset, the splits are those of the fold.
    """
    check_targets(data, recipe.task)
    if recipe.fold is not None:
        data = fold_splits(data, recipe.fold, recipe.val_fraction, progress)
    report = drop_unusable(data, progress, recipe.max_bad_fraction)
    return replace(report, data=_drop_unlabelled(report.data)) if recipe.task.labelled else report


def check_targets(data: DatasetSplits, task: TaskConfig) -> None:
    """Refuse a dataset without any class label for a task that leaves out images without one."""
    if isinstance(task, Regression):
        check_regression_targets(data)
    if isinstance(task, Classification) and data.train.label_sets is not None:
        raise VitrailError(f"{data.name} has several labels per image, which {task.name} cannot learn; leave the task out")
    if not task.labelled or not len(data.train) or data.train.has_label.any():
        return
    targets = data.train.targets
    first = None if isinstance(targets, np.ndarray) and targets.dtype == np.int64 else targets[0]  # -1 stands for no label
    if first is None:
        found, remedy = "no labels", "give pairs of image and label, or pretrain, which needs none"
    elif data.target_names:
        found, remedy = (
            f"numbers such as {np.ravel(first)[0]:g} as targets",
            "give text or whole numbers, or leave the task out",
        )
    else:
        found, remedy = f"{describe_value(first)} as the first target", "give text or whole numbers, such as target.argmax()"
    if not isinstance(task, Classification):
        remedy = f"set labelled = False in {type(task).__name__} if its targets are not classes"
    raise VitrailError(f"the targets of {task.name} must be class labels, and {data.name} has {found}; {remedy}")


def check_regression_targets(data: DatasetSplits) -> None:
    """Refuse a dataset without numbers, and name the first image whose number is missing."""
    if not data.target_names and len(data.train):
        numbers = data.train.number_names
        remedy = f"name one of them: target={numbers[0]}" if numbers else "name their column: target=COLUMN, or give floats"
        listed = f", though it can tell {', '.join(numbers)}" if numbers else ""
        raise VitrailError(f"the targets of {data.name} are not numbers{listed}; {remedy}")
    for split in data.splits.values():
        check_numbers(split)


def load_training_data(recipe: Recipe, progress: Progress | None = None) -> DatasetSplits:
    """Open the dataset of a recipe as it is trained on, without the images that are dropped."""
    return check_training_data(open_training_data(recipe, progress), recipe, progress).data


def data_warnings(report: DatasetReport) -> Iterator[str]:
    """Yield a warning for each bad file, and for leaks and label conflicts; of many, the first few."""
    for bad in report.bad[:MAX_LISTED]:
        yield f"skipped {bad.location}, which {bad.reason}"
    yield from _describe_duplicates(report.leaks, "in more than one split, so that scores are too high")
    yield from _describe_duplicates(report.conflicts, "under more than one label")
    if max(len(report.bad), len(report.leaks), len(report.conflicts)) > MAX_LISTED:
        yield f"these are only some of them; `vitrail data check {report.data.name}` lists all"
    if not len(report.data.validation):
        yield "no validation images: the weights are selected on the training images"


def _describe_duplicates(groups: tuple[DuplicateGroup, ...], problem: str) -> Iterator[str]:
    if groups:
        examples = "; ".join(" and ".join(group.locations[:2]) for group in groups[:MAX_LISTED])
        yield f"{len(groups):,} {'image is' if len(groups) == 1 else 'images are'} {problem}: {examples}"


def _drop_unlabelled(data: DatasetSplits) -> DatasetSplits:
    """Drop the images without a label; a test split without any is common."""
    unlabelled = {name: int((~part.has_label).sum()) for name, part in data.splits.items()}
    train, validation, test = (select_images(part, np.flatnonzero(part.has_label)) for part in data.splits.values())
    notes = tuple(f"{count:,} of {name} have no label and are skipped" for name, count in unlabelled.items() if count)
    return replace(data, train=train, validation=validation, test=test, notes=(*data.notes, *notes))
