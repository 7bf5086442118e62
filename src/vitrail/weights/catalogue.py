"""Published models by name, such as ``dinov2-s14``: found, searched and told. Torch-free; ``published_models`` has the rows."""

import os
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError, did_you_mean
from vitrail.models.cost import cost
from vitrail.weights.published_models import FAMILIES, PublishedModel

CATALOGUE = {model.name: model for family in FAMILIES for model in family.models()}


def find_published(source: str | Path) -> PublishedModel | None:
    """Return the model of this name, unless a file or folder has it."""
    model = CATALOGUE.get(str(source).lower())
    return None if model is None or path_exists(source) else model


def path_exists(source: str | Path) -> bool:
    return os.path.exists(os.path.expanduser(source))  # False also for what cannot be a path


def is_available(source: str) -> bool:
    """Return whether weights are a path that exists, a published model, or on the hub."""
    return source.startswith("hf:") or path_exists(source) or find_published(source) is not None


def check_name(source: str | Path) -> None:
    """Refuse what is neither a path nor the name of a model but close to such a name."""
    text = str(source)
    is_name = text and not path_exists(text) and not Path(text).suffix and "/" not in text and "\\" not in text
    hint = did_you_mean(text[:80], CATALOGUE) if is_name else ""
    if hint:
        raise VitrailError(f"{text} does not exist and is no name of a published model{hint} `vitrail models` lists them")


def search_models(text: str | None = None) -> list[PublishedModel]:
    """Return the models in whose row every word of the text occurs, whatever its case."""
    words = (text or "").lower().split()
    return [model for model in CATALOGUE.values() if all(word in _searched(model) for word in words)]


def _searched(model: PublishedModel) -> str:
    return " ".join((model.name, model.variant, model.repository, model.trained_on, model.licence)).lower()


def model_row(model: PublishedModel) -> dict[str, Any]:
    """Return what ``vitrail models --json`` says of a model; parameters and MACs are computed from its config."""
    total = cost(model.config)
    return {
        "name": model.name,
        "parameters": total.parameters,
        "macs": total.macs,
        "image": model.image,
        "classes": model.classes,
        "licence": model.licence,
        "trained_on": model.trained_on,
        "repository": model.repository,
    }
