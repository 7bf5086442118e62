"""YAML header of a model card, read by the Hugging Face hub. Torch-free."""

import json
from collections.abc import Mapping
from typing import Any, Literal

from vitrail.errors import printable
from vitrail.models.config import ModelConfig, ResNetConfig
from vitrail.tasks.detection_metrics import METRIC_TITLES
from vitrail.weights.catalogue import find_published

CardFormat = Literal["vitrail", "huggingface"]
METRIC_NAMES = {
    "top1": "top-1 accuracy",
    "top5": "top-5 accuracy",
    "knn": "20-NN accuracy",
    "ece": "calibration error (ECE)",
    "map": "mean average precision (macro)",
    "map_micro": "average precision over all labels (micro)",
    "map_weighted": "mean average precision, weighted by frequency",
    "f1_macro": "F1, mean over the labels (macro)",
    "f1_micro": "F1 over all labels (micro)",
    "f1_macro_at_0.5": "F1 at 0.5, mean over the labels",
    "f1_micro_at_0.5": "F1 at 0.5 over all labels",
    "hamming": "Hamming loss",
    "subset_accuracy": "images with all labels right",
    "coverage": "coverage, in labels",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "r2": "R²",
    "standardised_mae": "mean absolute error in standard deviations",
    "miou": "mean IoU",
    "dice": "mean Dice",
    "pixel_accuracy": "pixel accuracy",
    "boundary_iou": "mean boundary IoU",
    **METRIC_TITLES,
}
HUB_METRICS = {
    "top1": "accuracy",
    "top5": "accuracy",
    "map": "mean_average_precision",
    "f1_micro": "f1",
    "miou": "mean_iou",
    "ap": "mean_average_precision",
}  # by the hub's names


def yaml_header(metadata: Mapping[str, Any], config: ModelConfig, name: str, license: str | None, format: CardFormat) -> str:
    """Return the header; every value is JSON, so that no name can break the YAML."""
    recipe, dataset = section(metadata, "recipe"), section(metadata, "dataset")
    kind = "image-classification" if config.classes else "image-feature-extraction"
    task = _dense_task(metadata) or ("other" if predicted_numbers(metadata) else kind)
    method = [metadata["masking"]["method"], "self-supervised"] if metadata.get("masking") else []
    family = "resnet" if isinstance(config, ResNetConfig) else "vision-transformer"
    header: dict[str, Any] = {
        "library_name": "vitrail" if format == "vitrail" else "transformers",
        "pipeline_tag": task,
        "tags": ["vitrail", family, *method, *(["multi-label-classification"] if has_several_labels(metadata) else [])],
    }
    if license:
        header["license"] = license
    if str(dataset.get("name", "")).startswith("hf:"):
        header["datasets"] = [dataset["name"].removeprefix("hf:")]
    if base := _base_model(str(recipe.get("init_from", ""))):
        header["base_model"] = base
    split = reported_split(metadata)
    if has_head(metadata, config) and split and (types := _metric_types(metadata, split)):
        header["metrics"] = list(dict.fromkeys(types.values()))
        header["model-index"] = [_model_index(metadata, name, split)]
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in header.items()]
    return "\n".join(["---", *lines, "---"])


def _base_model(init_from: str) -> str | None:
    """Return the hub repository of the weights that were fine-tuned, if they came from one."""
    model = find_published(init_from)
    return model.repository if model else init_from.removeprefix("hf:") if init_from.startswith("hf:") else None


def _model_index(metadata: Mapping[str, Any], name: str, split: str) -> dict[str, Any]:
    """Return the metrics as the hub lists them."""
    dataset_name = str(section(metadata, "dataset").get("name", "unknown"))
    values = metadata["metrics"][split]
    types = _metric_types(metadata, split)
    metrics = [{"type": kind, "name": METRIC_NAMES[key], "value": values[key]} for key, kind in types.items()]
    dataset = {
        "name": printable(dataset_name),
        "type": dataset_name.removeprefix("hf:") if dataset_name.startswith("hf:") else "imagefolder",
    }
    task = _dense_task(metadata) or "image-classification"
    results = [{"task": {"type": task}, "dataset": {**dataset, "split": split}, "metrics": metrics}]
    return {"name": name.rpartition("/")[2], "results": results}


def _metric_types(metadata: Mapping[str, Any], split: str) -> dict[str, str]:
    """Return the metrics that the hub knows, with their names there."""
    return {key: kind for key, kind in HUB_METRICS.items() if is_worth_listing(key, metadata["metrics"][split], metadata)}


def _dense_task(metadata: Mapping[str, Any]) -> str | None:
    """Return the hub's name of a task that finds something in images; None of other tasks."""
    if predicts_masks(metadata):
        return "image-segmentation"
    return "object-detection" if predicts_boxes(metadata) else None


def has_several_labels(metadata: Mapping[str, Any]) -> bool:
    """Whether the model predicts several labels per image."""
    return bool(section(section(metadata, "recipe"), "task").get("kind") == "multi-label")


def predicts_masks(metadata: Mapping[str, Any]) -> bool:
    """Whether the model predicts a class for every pixel."""
    return bool(section(section(metadata, "recipe"), "task").get("kind") == "segmentation")


def predicts_boxes(metadata: Mapping[str, Any]) -> bool:
    """Whether the model predicts boxes."""
    return bool(section(section(metadata, "recipe"), "task").get("kind") == "detection")


def has_head(metadata: Mapping[str, Any], config: ModelConfig) -> bool:
    """Whether the model predicts something: by its own classifier, or by a head for masks or boxes."""
    return config.classes > 0 or predicts_masks(metadata) or predicts_boxes(metadata)


def is_worth_listing(key: str, values: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether a metric is worth listing: with five classes or fewer top-5 accuracy is always 100 %."""
    value = values.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return is_number and not (key == "top5" and metadata["model"].get("classes", 0) <= 5)


def reported_split(metadata: Mapping[str, Any]) -> str | None:
    """Return the split whose metrics say most about new images."""
    metrics = section(metadata, "metrics")
    return next((split for split in ("test", "validation") if isinstance(metrics.get(split), dict) and metrics[split]), None)


def predicted_numbers(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the numbers that a regression predicts; none for another task."""
    task = section(section(metadata, "recipe"), "task")
    return tuple(map(str, task.get("targets", ()))) if task.get("kind") == "regression" else ()


def section(metadata: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = metadata.get(name)
    return value if isinstance(value, dict) else {}
