"""Model card: the README.md of a model on the Hugging Face hub, written from the model's metadata. Torch-free.

Its header is for programs, the rest for people: architecture, usage, evaluation, preprocessing, training, limitations. What is
not recorded is not made up.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from typing import Any

from vitrail.config import read
from vitrail.data.preprocess import Preprocess
from vitrail.errors import printable
from vitrail.models.cost import cost
from vitrail.models.settings import ModelConfig, ResNetConfig, times
from vitrail.report.card_head import METRICS, Format, head, part, reported, worth

MOST = 100  # class names listed
Z = 1.96  # normal quantile of a 95 % interval
PLAIN = ("loss", "ece")  # the others are fractions, shown in percent


def card(
    facts: Mapping[str, Any],
    name: str,
    license: str | None = None,
    format: Format = "vitrail",
    pictures: Mapping[str, int] | None = None,
    assumed: Sequence[str] = (),
) -> str:
    """Return the card of the model ``owner/name`` from its metadata, the content of ``vitrail.json``.

    ``num_images``: size of each evaluated split, where known. ``assumed``: settings that the weight file did not record.
    """
    config: ModelConfig = read(facts.get("model"), ModelConfig, "model")
    parts = [
        head(facts, config, name, license, format),
        f"# {name.rpartition('/')[2]}\n\n{_what(facts, config)}",
        f"## Usage\n\n{_use(config, name, format)}",
        f"## Evaluation\n\n{_score(facts, config, pictures or {})}",
        f"## Preprocessing\n\n{_preprocess(facts, format)}",
        *([f"## Classes\n\n{_labels(facts, config)}"] if config.classes else []),
        f"## Training\n\n{_training(facts)}",
        "## Limitations\n\n" + "\n".join(f"- {line}" for line in _limits(facts, config, assumed)),
        _made(facts),
    ]
    return "\n\n".join(parts) + "\n"


def shares(right: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a proportion measured on ``count`` images."""
    centre = right + Z**2 / (2 * count)
    reach = Z * sqrt(right * (1 - right) / count + Z**2 / (4 * count**2))
    return (centre - reach) / (1 + Z**2 / count), (centre + reach) / (1 + Z**2 / count)


def _what(facts: Mapping[str, Any], config: ModelConfig) -> str:
    known = cost(config)
    if isinstance(config, ResNetConfig):
        made = "A ResNet"
    else:
        kind = "A hybrid of ResNet and Vision Transformer" if config.stem else "A Vision Transformer"
        depth = _count(config.depth, "block")
        made = f"{kind} with {depth}, width {config.width}, {config.heads} heads and patches of {times(config.patch)}"
    colours = {1: "grey", 3: "colour"}.get(config.channels, f"{config.channels}-channel")
    size = f"{known.parameters:,} parameters, {known.macs:,} multiply-adds per image"
    lines = [f"{made}, for {colours} images of {times(config.image)} pixels: {size}."]
    if config.classes:
        lines.append(f"It classifies images into {config.classes:,} classes.")
    else:
        lines.append("It has no classifier: it extracts features from images, and is a starting point for fine-tuning.")
    if facts.get("masking"):
        lines.append(f"It was pre-trained without labels, with {facts['masking']['method']}.")
    return " ".join(lines)


def _use(config: ModelConfig, name: str, format: Format) -> str:
    if config.classes:
        python = f'model = vitrail.load("hf:{name}")\nprint(vitrail.predict(model, ["image.jpg"]))'
        shell = f"vitrail predict hf:{name} image.jpg"
    else:
        python = f'model = vitrail.load("hf:{name}")\nfeatures = vitrail.embed(model, ["image.jpg"]).values'
        shell = f"vitrail finetune hf:{name} DATA\nvitrail probe hf:{name} DATA"
    said = f"```python\nimport vitrail\n\n{python}\n```\n\n```sh\n{shell}\n```"
    if format == "huggingface" and config.classes:
        pipe = f'classify = pipeline("image-classification", "{name}")\nprint(classify("image.jpg"))'
        said += f"\n\nOr without Vitrail:\n\n```python\nfrom transformers import pipeline\n\n{pipe}\n```"
    return said


def _score(facts: Mapping[str, Any], config: ModelConfig, pictures: Mapping[str, int]) -> str:
    score = part(facts, "metrics")
    splits = [split for split in ("test", "validation", "train") if isinstance(score.get(split), dict) and score[split]]
    if not splits:
        return "These weights come without metrics. Evaluate them on your own images before use."
    rows = ["| split | metric | value |", "|---|---|---|"]
    for split in splits:
        counted = f"{split}, {pictures[split]:,} images" if split in pictures else split
        for key, value in score[split].items():
            if worth(key, score[split], facts):
                rows.append(f"| {counted} | {METRICS.get(key, key)} | {_number(key, value, pictures.get(split))} |")
    said = {
        "test": "The test images were evaluated once, after the weights had been selected.",
        "validation": "The weights were selected on validation, whose metrics are therefore optimistic.",
        "train": "The model was trained on the train images: accuracy on them says nothing about new images.",
    }
    if not config.classes:
        said = {"": "The loss is over masked patches only, and can only be compared between runs with the same target."}
    return "\n".join(rows) + "\n\n" + " ".join(said[split] for split in said if split in ("", *splits))


def _number(key: str, value: float, count: int | None) -> str:
    if key in PLAIN:
        return f"{value:.4f}"
    if not count or key not in ("top1", "top5"):
        return f"{value:.2%}"
    low, high = shares(value, count)
    return f"{value:.2%} (95 % interval {low:.1%} to {high:.1%})"


def _preprocess(facts: Mapping[str, Any], format: Format) -> str:
    how: Preprocess | None = read(facts.get("preprocess"), Preprocess | None, "preprocess")
    if how is None:
        return "Not recorded; Vitrail assumes the default of this architecture."
    resized = "resized without keeping the aspect ratio to" if how.squash else "resized to cover"
    cut = "" if how.resized == how.image else f", centre-cropped to {times(how.image)}"
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (how.mean, how.std))
    where = "`vitrail.json`" if format == "vitrail" else "`preprocessor_config.json`"
    return (
        f"Images are {resized} {times(how.resized)} pixels ({how.interpolation}){cut}; values from 0 to 1 are normalised with "
        f"mean {mean} and standard deviation {std}. Programs read this from {where}."
    )


def _labels(facts: Mapping[str, Any], config: ModelConfig) -> str:
    labels = facts.get("class_names")
    if not labels:
        return f"{config.classes:,} classes whose names are not recorded: predictions are class indices, from 0."
    more = f" and {len(labels) - MOST:,} more" if len(labels) > MOST else ""
    return ", ".join(_code(label) for label in labels[:MOST]) + more


def _training(facts: Mapping[str, Any]) -> str:
    recipe, data = part(facts, "recipe"), part(facts, "dataset")
    if not recipe:
        return "Not recorded."
    optim, schedule, score = part(recipe, "optim"), part(recipe, "schedule"), part(facts, "metrics")
    seen = f"; these weights are of step {score['step']:,}" if isinstance(score.get("step"), int) else ""
    matrices = f" (matrices {optim.get('matrix_lr')})" if optim.get("kind") == "muon" else ""
    rows = {
        "dataset": f"{_code(data.get('name', 'unknown'))}, fingerprint `{str(data.get('fingerprint', 'unknown'))[:16]}`",
        "initial weights": _code(recipe["start"]) if recipe.get("start") else "random",
        "recipe": _code(recipe.get("name", "unknown")),
        "steps": f"{recipe.get('steps', 0):,} of {recipe.get('batch', 0):,} images{seen}",
        "optimiser": f"{optim.get('kind')}, learning rate {optim.get('lr')}{matrices}, decay {optim.get('weight_decay')}",
        "schedule": f"{schedule.get('kind')}, {_count(schedule.get('warmup', 0), 'step')} of warmup",
        "loss": f"{part(recipe, 'masking').get('target', recipe.get('loss'))}, label smoothing {recipe.get('smoothing')}",
        "EMA decay": recipe.get("ema") or "none",
        "seed": recipe.get("seed"),
    }
    if recipe.get("masking"):
        rows["loss"] = f"{recipe['masking']['target']} of the masked patches, {recipe['masking']['share']:.0%} of an image"
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _limits(facts: Mapping[str, Any], config: ModelConfig, assumed: Sequence[str]) -> Iterator[str]:
    if assumed:
        plain = "; ".join(_plain(item) for item in assumed)
        yield f"The weight file does not record everything; these settings were assumed: {printable(plain)}."
    if config.classes:
        sigmoid = part(facts, "recipe").get("loss") == "sigmoid"
        every = "may be given any of them" if sigmoid else "is still given one of them"
        yield f"It knows only its {config.classes:,} classes: an image of anything else {every}, perhaps with high confidence."
    else:
        yield "It predicts nothing by itself; how useful its features are for a task has to be measured on that task."
    if reported(facts):
        yield "The metrics hold for images like those of the evaluation; other cameras, locations and times were not evaluated."
    yield "Fairness across groups and robustness to noise, blur and weather are not recorded."
    if config.classes and not any("ece" in found for found in part(facts, "metrics").values() if isinstance(found, dict)):
        yield "Its calibration is not recorded: of predictions with 90 % confidence fewer than nine in ten may be correct."
    yield "It inherits the biases of its training data, which is not part of this repository."


def _made(facts: Mapping[str, Any]) -> str:
    versions = part(facts, "versions")
    return f"Written by Vitrail {versions.get('vitrail', '')} from the metadata stored with the weights."


def _plain(assumed: str) -> str:
    """Drop the hint how to override an assumption when loading."""
    return re.sub(r"(; )?[\w.]+=? overrides it", "", assumed).replace(" ()", "")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _code(text: Any) -> str:
    """Return a name as inline code that can break neither its code span nor its table cell."""
    return f"`{printable(str(text)).replace('`', chr(39)).replace('|', '/')}`"
