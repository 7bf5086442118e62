"""A model card: the README.md of a model on the Hugging Face hub, written from what the model knows of itself. Needs no torch.

Its header is for programs, the rest for whoever considers using the model: what it is, how to load it, how good it was found to
be and on what, how pictures are made ready, how it was trained, what nobody has measured. What is not known is not made up.
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

MOST = 100  # labels that are listed
Z = 1.96  # deviations of a normal distribution that hold 95 %
PLAIN = ("loss", "ece")  # the others are shares


def card(
    facts: Mapping[str, Any],
    name: str,
    license: str | None = None,
    format: Format = "vitrail",
    pictures: Mapping[str, int] | None = None,
    assumed: Sequence[str] = (),
) -> str:
    """Of what ``vitrail.json`` holds, and ``owner/name``.

    ``pictures``: how many each split of the score had, where known. ``assumed``: what the file of the weights did not say.
    """
    config: ModelConfig = read(facts.get("model"), ModelConfig, "model")
    parts = [
        head(facts, config, name, license, format),
        f"# {name.rpartition('/')[2]}\n\n{_what(facts, config)}",
        f"## Use\n\n{_use(config, name, format)}",
        f"## How good it is\n\n{_score(facts, config, pictures or {})}",
        f"## How pictures are made ready\n\n{_preprocess(facts, format)}",
        *([f"## Classes\n\n{_labels(facts, config)}"] if config.classes else []),
        f"## Training\n\n{_training(facts)}",
        "## Limits\n\n" + "\n".join(f"- {line}" for line in _limits(facts, config, assumed)),
        _made(facts),
    ]
    return "\n\n".join(parts) + "\n"


def shares(right: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share that was found on so many pictures."""
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
        made = f"{kind} of {depth}, {config.width} wide with {config.heads} heads, patches of {times(config.patch)}"
    colours = {1: "grey", 3: "colour"}.get(config.channels, f"{config.channels}-channel")
    size = f"{known.parameters:,} parameters, {known.macs:,} multiply-adds a picture"
    lines = [f"{made}, for {colours} pictures of {times(config.image)} pixels: {size}."]
    if config.classes:
        lines.append(f"It tells {config.classes:,} classes apart.")
    else:
        lines.append("It has no classifier: it turns pictures into features, and is a start for fine-tuning.")
    if facts.get("masking"):
        lines.append(f"It was pre-trained without labels, by {facts['masking']['method']}.")
    return " ".join(lines)


def _use(config: ModelConfig, name: str, format: Format) -> str:
    if config.classes:
        python = f'model = vitrail.load("hf:{name}")\nprint(vitrail.predict(model, ["picture.jpg"]))'
        shell = f"vitrail predict hf:{name} picture.jpg"
    else:
        python = f'model = vitrail.load("hf:{name}")\nfeatures = vitrail.embed(model, ["picture.jpg"]).values'
        shell = f"vitrail finetune hf:{name} DATA\nvitrail probe hf:{name} DATA"
    said = f"```python\nimport vitrail\n\n{python}\n```\n\n```sh\n{shell}\n```"
    if format == "huggingface" and config.classes:
        pipe = f'classify = pipeline("image-classification", "{name}")\nprint(classify("picture.jpg"))'
        said += f"\n\nor without Vitrail:\n\n```python\nfrom transformers import pipeline\n\n{pipe}\n```"
    return said


def _score(facts: Mapping[str, Any], config: ModelConfig, pictures: Mapping[str, int]) -> str:
    score = part(facts, "score")
    splits = [split for split in ("test", "validation", "train") if isinstance(score.get(split), dict) and score[split]]
    if not splits:
        return "Nothing is recorded: these weights come without a score. Measure them on pictures of your own before use."
    rows = ["| pictures | what | value |", "|---|---|---|"]
    for split in splits:
        counted = f"{split}, {pictures[split]:,} of them" if split in pictures else split
        for key, value in score[split].items():
            if worth(key, score[split], facts):
                rows.append(f"| {counted} | {METRICS.get(key, key)} | {_number(key, value, pictures.get(split))} |")
    said = {
        "test": "The run looked at its test pictures once, when the weights had been chosen.",
        "validation": "The weights were chosen on validation, whose numbers are flattered by that.",
        "train": "The model has learnt from its train pictures: that says nothing about new ones.",
    }
    if not config.classes:
        said = {"": "The loss counts hidden patches alone and compares runs of one kind with each other, nothing more."}
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
        return "Not recorded; Vitrail assumes the usual for this kind of model."
    resized = "squeezed to" if how.squash else "resized until they cover"
    cut = "" if how.resized == how.image else f", of which the middle {times(how.image)} are taken"
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (how.mean, how.std))
    where = "`vitrail.json`" if format == "vitrail" else "`preprocessor_config.json`"
    return (
        f"Pictures are {resized} {times(how.resized)} pixels ({how.interpolation}){cut}; values from 0 to 1, minus {mean}, "
        f"over {std}. {where} says it to programs, so there is nothing to set."
    )


def _labels(facts: Mapping[str, Any], config: ModelConfig) -> str:
    labels = facts.get("labels")
    if not labels:
        return f"{config.classes:,} classes whose names are not recorded: answers are their numbers, from 0."
    more = f" and {len(labels) - MOST:,} more" if len(labels) > MOST else ""
    return ", ".join(_code(label) for label in labels[:MOST]) + more


def _training(facts: Mapping[str, Any]) -> str:
    recipe, data = part(facts, "recipe"), part(facts, "data")
    if not recipe:
        return "Not recorded in these weights."
    optim, schedule, score = part(recipe, "optim"), part(recipe, "schedule"), part(facts, "score")
    seen = f"; what is here is step {score['step']:,}" if isinstance(score.get("step"), int) else ""
    matrices = f", of matrices {optim.get('matrix_lr')}" if optim.get("kind") == "muon" else ""
    rows = {
        "data": f"{_code(data.get('name', 'unknown'))}, fingerprint `{str(data.get('fingerprint', 'unknown'))[:16]}`",
        "began with": _code(recipe["start"]) if recipe.get("start") else "nothing: random weights",
        "recipe": _code(recipe.get("name", "unknown")),
        "steps": f"{recipe.get('steps', 0):,} of {recipe.get('batch', 0):,} pictures{seen}",
        "optimiser": f"{optim.get('kind')}, learning rate {optim.get('lr')}{matrices}, decay {optim.get('weight_decay')}",
        "schedule": f"{schedule.get('kind')}, {_count(schedule.get('warmup', 0), 'step')} of warm-up",
        "loss": f"{part(recipe, 'masking').get('target', recipe.get('loss'))}, smoothing {recipe.get('smoothing')}",
        "average of weights": recipe.get("ema") or "none",
        "seed": recipe.get("seed"),
    }
    if recipe.get("masking"):
        rows["loss"] = f"{recipe['masking']['target']} of the hidden patches, {recipe['masking']['share']:.0%} of a picture"
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _limits(facts: Mapping[str, Any], config: ModelConfig, assumed: Sequence[str]) -> Iterator[str]:
    if assumed:
        plain = "; ".join(_plain(item) for item in assumed)
        yield f"The file that these weights were read from does not say everything; assumed were {printable(plain)}."
    if config.classes:
        sigmoid = part(facts, "recipe").get("loss") == "sigmoid"
        every = "may get any of these names" if sigmoid else "gets one of these names all the same"
        yield f"It knows its {config.classes:,} classes and nothing else: a picture of anything else {every}, perhaps surely."
    else:
        yield "It answers nothing by itself; what its features are worth for a task has to be measured on that task."
    if reported(facts):
        yield "The score holds for pictures like those it was measured on; other cameras, places and times were not measured."
    yield "Whether it treats all groups of people or things alike, and how it bears noise, blur and weather, is not recorded."
    if config.classes and not any("ece" in found for found in part(facts, "score").values() if isinstance(found, dict)):
        yield "Nothing says that its probabilities are calibrated: 90 % sure need not be right nine times of ten."
    yield "It has whatever faults its training data has; the data itself is not part of this repository."


def _made(facts: Mapping[str, Any]) -> str:
    versions = part(facts, "versions")
    return f"Written by Vitrail {versions.get('vitrail', '')} from the facts that are stored with the weights."


def _plain(assumed: str) -> str:
    """Without how the one who loads a file may say otherwise."""
    return re.sub(r"(; )?[\w.]+=? says otherwise", "", assumed).replace(" ()", "")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _code(text: Any) -> str:
    """A name from anywhere, that can neither end its code span nor its table's cell."""
    return f"`{printable(str(text)).replace('`', chr(39)).replace('|', '/')}`"
