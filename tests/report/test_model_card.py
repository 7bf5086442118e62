"""A model card states the metadata of the model, in a form that the hub's own parser reads, and nothing else."""

import re
from typing import Any

import pytest

from tests.small_models import small_vit
from vitrail.config import to_dict
from vitrail.data.preprocess import Preprocess
from vitrail.models.masked_autoencoders import build_masked_model
from vitrail.models.masking_config import Masking
from vitrail.recipes.context import RecipeContext
from vitrail.recipes.registry import get_recipe
from vitrail.recipes.task_config import Detection, Segmentation
from vitrail.report.model_card import model_card, wilson_interval
from vitrail.weights.save import model_metadata

METRICS = {"step": 5, "validation": {"top1": 0.75, "loss": 0.5}, "test": {"top1": 0.5, "top5": 0.9, "loss": 1.25}}
RECIPE: dict[str, Any] = {
    "name": "small",
    "data": "hf:me/data",
    "init_from": "hf:other/start",
    "steps": 1234,
    "batch_size": 32,
    "task": {"kind": "classification", "loss": "softmax", "label_smoothing": 0.1},
    "optim": {"name": "muon", "lr": 0.002, "weight_decay": 0.05},
    "schedule": {"kind": "cosine", "warmup_steps": 50},
    "seed": 3,
}


def build_metadata(class_names: tuple[str, ...] | None = None, **more: Any) -> dict[str, Any]:
    model = small_vit(classes=7)
    model.preprocess = Preprocess(model.config.image, crop_pct=0.8, mean=(0.1, 0.2, 0.3))
    model.class_names = class_names
    return model_metadata(model, model.config, more)


def header(text: str) -> dict[str, Any]:
    """Return the header as parsed by the hub's own client."""
    pytest.importorskip("huggingface_hub")
    from huggingface_hub import ModelCard

    data: Any = ModelCard(text).data
    return dict(data.to_dict())


def test_the_header_is_what_the_hub_reads() -> None:
    whole = build_metadata(recipe=RECIPE, dataset={"name": "hf:me/data", "fingerprint": "f" * 64}, metrics=METRICS)
    actual = header(model_card(whole, "me/mine", "apache-2.0"))
    assert actual["license"] == "apache-2.0"
    assert actual["library_name"] == "vitrail"
    assert actual["pipeline_tag"] == "image-classification"
    assert actual["datasets"] == ["me/data"]
    assert actual["base_model"] == "other/start"
    (entry,) = actual["model-index"]
    (result,) = entry["results"]
    assert result["dataset"] == {"name": "hf:me/data", "type": "me/data", "split": "test"}
    assert [(metric["name"], metric["value"]) for metric in result["metrics"]] == [
        ("top-1 accuracy", 0.5),
        ("top-5 accuracy", 0.9),
    ]


def test_several_labels_have_their_metrics_and_thresholds() -> None:
    metrics = {"step": 5, "test": {"loss": 3.5, "map": 0.625, "map_micro": 0.75, "f1_micro": 0.5, "coverage": 3.25}}
    names = tuple(f"tag {number}" for number in range(7))
    state = {"thresholds": [0.1 * (number + 1) for number in range(7)]}
    whole = build_metadata(
        names, recipe={**RECIPE, "task": {"kind": "multi-label", "loss": "sigmoid"}}, metrics=metrics, task_state=state
    )
    measured = [{"name": name, "ap": 0.5, "support": 3 * number} for number, name in enumerate(names)]
    text = model_card(whole, "me/tags", class_metrics=measured)
    actual = header(text)
    assert actual["pipeline_tag"] == "image-classification"
    assert "multi-label-classification" in actual["tags"]
    assert actual["metrics"] == ["mean_average_precision", "f1"]
    (result,) = actual["model-index"][0]["results"]
    assert [(metric["type"], metric["value"]) for metric in result["metrics"]] == [
        ("mean_average_precision", 0.625),
        ("f1", 0.5),
    ]
    assert "It predicts which of 7 labels an image has: several, one or none." in text
    assert "| test | mean average precision (macro) | 62.50% |" in text
    assert "| test | coverage, in labels | 3.2500 |" in text
    assert "| `tag 0` | 0.100 | | |" in text  # no image has it, so nothing was measured
    assert "| `tag 2` | 0.300 | 50.0% | 6 |" in text
    assert "| `tag 2` | 0.300 |\n" in model_card(whole, "me/tags")


def test_a_name_cannot_break_the_header_or_the_page() -> None:
    evil = 'x"\n---\nlicense: mit\n# <b> `|` \x1b[31m: \u2028'
    whole = build_metadata(
        (evil, *"abcdef"), recipe={**RECIPE, "data": evil}, dataset={"name": evil, "fingerprint": "f"}, metrics=METRICS
    )
    text = model_card(whole, "me/mine")
    assert "license" not in header(text)
    assert text.count("\n---\n") == 1
    assert "\x1b" not in text
    assert re.search(r"^# <b>", text, re.MULTILINE) is None


def test_every_metric_is_listed_with_its_split() -> None:
    text = model_card(build_metadata(metrics=METRICS), "me/mine", num_images={"test": 200})
    low, high = wilson_interval(0.5, 200)
    assert f"| test, 200 images | top-1 accuracy | 50.00% (95 % interval {low:.1%} to {high:.1%}) |" in text
    assert "| validation | top-1 accuracy | 75.00% |" in text
    assert "| test, 200 images | loss | 1.2500 |" in text
    assert "optimistic" in text


def test_what_is_not_recorded_is_not_made_up() -> None:
    """A weight file without metadata."""
    text = model_card(build_metadata(), "me/mine")
    assert "These weights come without metrics" in text
    assert "## Training\n\nNot recorded." in text
    assert "whose names are not recorded" in text
    assumed = ("3 heads (as published; heads= overrides it)", "a grid of 2x3 (grid= overrides it)")
    with_assumptions = model_card(build_metadata(), "me/mine", assumed=assumed)
    assert "these settings were assumed: 3 heads (as published); a grid of 2x3." in with_assumptions
    assert "assumed" not in text
    assert "model-index" not in header(text)
    assert "license" not in header(text)
    only = model_card(build_metadata(metrics={"step": 1, "train": {"top1": 1.0}}), "me/mine")
    assert "says nothing about new images" in only
    assert "model-index" not in header(only)


def test_a_model_without_classes_is_described_as_a_feature_extractor() -> None:
    model = build_masked_model(small_vit(classes=0), Masking("masked-patch", target="mean-colour"))
    text = model_card(
        model_metadata(model, model.config, {"metrics": {"step": 3, "validation": {"loss": 2.5, "knn": 0.25}}}), "me/mine"
    )
    result = header(text)
    assert result["pipeline_tag"] == "image-feature-extraction"
    assert set(result["tags"]) >= {"self-supervised", "masked-patch"}
    assert "vitrail finetune hf:me/mine DATA" in text
    assert "| validation | 20-NN accuracy | 25.00% |" in text
    assert "## Classes" not in text


@pytest.mark.parametrize("method", [None, "mae"])
def test_the_training_table_is_filled_from_a_recipe(method: str | None) -> None:
    recipe = get_recipe(method or "small", RecipeContext())
    whole = build_metadata(recipe=to_dict(recipe), dataset={"name": "fashion", "fingerprint": "f" * 64})
    table = model_card(whole, "me/mine").partition("## Training")[2].partition("##")[0]
    assert "None" not in table
    assert "unknown" not in table
    assert f"| {recipe.steps:,} of {recipe.batch_size:,} images |" in table
    assert f"{recipe.optim.name}, learning rate {recipe.optim.lr}" in table
    assert f"{recipe.schedule.kind}, {recipe.schedule.warmup_steps:,} steps of warmup" in table
    loss = "label smoothing 0.0" if method is None else "pixels of the masked patches, 75% of an image"
    assert loss in table


def test_its_python_snippets_compile_and_its_commands_exist() -> None:
    from tests.cli.commands import COMMANDS

    for format in ("vitrail", "huggingface"):
        text = model_card(build_metadata(), "me/mine", format=format)
        for snippet in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            compile(snippet, "card", "exec")
        for line in re.findall(r"^vitrail (\w+)", text, re.MULTILINE):
            assert line in COMMANDS


def test_top_5_accuracy_of_five_classes_is_not_listed() -> None:
    model = small_vit(classes=4)
    text = model_card(model_metadata(model, model.config, {"metrics": METRICS}), "me/mine")
    assert "top-5" not in text


def test_a_segmentation_model_is_described_by_its_classes_of_pixels() -> None:
    encoder = small_vit(classes=0)
    encoder.preprocess, encoder.class_names = Preprocess(encoder.config.image, 1.0, "stretch"), ("sky", "tr|ee")
    scores = {"miou": 0.5, "dice": 0.6, "pixel_accuracy": 0.7, "boundary_iou": 0.4, "loss": 1.25}
    whole = model_metadata(encoder, encoder.config, {
        "recipe": {**RECIPE, "task": {"kind": "segmentation", "classes": 2}}, "metrics": {"step": 5, "test": scores},
    })  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"name": "sky", "iou": 0.25, "interval": [0.125, 0.5]},
        {"name": "tr|ee", "iou": "NaN", "interval": ["NaN", "NaN"]},
    ]
    text = model_card(whole, "me/mine", num_images={"test": 12}, class_metrics=rows)
    actual = header(text)
    assert actual["pipeline_tag"] == "image-segmentation"
    (result,) = actual["model-index"][0]["results"]
    assert result["task"] == {"type": "image-segmentation"}
    assert result["metrics"] == [{"type": "mean_iou", "name": "mean IoU", "value": 0.5}]
    assert "It predicts for every pixel which of 2 classes it is of." in text
    parameters = Segmentation(classes=2).cost(encoder.config).parameters
    assert f"{parameters:,} parameters" in text
    assert "| test, 12 images | mean IoU | 50.00% |" in text
    assert "| 0 | `sky` | 25.0% | 12.5% to 50.0% |" in text
    assert "| 1 | `tr/ee` | | |" in text
    assert "vitrail predict hf:me/mine image.jpg --out masks --overlay" in text
    assert "feature" not in text


def test_a_detection_model_is_described_by_its_classes_of_objects() -> None:
    encoder = small_vit(classes=0)
    encoder.preprocess, encoder.class_names = Preprocess(encoder.config.image, 1.0, "stretch"), ("disc", "st|ar")
    scores = {"ap": 0.25, "ap50": 0.5, "ap_large": float("nan"), "loss": 1.25}
    task = to_dict(Detection(classes=2))
    whole = model_metadata(
        encoder, encoder.config, {"recipe": {**RECIPE, "task": task}, "metrics": {"step": 5, "test": scores}}
    )
    rows: list[dict[str, Any]] = [
        {"name": "disc", "ap": 0.125, "ap50": 0.75, "objects": 1234, "interval": {"ap50": [0.5, 0.875]}},
        {"name": "st|ar", "ap": "NaN", "ap50": "NaN", "objects": 0, "interval": {"ap50": ["NaN", "NaN"]}},
    ]
    text = model_card(whole, "me/mine", num_images={"test": 12}, class_metrics=rows)
    actual = header(text)
    assert actual["pipeline_tag"] == "object-detection"
    (result,) = actual["model-index"][0]["results"]
    assert result["task"] == {"type": "object-detection"}
    assert result["metrics"] == [{"type": "mean_average_precision", "name": "AP", "value": 0.25}]
    assert "It finds objects of 2 classes in images, as boxes with scores." in text
    assert f"{Detection(classes=2).cost(encoder.config).parameters:,} parameters" in text
    assert "| test, 12 images | AP50 | 50.00% |" in text
    assert "large" not in text
    assert "| `disc` | 1,234 | 12.5% | 75.0% | 50.0% to 87.5% |" in text
    assert "| `st/ar` |  |  |  |  |" in text
    assert "2 times the generalised IoU loss" in text
    assert "vitrail predict hf:me/mine image.jpg --out boxes.json" in text
    assert "feature" not in text


def test_wilson_interval_matches_published_values() -> None:
    """Newcombe 1998, Table I: 81 of 263, and 0 of 20."""
    assert wilson_interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson_interval(0.0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
