"""What travels inside an exported file, so that it needs no other: the words of a model folder's ``vitrail.json``, without
the names of anybody's folders."""

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

NOTE = "vitrail"  # the key in ONNX's metadata, and the name of the file inside a program


@dataclass(frozen=True)
class Told:
    """What an exported file says of itself."""

    config: ModelConfig
    preprocess: Preprocess
    labels: tuple[str, ...] | None
    facts: dict[str, Any]  # of its training
    export: dict[str, Any]  # how it was exported

    @property
    def output(self) -> str:
        return output_of(self.config)


def output_of(config: ModelConfig) -> str:
    """What the first output is called: a model without a classifier answers with its features."""
    return "logits" if config.classes else "features"


def note(model: Model, **export: Any) -> str:
    """The same model makes the same words on every machine."""
    preprocess_of(model)  # or a sentence: without it nobody could use the file
    facts = facts_of(model, model.config, {}) | {name: _homeless(value) for name, value in model.facts.items()}
    trained = model.facts.get("data", {}).get("name", "")
    if os.path.isabs(trained):
        facts["data"]["mark"] = mark(trained)  # so that whoever evaluates the file on it is told
    return json.dumps({**facts, "export": export}, sort_keys=True, allow_nan=False)


def read_told(text: str, source: str) -> Told:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise VitrailError(f"what {source} says of itself cannot be read: {error}") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise VitrailError(f"{source} is of a format that this version of Vitrail cannot read; export the model again")
    config: ModelConfig = read_as(facts.get("model"), ModelConfig, "model")
    preprocess, labels, trained = travelling(facts)
    if preprocess is None:
        raise VitrailError(f"{source} does not say how its pictures are made ready; export the model again")
    if labels is not None and len(labels) != config.classes:
        raise VitrailError(f"{source} names {len(labels)} of its {config.classes} classes; export the model again")
    export = facts.get("export")
    return Told(config, preprocess, labels, trained, export if isinstance(export, dict) else {})


def _homeless(value: Any) -> Any:
    """Of a path that is of use on one machine alone, its last name."""
    if isinstance(value, dict):
        return {name: _homeless(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_homeless(item) for item in value]
    if isinstance(value, str) and (value.startswith(("/", "~")) or PureWindowsPath(value).is_absolute()):
        return PureWindowsPath(value).name if "\\" in value else PurePosixPath(value).name
    return value
