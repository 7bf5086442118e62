"""The metadata inside an exported file: the content of a model folder's ``vitrail.json``, without local paths."""

import json
import os
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from vitrail.config import read as read_as
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.evaluate.caution import mark
from vitrail.evaluate.features import preprocess_of
from vitrail.models.build import Model
from vitrail.models.settings import ModelConfig
from vitrail.weights.checkpoint import facts_of
from vitrail.weights.folder import FORMAT
from vitrail.weights.load import travelling

NOTE = "vitrail"  # the key in ONNX's metadata, and the name of the extra file in a program


@dataclass(frozen=True)
class Told:
    """The metadata of an exported file."""

    config: ModelConfig
    preprocess: Preprocess
    labels: tuple[str, ...] | None
    facts: dict[str, Any]  # of its training
    export: dict[str, Any]  # how it was exported

    @property
    def output(self) -> str:
        return output_of(self.config)


def output_of(config: ModelConfig) -> str:
    """Return the name of the first output: logits, or features without a classifier."""
    return "logits" if config.classes else "features"


def note(model: Model, **export: Any) -> str:
    """Serialise a model's metadata; the same model gives the same text on every machine."""
    preprocess_of(model)  # refuse a model without: the file would be useless
    facts = facts_of(model, model.config, {}) | {name: _homeless(value) for name, value in model.facts.items()}
    trained = model.facts.get("dataset", {}).get("name", "")
    if os.path.isabs(trained):
        facts["dataset"]["path_hash"] = mark(trained)  # so that evaluating the file on it gives a warning
    return json.dumps({**facts, "export": export}, sort_keys=True, allow_nan=False)


def read_told(text: str, source: str) -> Told:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise VitrailError(f"the metadata of {source} cannot be read: {error}") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise VitrailError(f"{source} has a format that this version of Vitrail cannot read; export the model again")
    config: ModelConfig = read_as(facts.get("model"), ModelConfig, "model")
    preprocess, labels, trained = travelling(facts)
    if preprocess is None:
        raise VitrailError(f"{source} does not record its preprocessing; export the model again")
    if labels is not None and len(labels) != config.classes:
        raise VitrailError(f"{source} must name all {config.classes} classes, got {len(labels)} names; export the model again")
    export = facts.get("export")
    return Told(config, preprocess, labels, trained, export if isinstance(export, dict) else {})


def _homeless(value: Any) -> Any:
    """Replace absolute and home paths by their last component."""
    if isinstance(value, dict):
        return {name: _homeless(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_homeless(item) for item in value]
    if isinstance(value, str) and (value.startswith(("/", "~")) or PureWindowsPath(value).is_absolute()):
        return PureWindowsPath(value).name if "\\" in value else PurePosixPath(value).name
    return value
