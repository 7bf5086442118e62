"""The dataset of a recipe: opened, split, checked for unreadable files, duplicates and leaks. Torch-free."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from vitrail.data.check import Checked, Copies, usable
from vitrail.data.sources.open import pictures
from vitrail.data.sources.source import Data, Progress, chosen
from vitrail.data.sources.split import Shares
from vitrail.train.recipe import Recipe

NAMED = 5  # bad files, and duplicate groups


def opened(recipe: Recipe, progress: Progress | None = None) -> Checked:
    """Open the dataset of a recipe without its unusable images, of which there may be at most ``max_bad_fraction``."""
    labelled = recipe.masking is None
    shares = Shares(recipe.validation, recipe.test)
    data = pictures(recipe.data, shares=shares, labelled=labelled, progress=progress)
    checked = usable(data, progress, recipe.tolerated)
    return replace(checked, data=_labelled(checked.data)) if labelled else checked


def faults(checked: Checked) -> Iterator[str]:
    """Yield a warning for each bad file, and for leaks and label conflicts; of many, the first few."""
    for bad in checked.bad[:NAMED]:
        yield f"skipped {bad.where}, which {bad.reason}"
    yield from _copied(checked.leaks, "in more than one split, so that scores are too high")
    yield from _copied(checked.conflicts, "under more than one label")
    if max(len(checked.bad), len(checked.leaks), len(checked.conflicts)) > NAMED:
        yield f"these are only some of them; `vitrail data check {checked.data.name}` lists all"
    if not len(checked.data.validation):
        yield "no validation images: the weights are selected on the training images"


def _copied(groups: tuple[Copies, ...], what: str) -> Iterator[str]:
    if groups:
        few = "; ".join(" and ".join(group.where[:2]) for group in groups[:NAMED])
        yield f"{len(groups):,} {'image is' if len(groups) == 1 else 'images are'} {what}: {few}"


def _labelled(data: Data) -> Data:
    """Drop the images without a label; a test split without any is common."""
    bare = {name: int((part.labels < 0).sum()) for name, part in data.splits.items()}
    train, validation, test = (chosen(part, np.flatnonzero(part.labels >= 0)) for part in data.splits.values())
    notes = tuple(f"{count:,} of {name} have no label and are skipped" for name, count in bare.items() if count)
    return replace(data, train=train, validation=validation, test=test, notes=(*data.notes, *notes))
