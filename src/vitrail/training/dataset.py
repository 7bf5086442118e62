"""The dataset of a recipe: opened, split, checked for unreadable files, duplicates and leaks. Torch-free."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from vitrail.data.dataset_check import DatasetReport, DuplicateGroup, drop_unusable
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.dataset import DatasetSplits, Progress, select_images
from vitrail.data.sources.open import open_dataset
from vitrail.recipes.recipe import Recipe

MAX_LISTED = 5  # bad files, and duplicate groups


def open_training_data(recipe: Recipe, progress: Progress | None = None) -> DatasetSplits:
    """Open the dataset of a recipe, with its split fractions."""
    fractions = SplitFractions(recipe.val_fraction, recipe.test_fraction)
    return open_dataset(recipe.data, split_fractions=fractions, labelled=recipe.task.labelled, progress=progress)


def check_training_data(data: DatasetSplits, recipe: Recipe, progress: Progress | None = None) -> DatasetReport:
    """Drop the unusable images of a dataset, of which there may be at most ``max_bad_fraction``, and those without a label."""
    report = drop_unusable(data, progress, recipe.max_bad_fraction)
    return replace(report, data=_drop_unlabelled(report.data)) if recipe.task.labelled else report


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
    unlabelled = {name: int((part.labels < 0).sum()) for name, part in data.splits.items()}
    train, validation, test = (select_images(part, np.flatnonzero(part.labels >= 0)) for part in data.splits.values())
    notes = tuple(f"{count:,} of {name} have no label and are skipped" for name, count in unlabelled.items() if count)
    return replace(data, train=train, validation=validation, test=test, notes=(*data.notes, *notes))
