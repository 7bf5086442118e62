"""A model on disk: a folder with ``model.safetensors`` and its metadata ``vitrail.json``. Torch-free."""

import json
from pathlib import Path
from typing import Any

from vitrail.config import read
from vitrail.errors import VitrailError
from vitrail.models.settings import ModelConfig

WEIGHTS = "model.safetensors"
FACTS = "vitrail.json"
DECODER = "decoder.safetensors"  # of a model that was pre-trained with one
FORMAT = 1
TRAINING = ("recipe", "dataset", "metrics")  # optional training metadata, each a JSON object
LARGEST_JSON = 16 * 2**20


def is_model(path: Path) -> bool:
    try:
        return (path / FACTS).is_file()
    except OSError:  # the name is too long for a file
        return False


def best_of(path: Path) -> Path:
    """Return the best weights of a run, which is recognised by its recipe; any other path is returned unchanged."""
    if not path.is_dir() or is_model(path) or not (path / "recipe.json").is_file():
        return path
    if not is_model(path / "best"):
        raise VitrailError(f"{path} is a run that has no weights yet; they are saved at its first evaluation")
    return path / "best"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from an untrusted file."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise VitrailError(f"{path} has {path.stat().st_size:,} bytes, too many for metadata")
        content = json.loads(path.read_bytes())
    except VitrailError:
        raise
    except (ValueError, RecursionError, OSError) as error:
        raise VitrailError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise VitrailError(f"{path} must hold an object, got {type(content).__name__}")
    return content


def read_facts(path: Path) -> dict[str, Any]:
    if not is_model(path):
        raise VitrailError(f"{path} is not a model folder: it has no {FACTS}")
    facts = read_json(path / FACTS)
    if facts.get("format") != FORMAT:
        raise VitrailError(f"{path / FACTS} has format {facts.get('format')!r}, this version of Vitrail reads format {FORMAT}")
    return facts


def training_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the training part of the metadata: recipe, dataset and metrics, as far as they are recorded."""
    return {name: facts[name] for name in TRAINING if isinstance(facts.get(name), dict)}


def read_config(path: Path) -> ModelConfig:
    config: ModelConfig = read(read_facts(path).get("model"), ModelConfig, "model")
    return config
