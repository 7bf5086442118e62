"""A model on disk: a folder with ``model.safetensors`` and its metadata ``vitrail.json``. Torch-free."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.config import parse_value
from vitrail.errors import VitrailError
from vitrail.models.config import ModelConfig

WEIGHTS_FILE = "model.safetensors"
METADATA_FILE = "vitrail.json"
DECODER_FILE = "decoder.safetensors"  # of a model that was pre-trained with one
FOLDS_FILE = "folds.json"  # in the folder of a cross-validation
FORMAT_VERSION = 1
TRAINING_KEYS = ("recipe", "dataset", "metrics", "task_state")  # optional training metadata, each a JSON object
RUN_PARTS = ("best", "last", WEIGHTS_FILE)  # inside a run, whose name precedes them
MAX_JSON_BYTES = 16 * 2**20


def is_model_folder(path: Path) -> bool:
    try:
        return (path / METADATA_FILE).is_file()
    except OSError:  # the name is too long for a file
        return False


def resolve_run(path: Path) -> Path:
    """Return the best weights of a run, which is recognised by its recipe; any other path is returned unchanged."""
    if not path.is_dir() or is_model_folder(path) or not (path / "recipe.json").is_file():
        return path
    if (path / FOLDS_FILE).is_file():
        raise VitrailError(
            f"{path} is a cross-validation, which has a model per fold; name one, such as {path / 'fold-1'}, or train one "
            f"without folds: vitrail train --recipe-from {path}"
        )
    if not is_model_folder(path / "best"):
        raise VitrailError(f"{path} is a run that has no weights yet; they are saved at its first evaluation")
    return path / "best"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from an untrusted file."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise VitrailError(f"{path} has {path.stat().st_size:,} bytes, too many for metadata")
        content = json.loads(path.read_bytes())
    except VitrailError:
        raise
    except (ValueError, RecursionError, OSError) as error:
        raise VitrailError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise VitrailError(f"{path} must hold an object, got {type(content).__name__}")
    return content


def read_metadata(path: Path) -> dict[str, Any]:
    if not is_model_folder(path):
        raise VitrailError(f"{path} is not a model folder: it has no {METADATA_FILE}")
    metadata = read_json(path / METADATA_FILE)
    if metadata.get("format") != FORMAT_VERSION:
        raise VitrailError(
            f"{path / METADATA_FILE} has format {metadata.get('format')!r}, this version of Vitrail reads "
            f"format {FORMAT_VERSION}"
        )
    return metadata


def training_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the training part of the metadata: recipe, dataset, metrics and the task's state, as far as they are recorded."""
    return {name: metadata[name] for name in TRAINING_KEYS if isinstance(metadata.get(name), dict)}


def task_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the training metadata that says what the outputs of the model mean: its task and the task's state."""
    task = metadata["recipe"].get("task") if isinstance(metadata.get("recipe"), dict) else None
    if task is None:
        return {}
    state = {"task_state": metadata["task_state"]} if "task_state" in metadata else {}
    return {"recipe": {"task": task}, **state}


def strip_paths(value: Any) -> Any:
    """Strip local paths from metadata that leaves this machine: of every path the last component is left."""
    if isinstance(value, dict):
        return {name: strip_paths(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [strip_paths(inner) for inner in value]
    if not isinstance(value, str) or value.startswith("hf:"):
        return value
    names = [name for name in re.split(r"[/\\]+", value) if name not in ("", ".", "..", "~")]
    while len(names) > 1 and names[-1] in RUN_PARTS:
        names.pop()
    return names[-1] if names else ""


def read_config(path: Path) -> ModelConfig:
    config: ModelConfig = parse_value(read_metadata(path).get("model"), ModelConfig, "model")
    return config
