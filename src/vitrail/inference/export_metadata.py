"""The metadata inside an exported file: the content of a model folder's ``vitrail.json``, without local paths."""

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any

from torch import nn

from vitrail.config import parse_value
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.inference.predictor import require_preprocess
from vitrail.models.build import get_encoder
from vitrail.models.config import ModelConfig
from vitrail.weights.load import parse_metadata
from vitrail.weights.model_folder import FORMAT_VERSION, strip_paths
from vitrail.weights.save import model_metadata

EXPORT_METADATA_KEY = "vitrail"  # the key in ONNX's metadata, and the name of the extra file in a program


@dataclass(frozen=True)
class ExportMetadata:
    """The metadata of an exported file."""

    config: ModelConfig
    preprocess: Preprocess
    class_names: tuple[str, ...] | None
    training: dict[str, Any]  # of its training
    export: dict[str, Any]  # how it was exported


def path_hash(path: str) -> str:
    """Return a hash of a path as it is written, by which an exported file recognises its dataset without revealing the path."""
    return hashlib.sha256(os.path.normpath(path).encode(errors="surrogateescape")).hexdigest()[:16]


def dump_metadata(model: nn.Module, **options: Any) -> str:
    """Serialise a model's metadata; the same model gives the same text on every machine."""
    encoder = get_encoder(model)
    require_preprocess(encoder)  # refuse a model without: the file would be useless
    metadata = model_metadata(model, encoder.config, {}) | strip_paths(encoder.metadata)
    dataset_name = encoder.metadata.get("dataset", {}).get("name", "")
    if strip_paths(dataset_name) != dataset_name:
        metadata["dataset"]["path_hash"] = path_hash(dataset_name)  # so that evaluating the file on it gives a warning
    options = {**options, "decoder": encoder is not model}
    return json.dumps({**metadata, "export": options}, sort_keys=True, allow_nan=False)


def parse_export_metadata(text: str, source: str) -> ExportMetadata:
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise VitrailError(f"the metadata of {source} cannot be read: {error}") from None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT_VERSION:
        raise VitrailError(f"{source} has a format that this version of Vitrail cannot read; export the model again")
    config: ModelConfig = parse_value(metadata.get("model"), ModelConfig, "model")
    preprocess, class_names, training = parse_metadata(metadata)
    if preprocess is None:
        raise VitrailError(f"{source} does not record its preprocessing; export the model again")
    recorded = metadata.get("export")
    export: dict[str, Any] = recorded if isinstance(recorded, dict) else {}
    classes = _decoder_classes(training) if export.get("decoder") and not config.classes else config.classes
    if class_names is not None and classes is not None and len(class_names) != classes:
        raise VitrailError(f"{source} must name all {classes} classes, got {len(class_names)} names; export the model again")
    return ExportMetadata(config, preprocess, class_names, training, export)


def _decoder_classes(training: dict[str, Any]) -> int | None:
    """Return the number of classes of a task that adds their outputs to the encoder; None if it has none."""
    recipe = training.get("recipe")
    task = recipe.get("task") if isinstance(recipe, dict) else None
    classes = task.get("classes") if isinstance(task, dict) else None
    return classes if isinstance(classes, int) else None
