"""YAML header of a model card, read by the Hugging Face hub. Torch-free."""

import json
from collections.abc import Mapping
from typing import Any, Literal

from vitrail.errors import printable
from vitrail.models.settings import ModelConfig, ResNetConfig

Format = Literal["vitrail", "huggingface"]
METRICS = {"top1": "top-1 accuracy", "top5": "top-5 accuracy", "knn": "20-NN accuracy", "ece": "calibration error (ECE)"}


def head(facts: Mapping[str, Any], config: ModelConfig, name: str, license: str | None, format: Format) -> str:
    """Return the header; every value is JSON, so that no name can break the YAML."""
    recipe, data = part(facts, "recipe"), part(facts, "dataset")
    kind = "image-classification" if config.classes else "image-feature-extraction"
    method = [facts["masking"]["method"], "self-supervised"] if facts.get("masking") else []
    family = "resnet" if isinstance(config, ResNetConfig) else "vision-transformer"
    header: dict[str, Any] = {
        "library_name": "vitrail" if format == "vitrail" else "transformers",
        "pipeline_tag": kind,
        "tags": ["vitrail", family, *method],
    }
    if license:
        header["license"] = license
    if str(data.get("name", "")).startswith("hf:"):
        header["datasets"] = [data["name"].removeprefix("hf:")]
    if str(recipe.get("start", "")).startswith("hf:"):
        header["base_model"] = recipe["start"].removeprefix("hf:")
    split = reported(facts)
    if config.classes and split and "top1" in facts["metrics"][split]:
        header["metrics"] = ["accuracy"]
        header["model-index"] = [_index(facts, name, split)]
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in header.items()]
    return "\n".join(["---", *lines, "---"])


def _index(facts: Mapping[str, Any], name: str, split: str) -> dict[str, Any]:
    """Return the metrics as the hub lists them."""
    data = str(part(facts, "dataset").get("name", "unknown"))
    found = facts["metrics"][split]
    metrics = [
        {"type": "accuracy", "name": METRICS[key], "value": found[key]} for key in ("top1", "top5") if worth(key, found, facts)
    ]
    where = {"name": printable(data), "type": data.removeprefix("hf:") if data.startswith("hf:") else "imagefolder"}
    results = [{"task": {"type": "image-classification"}, "dataset": {**where, "split": split}, "metrics": metrics}]
    return {"name": name.rpartition("/")[2], "results": results}


def worth(key: str, found: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Whether a metric is worth listing: with five classes or fewer top-5 accuracy is always 100 %."""
    number = isinstance(found.get(key), int | float) and not isinstance(found.get(key), bool)
    return number and not (key == "top5" and facts["model"].get("classes", 0) <= 5)


def reported(facts: Mapping[str, Any]) -> str | None:
    """Return the split whose metrics say most about new images."""
    score = part(facts, "metrics")
    return next((split for split in ("test", "validation") if isinstance(score.get(split), dict) and score[split]), None)


def part(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = facts.get(name)
    return part if isinstance(part, dict) else {}
