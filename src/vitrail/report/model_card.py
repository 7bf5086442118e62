"""Model card: the README.md of a model on the Hugging Face hub, written from the model's metadata. Torch-free.

Its header is for programs, the rest for people: architecture, usage, evaluation, preprocessing, training, limitations. What is
not recorded is not made up.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from typing import Any

from vitrail.config import parse_value
from vitrail.data.preprocess import Preprocess
from vitrail.errors import printable
from vitrail.models.config import ModelConfig, ResNetConfig, format_size
from vitrail.models.cost import cost
from vitrail.recipes.task_config import TaskConfig
from vitrail.report.model_card_yaml import (
    METRIC_NAMES,
    CardFormat,
    has_head,
    has_several_labels,
    is_worth_listing,
    predicted_numbers,
    predicts_boxes,
    predicts_masks,
    reported_split,
    section,
    yaml_header,
)

MAX_LISTED_CLASSES = 100  # class names listed
NORMAL_QUANTILE = 1.96  # normal quantile of a 95 % interval
UNSCALED_METRICS = ("loss", "ece", "coverage")  # the others are fractions, shown in percent


def model_card(
    metadata: Mapping[str, Any],
    name: str,
    license: str | None = None,
    format: CardFormat = "vitrail",
    num_images: Mapping[str, int] | None = None,
    assumed: Sequence[str] = (),
    class_metrics: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the card of the model ``owner/name`` from its metadata, the content of ``vitrail.json``.

    ``num_images``: size of each evaluated split, where known. ``assumed``: settings that the weight file did not record.
    ``class_metrics``: the metrics of each class, as a run's result has them of several labels per image and of masks.
    """
    config: ModelConfig = parse_value(metadata.get("model"), ModelConfig, "model")
    parts = [
        yaml_header(metadata, config, name, license, format),
        f"# {name.rpartition('/')[2]}\n\n{_description(metadata, config)}",
        f"## Usage\n\n{_usage(metadata, config, name, format)}",
        f"## Evaluation\n\n{_evaluation(metadata, config, num_images or {})}",
        f"## Preprocessing\n\n{_preprocessing(metadata, format)}",
        *_outputs_section(metadata, config, class_metrics),
        f"## Training\n\n{_training(metadata)}",
        "## Limitations\n\n" + "\n".join(f"- {line}" for line in _limitations(metadata, config, assumed)),
        _footer(metadata),
    ]
    return "\n\n".join(parts) + "\n"


def wilson_interval(proportion: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a proportion measured on ``count`` images."""
    centre = proportion + NORMAL_QUANTILE**2 / (2 * count)
    half_width = NORMAL_QUANTILE * sqrt(proportion * (1 - proportion) / count + NORMAL_QUANTILE**2 / (4 * count**2))
    return (centre - half_width) / (1 + NORMAL_QUANTILE**2 / count), (centre + half_width) / (1 + NORMAL_QUANTILE**2 / count)


def _description(metadata: Mapping[str, Any], config: ModelConfig) -> str:
    task = section(section(metadata, "recipe"), "task")
    has_own_head = predicts_masks(metadata) or predicts_boxes(metadata)
    costs = parse_value(task, TaskConfig, "task").cost(config) if has_own_head else cost(config)
    if isinstance(config, ResNetConfig):
        architecture = "A ResNet"
    else:
        kind = "A hybrid of ResNet and Vision Transformer" if config.stem else "A Vision Transformer"
        depth = _plural(config.depth, "block")
        architecture = (
            f"{kind} with {depth}, width {config.width}, {config.heads} heads and patches of {format_size(config.patch)}"
        )
    colours = {1: "grey", 3: "colour"}.get(config.channels, f"{config.channels}-channel")
    size = f"{costs.parameters:,} parameters, {costs.macs:,} multiply-adds per image"
    lines = [f"{architecture}, for {colours} images of {format_size(config.image)} pixels: {size}."]
    if targets := predicted_numbers(metadata):
        lines.append(f"It predicts {_plural(len(targets), 'number')} per image: {', '.join(map(_code, targets))}.")
    elif predicts_masks(metadata):
        lines.append(f"It predicts for every pixel which of {len(_names(metadata)):,} classes it is of.")
    elif predicts_boxes(metadata):
        classes = len(_names(metadata))
        lines.append(f"It finds objects of {classes:,} class{'' if classes == 1 else 'es'} in images, as boxes with scores.")
    elif config.classes and has_several_labels(metadata):
        lines.append(f"It predicts which of {config.classes:,} labels an image has: several, one or none.")
    elif config.classes:
        lines.append(f"It classifies images into {config.classes:,} classes.")
    else:
        lines.append("It has no classifier: it extracts features from images, and is a starting point for fine-tuning.")
    if metadata.get("masking"):
        lines.append(f"It was pre-trained without labels, with {metadata['masking']['method']}.")
    return " ".join(lines)


def _usage(metadata: Mapping[str, Any], config: ModelConfig, name: str, format: CardFormat) -> str:
    if predicts_masks(metadata):
        python = (
            f'model = vitrail.load("hf:{name}")\n(prediction,) = vitrail.predict(model, ["image.jpg"])\nprint(prediction.mask)'
        )
        shell = f"vitrail predict hf:{name} image.jpg --out masks --overlay"
    elif predicts_boxes(metadata):
        python = (
            f'model = vitrail.load("hf:{name}")\n(prediction,) = vitrail.predict(model, ["image.jpg"])\nprint(prediction.boxes)'
        )
        shell = f"vitrail predict hf:{name} image.jpg --out boxes.json"
    elif config.classes:
        python = f'model = vitrail.load("hf:{name}")\nprint(vitrail.predict(model, ["image.jpg"]))'
        shell = f"vitrail predict hf:{name} image.jpg"
    else:
        python = f'model = vitrail.load("hf:{name}")\nfeatures = vitrail.embed(model, ["image.jpg"]).values'
        shell = f"vitrail finetune hf:{name} DATA\nvitrail probe hf:{name} DATA"
    text = f"```python\nimport vitrail\n\n{python}\n```\n\n```sh\n{shell}\n```"
    if format == "huggingface" and config.classes and not predicted_numbers(metadata):
        pipe = f'classify = pipeline("image-classification", "{name}")\nprint(classify("image.jpg"))'
        text += f"\n\nOr without Vitrail:\n\n```python\nfrom transformers import pipeline\n\n{pipe}\n```"
    return text


def _evaluation(metadata: Mapping[str, Any], config: ModelConfig, num_images: Mapping[str, int]) -> str:
    metrics = section(metadata, "metrics")
    splits = [split for split in ("test", "validation", "train") if isinstance(metrics.get(split), dict) and metrics[split]]
    if not splits:
        return "These weights come without metrics. Evaluate them on your own images before use."
    rows = ["| split | metric | value |", "|---|---|---|"]
    for split in splits:
        split_name = f"{split}, {num_images[split]:,} images" if split in num_images else split
        for key, value in metrics[split].items():
            if is_worth_listing(key, metrics[split], metadata):
                text = _format_metric(key, value, num_images.get(split), metadata)
                rows.append(f"| {split_name} | {METRIC_NAMES.get(key, key)} | {text} |")
    notes = {
        "test": "The test images were evaluated once, after the weights had been selected.",
        "validation": "The weights were selected on validation, whose metrics are therefore optimistic.",
        "train": "The model was trained on the train images: accuracy on them says nothing about new images.",
    }
    if not has_head(metadata, config):
        notes = {"": "The loss is over masked patches only, and can only be compared between runs with the same target."}
    return "\n".join(rows) + "\n\n" + " ".join(notes[split] for split in notes if split in ("", *splits))


def _format_metric(key: str, value: float, count: int | None, metadata: Mapping[str, Any]) -> str:
    if key in UNSCALED_METRICS:
        return f"{value:.4f}"
    if predicted_numbers(metadata):
        return f"{value:.4g}"
    if not count or key not in ("top1", "top5"):
        return f"{value:.2%}"
    low, high = wilson_interval(value, count)
    return f"{value:.2%} (95 % interval {low:.1%} to {high:.1%})"


def _preprocessing(metadata: Mapping[str, Any], format: CardFormat) -> str:
    preprocess: Preprocess | None = parse_value(metadata.get("preprocess"), Preprocess | None, "preprocess")
    if preprocess is None:
        return "Not recorded; Vitrail assumes the default of this architecture."
    resized = {
        "crop": "resized to cover",
        "pad": "resized to fit into",
        "stretch": "resized without keeping the aspect ratio to",
    }
    crop = "" if preprocess.resize_to == preprocess.image_size else f", centre-cropped to {format_size(preprocess.image_size)}"
    crop = ", padded with the mean colour" if preprocess.fit == "pad" else crop
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (preprocess.mean, preprocess.std))
    file_name = "`vitrail.json`" if format == "vitrail" else "`preprocessor_config.json`"
    return (
        f"Images are {resized[preprocess.fit]} {format_size(preprocess.resize_to)} pixels ({preprocess.interpolation}){crop}; "
        f"{'the bands' if preprocess.raw else 'values from 0 to 1'} are normalised with "
        f"mean {mean} and standard deviation {std}. Programs read this from {file_name}."
    )


def _outputs_section(
    metadata: Mapping[str, Any], config: ModelConfig, class_metrics: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield a section on the classes, or on the units of the numbers."""
    if targets := predicted_numbers(metadata):
        state = section(metadata, "task_state")
        mean, std = section(state, "mean"), section(state, "std")
        rows = [f"| {_code(name)} | {mean.get(name, 0):.4g} | {std.get(name, 1):.4g} |" for name in targets]
        head = "| target | mean | standard deviation |\n|---|---|---|"
        note = "Of the training images. Predictions are in these units; the model's own outputs are standardised by them."
        yield "## Targets\n\n" + "\n".join([head, *rows]) + f"\n\n{note}"
    elif predicts_masks(metadata):
        yield f"## Classes\n\n{_pixel_classes(metadata, class_metrics)}"
    elif predicts_boxes(metadata):
        yield f"## Classes\n\n{_object_classes(metadata, class_metrics)}"
    elif config.classes:
        yield f"## Classes\n\n{_classes(metadata, config, class_metrics)}"


def _classes(metadata: Mapping[str, Any], config: ModelConfig, class_metrics: Sequence[Mapping[str, Any]]) -> str:
    """List the classes; of a model that predicts several labels per image, with their thresholds and average precision."""
    names, thresholds = metadata.get("class_names"), section(metadata, "task_state").get("thresholds")
    if not (names and thresholds and len(names) == len(thresholds)):
        return _class_names(metadata, config)
    text = (
        "A label is predicted if its probability, the sigmoid of its logit, reaches its threshold, which was chosen on "
        "validation. Programs other than Vitrail have to apply the thresholds themselves.\n\n"
    )
    measured = {row["name"]: row for row in class_metrics}
    rows = [
        f"| label | threshold |{' average precision | images |' if measured else ''}",
        f"|---|---|{'---|---|' if measured else ''}",
    ]
    for name, threshold in list(zip(names, thresholds, strict=True))[:MAX_LISTED_CLASSES]:
        metrics = measured.get(name)
        cells = f" {metrics['ap']:.1%} | {metrics['support']:,} |" if metrics and metrics["support"] else " | |"
        rows.append(f"| {_code(name)} | {threshold:.3f} |{cells if measured else ''}")
    more = f"\n\nand {len(names) - MAX_LISTED_CLASSES:,} more" if len(names) > MAX_LISTED_CLASSES else ""
    return text + "\n".join(rows) + more


def _names(metadata: Mapping[str, Any]) -> list[str]:
    return list(metadata.get("class_names") or ())


def _pixel_classes(metadata: Mapping[str, Any], class_metrics: Sequence[Mapping[str, Any]]) -> str:
    """List the classes of pixels by their number in a mask, with the IoU of each if it was measured."""
    names, measured = _names(metadata), {row["name"]: row for row in class_metrics}
    rows = [
        "| value in a mask | class |" + (" IoU | 95 % interval |" if measured else ""),
        "|---|---|" + "---|---|" * bool(measured),
    ]
    for label, name in enumerate(names[:MAX_LISTED_CLASSES]):
        row = measured.get(name)
        known = row is not None and not isinstance(row["iou"], str)  # NaN is text in JSON
        cells = f" {row['iou']:.1%} | {row['interval'][0]:.1%} to {row['interval'][1]:.1%} |" if row and known else " | |"
        rows.append(f"| {label} | {_code(name)} |{cells if measured else ''}")
    more = f"\n\nand {len(names) - MAX_LISTED_CLASSES:,} more" if len(names) > MAX_LISTED_CLASSES else ""
    return "\n".join(rows) + more


def _object_classes(metadata: Mapping[str, Any], class_metrics: Sequence[Mapping[str, Any]]) -> str:
    """List the classes of objects, with the average precision of each if it was measured."""
    names, measured = _names(metadata), {row["name"]: row for row in class_metrics}
    columns = ["class", *(["objects", "AP", "AP50", "95 % interval of AP50"] if measured else [])]
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name in names[:MAX_LISTED_CLASSES]:
        row, cells = measured.get(name), [""] * (len(columns) - 1)
        if row and row["objects"]:
            low, high = row["interval"]["ap50"]
            cells = [f"{row['objects']:,}", f"{row['ap']:.1%}", f"{row['ap50']:.1%}", f"{low:.1%} to {high:.1%}"]
        rows.append(f"| {' | '.join([_code(name), *cells])} |")
    more = f"\n\nand {len(names) - MAX_LISTED_CLASSES:,} more" if len(names) > MAX_LISTED_CLASSES else ""
    return "\n".join(rows) + more


def _class_names(metadata: Mapping[str, Any], config: ModelConfig) -> str:
    names = metadata.get("class_names")
    if not names:
        return f"{config.classes:,} classes whose names are not recorded: predictions are class indices, from 0."
    more = f" and {len(names) - MAX_LISTED_CLASSES:,} more" if len(names) > MAX_LISTED_CLASSES else ""
    return ", ".join(_code(name) for name in names[:MAX_LISTED_CLASSES]) + more


def _training(metadata: Mapping[str, Any]) -> str:
    recipe, dataset = section(metadata, "recipe"), section(metadata, "dataset")
    if "steps" not in recipe:  # the task may be recorded alone
        return "Not recorded."
    optim, schedule, metrics = section(recipe, "optim"), section(recipe, "schedule"), section(metadata, "metrics")
    task = section(recipe, "task")
    masking = section(task, "masking")
    step_note = f"; these weights are of step {metrics['step']:,}" if isinstance(metrics.get("step"), int) else ""
    matrices = f" (matrices {optim.get('muon_lr')})" if optim.get("name") == "muon" else ""
    rows = {
        "dataset": f"{_code(dataset.get('name', 'unknown'))}, fingerprint `{str(dataset.get('fingerprint', 'unknown'))[:16]}`",
        "initial weights": _code(recipe["init_from"]) if recipe.get("init_from") else "random",
        "recipe": _code(recipe.get("name", "unknown")),
        "steps": f"{recipe.get('steps', 0):,} of {recipe.get('batch_size', 0):,} images{step_note}",
        "optimiser": f"{optim.get('name')}, learning rate {optim.get('lr')}{matrices}, decay {optim.get('weight_decay')}",
        "schedule": f"{schedule.get('kind')}, {_plural(schedule.get('warmup_steps', 0), 'step')} of warmup",
        "loss": f"{task.get('loss')}" + (f", label smoothing {task['label_smoothing']}" if "label_smoothing" in task else ""),
        "EMA decay": recipe.get("ema_decay") or "none",
        "seed": recipe.get("seed"),
    }
    if predicts_boxes(metadata):
        rows["loss"] = (
            f"focal loss of the heat map, and {task.get('box_weight', 1):g} times the generalised IoU loss of the boxes"
        )
    if masking:
        rows["loss"] = f"{masking['target']} of the masked patches, {masking['mask_ratio']:.0%} of an image"
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _limitations(metadata: Mapping[str, Any], config: ModelConfig, assumed: Sequence[str]) -> Iterator[str]:
    if assumed:
        settings = "; ".join(_without_hint(item) for item in assumed)
        yield f"The weight file does not record everything; these settings were assumed: {printable(settings)}."
    if predicted_numbers(metadata):
        yield "It gives a number for any image, also for one without what it measures, and does not say how certain it is."
    elif predicts_masks(metadata):
        yield (
            f"It has only its {len(_names(metadata)):,} classes: every pixel is given one of them, also of anything else. "
            "Images are resized to its input, so that objects of few pixels are lost; `--tile` predicts large images in parts."
        )
    elif predicts_boxes(metadata):
        yield (
            "It finds objects of its classes alone, and may take others for them. Images are resized to its input, so that "
            "objects of few pixels are lost. Scores are no calibrated probabilities: choose a threshold on images of your own."
        )
    elif config.classes:
        sigmoid = has_several_labels(metadata) or section(section(metadata, "recipe"), "task").get("loss") == "sigmoid"
        outcome = "may be given any of them" if sigmoid else "is still given one of them"
        yield f"It has only its {config.classes:,} classes: an image of anything else {outcome}, perhaps with high confidence."
    else:
        yield "It predicts nothing by itself; how useful its features are for a task has to be measured on that task."
    if reported_split(metadata):
        yield "The metrics hold for images like those of the evaluation; other cameras, locations and times were not evaluated."
    yield "Fairness across groups and robustness to noise, blur and weather are not recorded."
    if (
        config.classes
        and not predicted_numbers(metadata)
        and not any("ece" in values for values in section(metadata, "metrics").values() if isinstance(values, dict))
    ):
        yield "Its calibration is not recorded: of predictions with 90 % confidence fewer than nine in ten may be correct."
    yield "It inherits the biases of its training data, which is not part of this repository."


def _footer(metadata: Mapping[str, Any]) -> str:
    versions = section(metadata, "versions")
    return f"Written by Vitrail {versions.get('vitrail', '')} from the metadata stored with the weights."


def _without_hint(assumed: str) -> str:
    """Drop the hint how to override an assumption when loading."""
    return re.sub(r"(; )?[\w.]+=? overrides it", "", assumed).replace(" ()", "")


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _code(text: Any) -> str:
    """Return a name as inline code that can break neither its code span nor its table cell."""
    return f"`{printable(str(text)).replace('`', chr(39)).replace('|', '/')}`"
