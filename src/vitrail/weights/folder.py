"""A model on disk, without torch: a folder with ``model.safetensors`` and ``vitrail.json``, which says what it is."""

import json
from pathlib import Path
from typing import Any

from vitrail.config import read
from vitrail.errors import VitrailError
from vitrail.models.settings import ModelConfig

WEIGHTS = "model.safetensors"
FACTS = "vitrail.json"
DECODER = "decoder.safetensors"  # beside an encoder that was pre-trained with one
FORMAT = 1
TRAINING = ("recipe", "data", "score")  # what a model may know of its training, each an object
LARGEST_JSON = 16 * 2**20


def is_model(path: Path) -> bool:
    try:
        return (path / FACTS).is_file()
    except OSError:  # a name longer than any file's
        return False


def best_of(path: Path) -> Path:
    """Of a run's folder, which is known by its recipe, the best weights; anything else is itself."""
    if not path.is_dir() or is_model(path) or not (path / "recipe.json").is_file():
        return path
    if not is_model(path / "best"):
        raise VitrailError(f"{path} is a run without weights yet; they come with its first evaluation")
    return path / "best"


def read_json(path: Path) -> dict[str, Any]:
    """An object out of a file that may come from anybody."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise VitrailError(f"{path} has {path.stat().st_size:,} bytes, too many for settings")
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
        raise VitrailError(f"{path} is no model folder: it has no {FACTS}")
    facts = read_json(path / FACTS)
    if facts.get("format") != FORMAT:
        raise VitrailError(f"{path / FACTS} has format {facts.get('format')!r}, this version of Vitrail reads format {FORMAT}")
    return facts


def training_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Which recipe on which data came to which score, as far as the file says."""
    return {name: facts[name] for name in TRAINING if isinstance(facts.get(name), dict)}


def read_config(path: Path) -> ModelConfig:
    config: ModelConfig = read(read_facts(path).get("model"), ModelConfig, "model")
    return config
