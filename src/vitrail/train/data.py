"""The pictures that a recipe means: opened, split, read once, and what is wrong with them told. Needs no torch."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from vitrail.data.check import Checked, Copies, usable
from vitrail.data.sources.open import pictures
from vitrail.data.sources.source import Data, Progress, chosen
from vitrail.data.sources.split import Shares
from vitrail.train.recipe import Recipe

NAMED = 5  # bad files, and pairs of copies


def opened(recipe: Recipe, progress: Progress | None = None) -> Checked:
    """Without what cannot be used, which must not be more than is tolerated."""
    labelled = recipe.masking is None
    shares = Shares(recipe.validation, recipe.test)
    data = pictures(recipe.data, shares=shares, labelled=labelled, progress=progress)
    checked = usable(data, progress, recipe.tolerated)
    return replace(checked, data=_labelled(checked.data)) if labelled else checked


def faults(checked: Checked) -> Iterator[str]:
    """A sentence for every bad file and for what makes scores too good or labels wrong; of many the first few."""
    for bad in checked.bad[:NAMED]:
        yield f"left out {bad.where}, which {bad.reason}"
    yield from _copied(checked.leaks, "in more than one split, so that scores are too good")
    yield from _copied(checked.conflicts, "under more than one label")
    if max(len(checked.bad), len(checked.leaks), len(checked.conflicts)) > NAMED:
        yield f"these are some of them; `vitrail data check {checked.data.name}` names all"
    if not len(checked.data.validation):
        yield "no picture is for validation: the weights are chosen on those that they learn from"


def _copied(groups: tuple[Copies, ...], what: str) -> Iterator[str]:
    if groups:
        few = "; ".join(" and ".join(group.where[:2]) for group in groups[:NAMED])
        yield f"{len(groups):,} {'picture is' if len(groups) == 1 else 'pictures are'} {what}: {few}"


def _labelled(data: Data) -> Data:
    """A test split without labels is common, and neither learns nor scores anything."""
    bare = {name: int((part.labels < 0).sum()) for name, part in data.splits.items()}
    train, validation, test = (chosen(part, np.flatnonzero(part.labels >= 0)) for part in data.splits.values())
    notes = tuple(f"{count:,} of {name} have no label and are left out" for name, count in bare.items() if count)
    return replace(data, train=train, validation=validation, test=test, notes=(*data.notes, *notes))
