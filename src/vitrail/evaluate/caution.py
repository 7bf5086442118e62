"""What a model has already seen of a data set: whose splits are meant, and what its numbers promise too much of."""

import hashlib
import os
from pathlib import Path
from typing import Any

from vitrail.data.sources.open import lessons, pictures
from vitrail.data.sources.source import Data, Progress
from vitrail.data.sources.split import Shares
from vitrail.models.build import Model


def opened(data: str | Path, model: Model, progress: Progress | None = None) -> Data:
    """With the shares of validation and test that the model was trained with, so that the splits are the same."""
    return pictures(data, shares=_shares(model), progress=progress)


def notes_of(data: Data) -> list[str]:
    """What there is to say of the data to somebody who does not train on it."""
    return [note for note in data.notes if note not in lessons(data.train)]


def cautions(model: Model, data: Data, split: str, by_default: bool = False) -> list[str]:
    """What was learned from, or chosen by, says little of other pictures."""
    own = _shares(model)
    taken = data.taken or own
    if not _trained_on(model, data):
        part = by_default and data.taken is not None and getattr(taken, split, 0) > 0
        return [f"the model was not trained on it, so more than its {split} can be evaluated: split all"] if part else []
    other = taken.validation != own.validation or (taken.test > 0 and taken.test != own.test)  # than in training
    if split == "test" and not (other and taken.test > 0):
        return []
    chosen = split == "validation" and not other
    done = "its weights were chosen by" if chosen else "the model has learned from"
    return [f"{done} pictures that are among these, so the numbers promise too much"]


def mark(path: str) -> str:
    """What tells one folder from others and does not say which it is: a file that travels knows its data by it."""
    return hashlib.sha256(os.path.abspath(path).encode(errors="surrogateescape")).hexdigest()[:16]


def _trained_on(model: Model, data: Data) -> bool:
    """By name, or because both names lead to the same place."""
    trained: Any = model.facts.get("data", {})
    name = str(trained.get("name", ""))
    if "mark" in trained:  # an exported file has but the last part of the name, and others may be called so
        return trained["mark"] in (mark(data.name), mark(os.path.realpath(data.name)))
    return name == data.name or (os.path.exists(name) and os.path.exists(data.name) and os.path.samefile(name, data.name))


def _shares(model: Model) -> Shares:
    """Of validation and test, as in the model's training."""
    recipe = model.facts.get("recipe", {})
    return Shares(**{name: recipe[name] for name in ("validation", "test") if isinstance(recipe.get(name), float | int)})
