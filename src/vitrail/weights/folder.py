"""A model on disk, without torch: a folder with ``model.safetensors`` and ``vitrail.json``, which says what it is."""

import json
from pathlib import Path
from typing import Any

from vitrail.config import read
from vitrail.errors import VitrailError
from vitrail.models.variants import ModelConfig

WEIGHTS = "model.safetensors"
FACTS = "vitrail.json"
FORMAT = 1


def is_model(path: Path) -> bool:
    try:
        return (path / FACTS).is_file()
    except OSError:  # a name longer than any file's
        return False


def read_facts(path: Path) -> dict[str, Any]:
    file = path / FACTS
    try:
        facts = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise VitrailError(f"{path} is no model folder: it has no {FACTS}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise VitrailError(f"{file} cannot be read: {error}") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        found = facts.get("format") if isinstance(facts, dict) else None
        raise VitrailError(f"{file} has format {found!r}, this version of Vitrail reads format {FORMAT}")
    return facts


def read_config(path: Path) -> ModelConfig:
    config: ModelConfig = read(read_facts(path).get("model"), ModelConfig, "model")
    return config
