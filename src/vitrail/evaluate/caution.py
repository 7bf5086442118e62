"""Train/test leakage: which splits the model was trained with, and warnings about scores on data that it has seen."""

import hashlib
import os
from pathlib import Path
from typing import Any

from vitrail.data.sources.open import lessons, pictures
from vitrail.data.sources.source import Data, Progress
from vitrail.data.sources.split import Shares
from vitrail.models.build import Model


def opened(data: str | Path, model: Model, progress: Progress | None = None) -> Data:
    """Open a dataset with the validation and test fractions of the model's training, so that the splits are the same."""
    return pictures(data, shares=_shares(model), progress=progress)


def notes_of(data: Data) -> list[str]:
    """Return the notes on a dataset that matter outside training."""
    return [note for note in data.notes if note not in lessons(data.train)]


def cautions(model: Model, data: Data, split: str, by_default: bool = False) -> list[str]:
    """Return warnings if the model was trained or selected on these images, whose scores would be optimistic."""
    own = _shares(model)
    taken = data.taken or own
    if not _trained_on(model, data):
        part = by_default and data.taken is not None and getattr(taken, split, 0) > 0
        return [f"the model was not trained on it, so more than its {split} can be evaluated: split all"] if part else []
    other = taken.validation != own.validation or (taken.test > 0 and taken.test != own.test)  # splits than in training
    if split == "test" and not (other and taken.test > 0):
        return []
    chosen = split == "validation" and not other
    done = "its weights were selected on" if chosen else "the model was trained on"
    return [f"{done} images that are among these, so the scores are optimistic"]


def mark(path: str) -> str:
    """Return a hash of a folder's path, by which an exported file recognises its dataset without revealing the path."""
    return hashlib.sha256(os.path.abspath(path).encode(errors="surrogateescape")).hexdigest()[:16]


def _trained_on(model: Model, data: Data) -> bool:
    """Return whether the model was trained on this dataset: by name, or because both names lead to the same path."""
    trained: Any = model.facts.get("dataset", {})
    name = str(trained.get("name", ""))
    if "path_hash" in trained:  # an exported file has only the last part of the name, which is not unique
        return trained["path_hash"] in (mark(data.name), mark(os.path.realpath(data.name)))
    return name == data.name or (os.path.exists(name) and os.path.exists(data.name) and os.path.samefile(name, data.name))


def _shares(model: Model) -> Shares:
    """Return the validation and test fractions of the model's training."""
    recipe = model.facts.get("recipe", {})
    return Shares(**{name: recipe[name] for name in ("validation", "test") if isinstance(recipe.get(name), float | int)})
